/** Chooses a world by its seed. */

import { createRandom, type Random } from '../support/random.ts';
import type {
  AliasSettings,
  Ask,
  Bucket,
  ProviderBucket,
  ChatPlan,
  Tenant,
  ConnectionPlan,
  Incident,
  Outage,
  Plan,
  ProviderSettings,
  Reply,
  Settings,
} from './plan.ts';
import { HOSTS, ORIGINS, spellRequest, tokensWith, WRONG_BODIES } from './dialects.ts';
import { lazily, toList, withScene } from './scenes.ts';
import {
  aFailure,
  aList,
  anAnswer,
  anEmptyAnswer,
  anErrorStatus,
  answerWell,
  time,
} from './replies.ts';

/**
 * Scenes in which a rare combination is the rule. In `stalls`, one provider begins each stream but
 * ends it late. In `sessions`, a balanced alias has only providers with affinity, busy with slow
 * streams. In `queues`, many requests wait for the slots of few providers.
 */
type Scene = 'any' | 'stalls' | 'sessions' | 'queues';

/** A whole world's character. */
interface Mood {
  readonly scene: Scene;
  /** A try in so many fails. */
  readonly failsOneIn: number;
  readonly isSlow: boolean;
  /** The time between a client's requests. */
  readonly paceMs: number;
  readonly leavesOneIn: number;
  /** Whether half of all tries are refused: for the key, the model or the limit. */
  readonly isRefused?: boolean;
}

const REFUSALS = [401, 403, 404, 429, 429];

const MODELS = ['m0', 'm1'];

export function generate(seed: number): Plan {
  const random = createRandom(seed);
  // A separate generator, so that worlds without a scene do not change.
  const ofScene = createRandom(~seed);
  const scene = ofScene.pick<Scene>([
    'any',
    'any',
    'any',
    'any',
    'any',
    'any',
    'stalls',
    'sessions',
  ]);
  const any: Mood = {
    scene,
    failsOneIn: random.pick([1000, 8, 3, 2]),
    isSlow: random.oneIn(3),
    paceMs: random.pick([3, 300, 3000, 9000]),
    leavesOneIn: random.pick([1000, 12, 4]),
  };
  const further = createRandom(seed ^ 0x2545f491);
  const isTight = scene === 'any' && further.oneIn(16);
  const isRefused = scene === 'any' && !isTight && createRandom(seed ^ 0x1b873593).oneIn(12);
  const ofQueues = createRandom(seed ^ 0x5bd1e995);
  const hasQueues = scene === 'any' && !isTight && ofQueues.oneIn(8);
  const tense = { ...(isTight ? TIGHT : {}), ...(hasQueues ? MOODS.queues : {}) };
  const mood = { ...any, ...MOODS[scene], ...tense, isRefused };
  const rare = ofScene.oneIn(3) ? ofScene : undefined;
  const usual = withRare(settingsOf(scene, someSettings(random), ofScene), rare);
  const all = withFurther(isTight ? tight(usual) : usual, further);
  const withKeys = withKeyForms(all, createRandom(seed ^ 0x3c6ef372));
  const balanced = withFastest(withKeys, createRandom(seed ^ 0x1f83d9ab));
  const ofNames = createRandom(seed ^ 0x68e31da4);
  const named = withNames(balanced, ofNames);
  const ofEndpoint = createRandom(seed ^ 0x51ed270b);
  const served = withEndpoints(named, ofEndpoint);
  const ofHeaders = createRandom(seed ^ 0x2c1b3c6d);
  const logged = withLoggedHeaders(served, ofHeaders);
  const settings = hasQueues ? withQueues(logged, ofQueues) : logged;
  const chooser = { mood, random, rare, further, ofEndpoint, ofHeaders };
  const hasWildcard = settings.aliases.some(({ name }) => name.includes('*'));
  const connections = someConnections(settings, chooser).map(({ asks, atMs }) => ({
    atMs,
    // The list shows to which models a wildcard alias leads.
    asks: asks.map((ask) => (hasWildcard && ofNames.oneIn(6) ? toList(ask) : ask)),
  }));
  const lastMs = connections.flatMap(({ asks }) => asks.map(({ afterMs }) => afterMs));
  const lengthMs = lastMs.reduce((sum, ms) => sum + ms, 0) / connections.length + 200;
  return withScene({
    seed,
    settings,
    connections,
    incidents: someIncidents(settings, lengthMs, random).map((incident) =>
      incident.kind === 'reload'
        ? { ...incident, settings: withEndpoints(incident.settings, ofEndpoint) }
        : incident,
    ),
    outages: [
      ...(further.oneIn(20) ? [withoutDescriptors(lengthMs, further)] : []),
      ...(scene === 'stalls' ? [aStall(lengthMs, ofScene)] : []),
      ...(scene === 'stalls' || mood.failsOneIn > 100
        ? []
        : someOutages(settings, lengthMs, random)),
    ],
    lists: further.oneIn(2)
      ? Object.fromEntries(
          settings.providers.map(({ id }) => [id, list(3, () => aList(further))] as const),
        )
      : {},
  });
}

/** Adds limits by minute and day, and model details. */
function withFurther(settings: Settings, random: Random): Settings {
  const clients = settings.clients.map((client) => ({
    ...client,
    requests_per_minute: random.oneIn(4) ? random.pick([2, 5, 20]) : undefined,
    tokens_per_minute: random.oneIn(4) ? random.pick([20, 100, 400]) : undefined,
    tokens_per_day: random.oneIn(6) ? random.pick([50, 1000]) : undefined,
  }));
  const aDetail = (name: string) => [name, { context_length: random.integer(10, 99) }] as const;
  const providers = settings.providers.map((provider) => ({
    ...provider,
    model_details: random.oneIn(4)
      ? Object.fromEntries(['m0', 'listed'].filter(() => random.oneIn(2)).map(aDetail))
      : undefined,
  }));
  const host = random.oneIn(8) ? '127.0.0.1' : undefined;
  const trusted_proxies = random.oneIn(6) ? ['192.0.2.0/24'] : undefined;
  return { ...settings, clients, providers, server: { ...settings.server, host, trusted_proxies } };
}

/** Gives clients keys by their digests, and keys that expire. */
function withKeyForms(settings: Settings, random: Random): Settings {
  const clients = settings.clients.map((client) => ({
    ...client,
    isHashed: random.oneIn(3),
    expiryTime: random.oneIn(4) ? 1000 + Math.ceil(time(random, 0, 30_000)) : undefined,
  }));
  return { ...settings, clients };
}

/** Hides models from the list, and replaces the first alias by one or two wildcard aliases. */
function withNames(settings: Settings, random: Random): Settings {
  const providers = settings.providers.map((provider) => {
    const patterns = ['m0', 'm*', '*t*d', '*'].filter(() => random.oneIn(4));
    return { ...provider, hide_models: random.oneIn(2) ? patterns : undefined };
  });
  const [first, ...others] = settings.aliases;
  // An unknown provider would be refused.
  const isKnown = first?.targets.every((target) => !target.startsWith('gone/'));
  if (!first || !isKnown || !random.oneIn(3)) return { ...settings, providers };
  const targets = first.targets.map((target) => target.replace('/m0', '/m*'));
  const wildcard = { ...first, name: 'alias*', targets };
  if (!random.oneIn(2)) return { ...settings, providers, aliases: [wildcard, ...others] };
  const ids = new Set([random.pick(providers).id, random.pick(providers).id]);
  // It comes before `alias*`, wherever it stands.
  const specific = {
    name: 'alias0*',
    targets: [...ids].map((id) => `${id}/${random.pick(['m*', 'm1'])}`),
    isBalanced: random.oneIn(2),
  };
  const wildcards = random.oneIn(2) ? [wildcard, specific] : [specific, wildcard];
  return { ...settings, providers, aliases: [...wildcards, ...others] };
}

/** The endpoints beside chat. `member` takes the place of `messages`. */
const ENDPOINTS = [
  { path: '/v1/completions', member: 'prompt', answersWith: 'text' },
  { path: '/v1/embeddings', member: 'input', answersWith: 'embeddings' },
  // No world serves it, because its streams have typed events.
  { path: '/v1/responses', member: 'input', answersWith: undefined },
] as const;
const CHAT_PATH = '/v1/chat/completions';
const MESSAGE = /"messages":\[\{"role":"user","content":("(?:[^"\\]|\\.)*")\}\]/;

/** Serves other endpoints too. */
function withEndpoints(settings: Settings, random: Random): Settings {
  if (!random.oneIn(3)) return settings;
  const served = ENDPOINTS.filter(({ answersWith }) => answersWith && random.oneIn(2));
  if (served.length === 0) return settings;
  const endpoints = served.map(({ path }) => path);
  return { ...settings, server: { ...settings.server, endpoints } };
}

/**
 * Sends a request for a chat completion to another endpoint, served or not, if its body is spelled
 * plainly.
 */
function atEndpoint(target: Target, { server }: Settings, random: Random): Target {
  const { body = '', chat, path } = target;
  if (path !== CHAT_PATH || !random.oneIn(server.endpoints ? 2 : 20)) return target;
  const served = ENDPOINTS.filter((one) => server.endpoints?.includes(one.path));
  const isServed = served.length > 0 && !random.oneIn(4);
  const { answersWith, member, path: other } = random.pick(isServed ? served : ENDPOINTS);
  const query = random.oneIn(3) ? '?a=/v1/chat/completions' : '';
  const moved = { ...target, path: other + query };
  const [messages, text] = MESSAGE.exec(body) ?? [];
  if (!chat) return moved;
  if (messages === undefined || chat.refusedWith !== undefined) return target;
  const isStream = chat.isStream && answersWith !== 'embeddings';
  const asked = { ...chat, answersWith, isStream };
  // `messages` alone are refused.
  if (random.oneIn(12)) return { ...moved, chat: { ...asked, refusedWith: 400 } };
  const input = random.oneIn(2) ? text : `[${text}]`;
  return { ...moved, body: body.replace(messages, () => `"${member}":${input}`), chat: asked };
}

/** Logs headers: with several spellings, with a key, and absent. */
function withLoggedHeaders(settings: Settings, random: Random): Settings {
  if (!random.oneIn(4)) return settings;
  const names = ['x-team', 'X-Session-Id', 'tracestate', 'x-request-id', 'x-never-sent'];
  const [first, ...others] = names;
  const headers = [...others.filter(() => random.oneIn(2)), first!];
  return { ...settings, logging: { headers } };
}

const TEAMS = ['core', 'of key-of-a-1, core', 'long '.repeat(60).trim(), 'with\ttab', '\u00e9'];

/** Adds a header that only the access line may have, sometimes twice. */
function ofTeam(target: Target, { logging }: Settings, random: Random): Target {
  if (!logging.headers) return target;
  const teams = TEAMS.filter(() => random.oneIn(6));
  const headers = teams.map((team) => ['x-team', team] as const);
  return { ...target, headers: [...target.headers, ...headers] };
}

/** Large bodies, many at the same time, with memory for few of them. */
const TIGHT: Partial<Mood> = { failsOneIn: 1000, isSlow: true, paceMs: 3 };

function tight(settings: Settings): Settings {
  const limits = { max_body_bytes: undefined, max_concurrent_requests: 0 };
  const server = { ...settings.server, ...limits, max_buffered_bytes: 1_048_576 };
  return { ...settings, server, rateLimit: PLAIN_SETTINGS.rateLimit };
}

const MOODS: Readonly<Record<Scene, Partial<Mood>>> = {
  any: {},
  stalls: { failsOneIn: 1000, paceMs: 9000, leavesOneIn: 12 },
  sessions: { failsOneIn: 1000, paceMs: 300, isSlow: true },
  queues: { scene: 'queues', paceMs: 300 },
};

/** Gives providers few slots, and lets requests of two clients and of a key without a client wait. */
function withQueues(settings: Settings, random: Random): Settings {
  const providers = settings.providers.map((provider) => ({
    ...provider,
    max_concurrent_requests: random.integer(1, 2),
    max_waiting: random.pick([0, 1, 3, 20, 20]),
  }));
  const clients = list(random.pick([0, 2, 2]), (index) => ({
    ...aClient(index, [], random),
    ...NO_BUCKET,
    models: undefined,
    max_concurrent_requests: 0,
  }));
  const authKeys = clients.length > 0 ? ['server-key'] : [];
  const queue_timeout = random.oneIn(4) ? undefined : random.integer(1, 4);
  const server = { ...settings.server, max_concurrent_requests: 0, queue_timeout };
  const { rateLimit } = PLAIN_SETTINGS;
  return { ...settings, server, providers, clients, authKeys, rateLimit };
}

function settingsOf(scene: Scene, settings: Settings, random: Random): Settings {
  if (scene === 'any') return settings;
  const change = scene === 'stalls' ? { retries: 0 } : { key_affinity: true };
  const providers = ['a', 'b', 'c'].slice(0, random.integer(2, 3)).map((id) => ({
    ...(settings.providers.find((one) => one.id === id) ?? aProvider(id, random)),
    enabled: true,
    max_concurrent_requests: 0,
    ...change,
  }));
  const ids = providers.map(({ id }) => id);
  const targets = ids.map((id) => `${id}/m0`);
  const alias = { name: 'alias0', targets, isBalanced: scene === 'sessions' };
  const idle = scene === 'stalls' ? { stream_idle_timeout: random.pick([1, 3, 5]) } : {};
  const limits = { stream_keepalive: 0, max_concurrent_requests: 0 };
  const server = { ...settings.server, ...limits, ...idle };
  const { rateLimit } = PLAIN_SETTINGS;
  const others = { primary: undefined, fallback: ids, rateLimit };
  return { ...settings, server, providers, aliases: [alias], ...others };
}

/** Adds rare settings. */
function withRare(settings: Settings, random: Random | undefined): Settings {
  if (!random) return settings;
  const empty_answers = random.pick(['pass', 'fail', 'fail'] as const);
  const fallbackOn = [400, 401, 403, 404, 409, 422].filter(() => random.oneIn(2));
  const aliases = settings.aliases.map((alias) => {
    const weights = alias.targets.map(() => random.pick([0, 1, 1, 3]));
    const isWeighted = random.oneIn(2) && weights.some((weight) => weight > 0);
    return isWeighted ? { ...alias, isBalanced: true, weights } : alias;
  });
  const server = { ...settings.server, empty_answers };
  return { ...settings, server, aliases, fallbackOn };
}

/** Balances some aliases by their first tokens. */
function withFastest(settings: Settings, random: Random): Settings {
  const aliases = settings.aliases.map((alias) =>
    alias.isBalanced && !alias.weights && random.oneIn(2) ? { ...alias, isFastest: true } : alias,
  );
  return { ...settings, aliases };
}

/** An outage in which the first provider begins each answer and then sends nothing. */
function aStall(lengthMs: number, random: Random): Outage {
  const asked = { id: 'stall', chat: { model: '', isStream: true, asksForUsage: false } };
  const whole = answerWell(asked);
  const reply = { ...whole, items: whole.items.slice(0, 1), end: 'hang' as const };
  const fromMs = time(random, 0, 5000);
  return { provider: 'a', fromMs, toMs: fromMs + Math.max(lengthMs, 40_000), reply };
}

/** An outage in which no connection can be opened. */
function withoutDescriptors(lengthMs: number, random: Random): Outage {
  const reply = { ...anAnswer({ id: 'none', chat: undefined }, random, false), connectMs: 0.11 };
  const fromMs = 1000 + random.next() * lengthMs;
  const toMs = fromMs + time(random, 10, 20_000);
  return { provider: undefined, fromMs, toMs, reply: { ...reply, fault: 'descriptors' } };
}

function list<T>(count: number, make: (index: number) => T): T[] {
  return Array.from({ length: count }, (_, index) => make(index));
}

function aBucket(random: Random): Bucket {
  return { requests_per_second: random.integer(1, 6), burst_capacity: random.integer(1, 9) };
}

function aProviderBucket(random: Random): ProviderBucket {
  if (random.oneIn(2)) return aBucket(random);
  const bucket = random.oneIn(2) ? aBucket(random) : NO_BUCKET;
  return { ...bucket, requests_per_minute: random.pick([1, 3, 20]) };
}

const NO_BUCKET: Bucket = { requests_per_second: 0, burst_capacity: 100 };

/** Plain settings, the goal of the search for a smaller world. */
export const PLAIN_SETTINGS: Settings = {
  server: {
    timeout: 60,
    stream_idle_timeout: 300,
    stream_keepalive: 0,
    retries: 0,
    max_concurrent_requests: 0,
    cors: false,
  },
  logging: {},
  authKeys: [],
  clients: [],
  fallback: [],
  fallbackOn: [],
  providers: [
    {
      id: 'a',
      enabled: true,
      api_keys: ['key-of-a-1'],
      default_model: 'm0',
      key_affinity: false,
      stream_usage: false,
      max_concurrent_requests: 0,
      forward_headers: [],
      return_headers: [],
    },
  ],
  aliases: [],
  rateLimit: { enabled: false, hasStore: false, ...NO_BUCKET, providers: {} },
  hasAdmin: false,
};

function someSettings(random: Random): Settings {
  const ids = ['a', 'b', 'c', 'd'].slice(0, random.integer(1, 4));
  const providers = ids.map((id) => aProvider(id, random));
  const aliases = list(random.pick([0, 0, 1, 2]), (index) => anAlias(index, ids, random));
  const hasKeys = random.oneIn(3);
  const isLimited = random.oneIn(4);
  const rows = isLimited ? ids.filter(() => random.oneIn(2)) : [];
  return {
    server: {
      timeout: random.pick([1, 2, 5, 20]),
      first_token_timeout: random.oneIn(4) ? 1 : undefined,
      stream_idle_timeout: random.pick([1, 3, 10, 300]),
      stream_keepalive: random.oneIn(6) ? random.integer(1, 3) : 0,
      retries: random.pick([0, 0, 1, 2]),
      max_concurrent_requests: random.oneIn(8) ? random.integer(1, 4) : 0,
      max_body_bytes: random.oneIn(10) ? 300 : undefined,
      max_buffered_bytes: undefined,
      cors: random.oneIn(8),
    },
    logging: {},
    authKeys: hasKeys && random.oneIn(2) ? ['server-key'] : [],
    clients: hasKeys ? list(random.integer(1, 2), (index) => aClient(index, aliases, random)) : [],
    primary: random.oneIn(3) ? random.pick(ids) : undefined,
    fallback: random.oneIn(2) ? ids.filter(() => !random.oneIn(3)) : [],
    fallbackOn: [],
    providers,
    aliases,
    rateLimit: {
      enabled: isLimited,
      hasStore: isLimited && random.oneIn(3),
      ...(isLimited && random.oneIn(2) ? aBucket(random) : NO_BUCKET),
      providers: Object.fromEntries(rows.map((id) => [id, aProviderBucket(random)])),
    },
    hasAdmin: random.oneIn(6),
  };
}

function aProvider(id: string, random: Random): ProviderSettings {
  const keys = random.pick([1, 1, 2, 3]);
  return {
    id,
    // `a` is always enabled, because other providers' replies contain its keys.
    enabled: id === 'a' || !random.oneIn(20),
    api_keys: list(keys, (index) => `key-of-${id}-${index + 1}`),
    default_model: random.oneIn(4) ? undefined : random.pick(MODELS),
    models: random.oneIn(4) ? ['m0', 'by-hand'] : undefined,
    key_affinity: random.oneIn(4),
    stream_usage: random.oneIn(4),
    timeout: random.oneIn(4) ? random.integer(1, 4) : undefined,
    retries: random.oneIn(4) ? random.integer(0, 2) : undefined,
    max_concurrent_requests: random.oneIn(8) ? random.integer(1, 2) : 0,
    forward_headers: random.oneIn(4) ? ['x-forwarded-by-name'] : [],
    return_headers: random.oneIn(4) ? ['x-returned'] : [],
  };
}

function anAlias(index: number, ids: readonly string[], random: Random): AliasSettings {
  const targets = list(
    random.integer(1, 3),
    () => `${random.pick([...ids, ...ids, 'gone'])}/${random.pick(MODELS)}`,
  );
  return { name: `alias${index}`, targets: [...new Set(targets)], isBalanced: random.oneIn(2) };
}

function aClient(index: number, aliases: readonly AliasSettings[], random: Random): Tenant {
  const names = aliases.map(({ name }) => name);
  return {
    name: `client${index}`,
    keys: list(random.integer(1, 2), (key) => `token-${index}-${key}`),
    models: random.oneIn(3) ? random.pick([['a/*'], ['*'], ['b/m0', ...names], ['a']]) : undefined,
    max_concurrent_requests: random.oneIn(4) ? random.integer(1, 3) : 0,
    ...(random.oneIn(3) ? aBucket(random) : NO_BUCKET),
  };
}

function someConnections(settings: Settings, chooser: Chooser): ConnectionPlan[] {
  const { mood, random } = chooser;
  const isBusy = mood.scene !== 'any';
  const count = random.integer(isBusy ? 30 : 5, 40);
  const connections = list(isBusy ? 8 : random.integer(1, 6), () => ({
    atMs: time(random, 0, 3 * mood.paceMs),
    isPipelined: random.oneIn(8),
    asks: [] as Ask[],
  }));
  for (let number = 1; number <= count; number += 1) {
    const { asks, isPipelined } = random.pick(connections);
    const isBehind = isPipelined && asks.length > 0 && !random.oneIn(3);
    asks.push(anAsk(number, isBehind, settings, chooser));
  }
  if (!chooser.further.oneIn(24)) return connections.map(({ atMs, asks }) => ({ atMs, asks }));
  // All requests on one connection, pipelined.
  const all = connections.flatMap(({ asks }) => asks).toSorted((a, b) => a.number - b.number);
  const [first, ...others] = all.map((ask) => ({ ...ask, afterMs: 0.01 }));
  const asks = [first!, ...others.map((ask) => ({ ...ask, isPipelined: true }))];
  return [{ atMs: connections[0]!.atMs, asks }];
}

interface Chooser {
  readonly mood: Mood;
  readonly random: Random;
  /** Only in a world with rare settings. */
  readonly rare: Random | undefined;
  readonly further: Random;
  readonly ofEndpoint: Random;
  readonly ofHeaders: Random;
}

function anAsk(
  number: number,
  isPipelined: boolean,
  settings: Settings,
  { further, mood, ofEndpoint, ofHeaders, random, rare }: Chooser,
): Ask {
  const id = `r${number}`;
  const isStream = random.oneIn(2);
  const moved = atEndpoint(aTarget(id, isStream, settings, random), settings, ofEndpoint);
  const usual = ofTeam(moved, settings, ofHeaders);
  const off = ['x-gateway-fallback', rare?.pick(['off', 'on']) ?? ''] as const;
  const marked = rare?.oneIn(4) ? { ...usual, headers: [...usual.headers, off] } : usual;
  const named = further.oneIn(4) ? inSession(marked, further) : marked;
  const { max_buffered_bytes } = settings.server;
  const isLarge = max_buffered_bytes !== undefined && further.oneIn(2);
  const target = isLarge ? withPad(named, max_buffered_bytes, further) : checkSize(named, settings);
  const leaves = random.oneIn(mood.leavesOneIn)
    ? {
        when: random.pick(['sent', 'begun'] as const),
        afterMs: time(random, 0, random.pick([5, 50, 2000])),
        how: random.pick(['end', 'reset'] as const),
      }
    : undefined;
  const common = {
    id,
    number,
    afterMs: isPipelined && random.oneIn(2) ? 0.01 : time(random, 0, mood.paceMs),
    isPipelined,
    leaves,
    pause: random.oneIn(25)
      ? { afterBytes: random.integer(0, 400), forMs: time(random, 0, 5000) }
      : undefined,
  };
  const { chat } = target;
  const asked = { id, chat };
  const someReply = (own: Random): Reply => {
    if (mood.isRefused && own.oneIn(2)) return anErrorStatus(own, REFUSALS);
    if (rare && own.oneIn(6)) return anEmptyAnswer(asked, own);
    return own.oneIn(mood.failsOneIn) ? aFailure(asked, own) : anAnswer(asked, own, mood.isSlow);
  };
  const isLong = ({ items }: Reply) => items.some(({ text }) => text.length > 200_000);
  const reply = (own: Random): Reply => {
    const one = someReply(own);
    return max_buffered_bytes !== undefined && isLong(one) ? answerWell(asked) : one;
  };
  const ids = chat ? settings.providers.map(({ id: provider }) => provider) : [];
  const replies = lazily(ids, random, (own) => list(own.integer(1, 4), () => reply(own)));
  const size = 300 + (target.body?.length ?? 0);
  const cuts = random.oneIn(6)
    ? list(random.integer(1, 3), () => ({
        at: random.integer(1, size),
        waitMs: time(random, 0, random.oneIn(6) ? 3000 : 20),
      })).toSorted((a, b) => a.at - b.at)
    : [];
  return { ...common, ...target, cuts, replies };
}

/** Adds a session, in other ways than `x-session-id`. */
function inSession(target: Target, random: Random): Target {
  const { body, chat } = target;
  const name = `s${random.integer(0, 2)}`;
  if (random.oneIn(2))
    return { ...target, headers: [...target.headers, ['x-session-affinity', name]] };
  if (!chat || chat.refusedWith !== undefined) return target;
  const promptCacheKey = random.oneIn(4) ? name.repeat(33) : name;
  const text = `,"prompt_cache_key":${JSON.stringify(promptCacheKey)}}`;
  return {
    ...target,
    body: body!.slice(0, body!.lastIndexOf('}')) + text,
    chat: { ...chat, promptCacheKey },
  };
}

function checkSize(target: Target, { server }: Settings): Target {
  const { body = '', chat } = target;
  const isTooLarge = Buffer.byteLength(body) > (server.max_body_bytes ?? Infinity);
  return chat && isTooLarge ? { ...target, chat: { ...chat, refusedWith: 413 } } : target;
}

/** Pads the body, so that few such bodies fit into memory together, or none. */
function withPad(target: Target, maxBytes: number, random: Random): Target {
  const { body = '', chat } = target;
  if (!chat || chat.refusedWith !== undefined) return target;
  const bytes = random.pick([100_000, 300_000, 600_000, 1_200_000]);
  const padded = `${body.slice(0, body.lastIndexOf('}'))},"pad":"${'x'.repeat(bytes)}"}`;
  const isTooLarge = Buffer.byteLength(padded) > maxBytes;
  return { ...target, body: padded, chat: { ...chat, refusedWith: isTooLarge ? 413 : undefined } };
}

type Target = Pick<Ask, 'method' | 'path' | 'version' | 'headers' | 'body' | 'isChunked' | 'chat'>;

function aTarget(id: string, isStream: boolean, settings: Settings, random: Random): Target {
  const number = Number(id.slice(1));
  const headers: [string, string][] = [['host', random.pick(HOSTS)]];
  headers.push(
    ...someTokens(settings, random).map((one): [string, string] => ['authorization', one]),
  );
  headers.push(['x-request-id', id]);
  const { trusted_proxies } = settings.server;
  if (trusted_proxies && random.oneIn(2)) headers.push(['x-forwarded-for', random.pick(FORWARDED)]);
  if (random.oneIn(12)) headers.push(['origin', random.pick(ORIGINS)]);
  if (random.oneIn(3)) headers.push(['x-session-id', `s${random.integer(0, 2)}`]);
  if (random.oneIn(6)) headers.push(['x-forwarded-by-name', 'by-name'], ['cookie', 'c=1']);
  const plain = { version: '1.1' as const, isChunked: false };
  if (random.oneIn(10)) {
    const [method, path] = random.pick([
      ['GET', '/v1/models'],
      ['GET', '/v1/models'],
      ['GET', '/health'],
      ['HEAD', '/health'],
      ['POST', '/health'],
      ['GET', '/v1/chat/completions'],
      ['GET', '/v1/models/'],
      ['GET', '/v1/models?a=/health'],
      ['GET', 'http://other.test/health?'],
      ['GET', '/heal%74h'],
      ['GET', '//health'],
      ['GET', '/HEALTH'],
      ['GET', '/v1/../health'],
      ['OPTIONS', '/health'],
      ['HEAD', '/v1/models'],
      ['POST', '/v1/responses'],
      ['OPTIONS', '/v1/models'],
      ['OPTIONS', '/v1/models'],
    ] as const);
    if (method === 'OPTIONS' && !random.oneIn(4))
      headers.push(['access-control-request-method', 'POST']);
    if (random.oneIn(2)) headers.push(['access-control-request-headers', 'x-title, authorization']);
    return { method, path, ...plain, headers };
  }
  const trace = `${number.toString(16).padStart(8, '0')}${'ab'.repeat(12)}`;
  const parent = `00-${trace}-00f067aa0ba902b7-01`;
  const parents = random.oneIn(16)
    ? random.pick([[], [parent, parent], ...WRONG_TRACES])
    : [parent];
  headers.push(...parents.map((one): [string, string] => ['traceparent', one]));
  headers.push(['content-type', 'application/json']);
  if (random.oneIn(4)) headers.push(['tracestate', random.pick(['v=1,w=2', 'x'.repeat(513), 'é'])]);
  const { body, chat } = aBody(id, isStream, settings, random);
  const asksToContinue = random.oneIn(12);
  // RFC 9110 10.1.1: a request without content may not have it.
  if (asksToContinue && body !== '') headers.push(['expect', '100-continue']);
  const isOld = random.oneIn(25);
  return {
    method: 'POST',
    path: CHAT_PATH,
    version: isOld ? '1.0' : '1.1',
    headers: isOld ? headers.filter(([name]) => name !== 'expect') : headers,
    body,
    isChunked: !isOld && random.oneIn(5),
    chat,
  };
}

/** Returns values for the `Authorization` header. */
function someTokens({ authKeys, clients }: Settings, random: Random): string[] {
  const keys = [...authKeys, ...clients.flatMap((one) => one.keys)];
  const key = keys.length > 0 ? random.pick(keys) : 'any key';
  if (!random.oneIn(12)) return [`Bearer ${key}`];
  return random.pick(tokensWith(key));
}

/** Addresses in `X-Forwarded-For`; 192.0.2.0/24 are trusted proxies. */
const FORWARDED = [
  '203.0.113.5',
  '198.51.100.9, 203.0.113.5',
  '203.0.113.5, 192.0.2.9',
  '203.0.113.5:80',
];
const WRONG_TRACES = [
  ['none'],
  [`ff-${'ab'.repeat(16)}-00f067aa0ba902b7-01`],
  [`00-${'0'.repeat(32)}-00f067aa0ba902b7-01`],
  [`00-${'ab'.repeat(16)}-${'0'.repeat(16)}-01`],
  [`00-${'AB'.repeat(16)}-00f067aa0ba902b7-01`],
  [`00-${'ab'.repeat(16)}-00f067aa0ba902b7-01-x`],
];

function aBody(id: string, isStream: boolean, settings: Settings, random: Random) {
  if (random.oneIn(25)) {
    const body = random.pick(WRONG_BODIES);
    const chat: ChatPlan = { model: '', isStream: false, asksForUsage: false, refusedWith: 400 };
    return { body, chat };
  }
  const ids = settings.providers.map((one) => one.id);
  const names = settings.aliases.map(({ name }) => name.replace('*', '0'));
  const direct = () => `${random.pick(ids)}/${random.pick(MODELS)}`;
  const model = random.oneIn(8)
    ? random.pick(['a', 'a/', 'm0', 'gone/m0', 'b', '/m0', 'a/deep/m0', 'a/"\u{1F600}"'])
    : names.length > 0 && random.oneIn(2)
      ? random.pick(names)
      : direct();
  const asksForUsage = isStream && random.oneIn(4);
  const options = asksForUsage ? { stream_options: { include_usage: true } } : {};
  const pad = random.oneIn(12) ? 'x'.repeat(random.integer(100, 9000)) : '';
  const messages = [{ role: 'user', content: `${id} "é" ${pad}` }];
  const members = {
    model,
    ...(isStream || random.oneIn(2) ? { stream: isStream } : {}),
    ...options,
  };
  const text = JSON.stringify({ seed: 1, ...members, messages, temperature: 1 });
  // Numbers a rebuilt body would change.
  const plain = text.replace('"seed":1', '"seed":9007199254740993').replace(':1}', ':1.0 }');
  const asked = { model, isStream, asksForUsage };
  const spelled = random.oneIn(4) ? spellRequest(plain, asked, random) : { body: plain, chat: {} };
  const chat: ChatPlan = { ...asked, ...spelled.chat };
  return { body: spelled.body, chat };
}

function someIncidents(settings: Settings, lengthMs: number, random: Random): Incident[] {
  const incidents: Incident[] = [];
  const atMs = () => 1 + Math.round(random.next() * lengthMs * 1000) / 1000;
  if (random.oneIn(6)) {
    const { providers, rateLimit } = someSettings(random);
    const known = new Set(settings.providers.map(({ id }) => id));
    const changed = providers.filter(({ id }) => known.has(id));
    const others = settings.providers.filter(({ id }) => !changed.some((one) => one.id === id));
    const kept = random.oneIn(2) ? settings.providers : [...changed, ...others];
    const { hasStore, providers: rows } = settings.rateLimit;
    const next = random.oneIn(2) ? settings.rateLimit : { ...rateLimit, hasStore, providers: rows };
    const server = { ...settings.server, retries: random.integer(0, 2) };
    const reloaded = { ...settings, server, providers: kept, rateLimit: next };
    incidents.push({ atMs: atMs(), kind: 'reload', settings: reloaded });
  }
  if (random.oneIn(10)) {
    const [timeoutMs, delayMs] = [random.pick([0, 500, 25_000]), random.pick([0, 0, 700])];
    incidents.push({ atMs: atMs(), kind: 'drain', timeoutMs, delayMs });
  }
  for (let isUp = false; settings.rateLimit.hasStore && random.oneIn(2); isUp = !isUp) {
    incidents.push({ atMs: atMs(), kind: 'store', isUp });
  }
  return incidents.toSorted((a, b) => a.atMs - b.atMs);
}

function someOutages(settings: Settings, lengthMs: number, random: Random): Outage[] {
  return list(random.pick([0, 1, 2]), () => {
    const fromMs = 1000 + random.next() * lengthMs;
    const toMs = fromMs + time(random, 100, 60_000);
    const isNetwork = random.oneIn(2);
    const asked = { id: 'outage', chat: undefined };
    const reply = isNetwork
      ? {
          ...anAnswer(asked, random, false),
          fault: random.pick(['refused', 'reset'] as const),
          connection: 'new' as const,
        }
      : { ...anErrorStatus(random), end: 'end' as const };
    return { provider: random.pick(settings.providers).id, fromMs, toMs, reply };
  });
}
