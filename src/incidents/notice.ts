/**
 * Incidents in words, and refusals of a client by its own limits. A text has times in ISO 8601,
 * which the page shows as local times.
 */

import { UNREAD } from './affected-requests.ts';
import type { IncidentKind } from '../request/incident-kind.ts';
import { type Incident, type Moment, timeOf } from './incident.ts';

/** The words of a kind of incident (docs/incidents.md). */
type Words = readonly [title: string, action: string, fault: string];

const KINDS: Readonly<Record<IncidentKind, Words>> = {
  unreachable: [
    'no connection',
    'Look whether its address is right and reachable from here.',
    'the provider, or the network to it',
  ],
  lookup_failed: [
    'name lookup fails',
    'Look whether its name in base_url is right, and whether the name server answers.',
    'the name server, or our base_url',
  ],
  certificate: [
    'its certificate is not accepted',
    'Tell the provider, or set ca_file if an authority of your own has signed it.',
    'the provider’s certificate, or our ca_file',
  ],
  key_refused: ['our key refused', 'Replace the key in the settings, then send SIGHUP.', 'our key'],
  rate_limited: [
    'limits us (429)',
    'Add a key, or set [providers] fallback.',
    'our limit at the provider',
  ],
  errors: [
    'errors',
    'Look at the provider’s status page, or set [providers] fallback.',
    'the provider',
  ],
  timeout: ['no answer in time', 'Set [providers] fallback, or raise timeout.', 'the provider'],
  stall: [
    'streams fall silent',
    'Set [providers] fallback, or lower stream_idle_timeout.',
    'the provider',
  ],
  cut: [
    'answers break off',
    'Look at the provider’s server, and at proxies before it.',
    'the provider, or a proxy before it',
  ],
  nonsense: [
    'unusable answers',
    'Look whether base_url is that of an OpenAI-compatible API.',
    'the provider, or its base_url',
  ],
  slow: [
    'slow',
    'If connect is slow look after the network, else after the provider.',
    'the provider, or the network to it',
  ],
  lookup_slow: [
    'name lookup slow',
    'Look after the name server of this machine.',
    'the name server',
  ],
  model_list: [
    'no list of models',
    'Correct base_url, or name the models in [providers.<id>].',
    'the provider, or its base_url',
  ],
  descriptors: ['no descriptors left', 'Raise ulimit -n, or add an instance.', 'this machine'],
  memory: [
    'short of memory',
    'Limit the client that holds most, or raise max_buffered_bytes.',
    'the client that holds most',
  ],
  log_lines: [
    'log lines lost',
    'Look whether standard output is read, and has room.',
    'the reader of the log',
  ],
  store: ['store of rate limits away', 'Look after [rate_limit] store.', 'the store'],
  reload: [
    'new settings refused, former ones in use',
    'Correct the file, try it with --check, and send SIGHUP.',
    'our settings',
  ],
  clock: [
    'clock set, times before are of the old clock',
    'Look after the time service of the machine.',
    'this machine',
  ],
};
/** Begins the cause if a setting names the model that is not there. */
const OF_SETTING = /^404: (?:aliases|providers)\./;
const NO_SUCH_MODEL: Words = [
  'no such model (404)',
  'Correct the name of the model in the settings, then send SIGHUP.',
  'our settings',
];
/** Begins the cause if some of a provider's keys are refused. */
const KEYS_REFUSED = /^(\d+ of \d+) keys, /;
/** Without a provider, all that were asked are slow. */
const ALL_SLOW: Words = [
  'all providers slow',
  'Look at the load of this machine, and at its network.',
  'this machine, or its network',
];

export type Icon = 'good' | 'warn' | 'bad' | 'off';
type Facts = ReturnType<Incident['toFacts']>;

/** The affected requests for a name of a model, or of a client's refusals. */
interface Affected {
  readonly name: string;
  /**
   * The parts of all requests that failed, and that another provider answered or the gateway
   * refused, from 0 to 1.
   */
  readonly shares: readonly [failed: number, answeredOrRefused: number];
  readonly text: string;
  readonly rest: string;
  readonly clients?: string | undefined;
  /** Words for the page's filter that find the requests. */
  readonly words: string;
}

/** An incident, or a client's refusals by its own limits, in words. */
export interface Notice {
  readonly id: string;
  readonly icon: Icon;
  /** Undefined for refusals. */
  readonly kind?: IncidentKind;
  readonly provider?: string | undefined;
  /** Set if these are refusals. */
  readonly client?: string;
  /** The provider with the failing models, the client, or `gateway`. */
  readonly subject: string;
  /** The failing models; empty if all fail, undefined without a failing model. */
  readonly models?: readonly string[] | undefined;
  readonly title: string;
  /** Whose fault it is. */
  readonly fault: string;
  /** The effect on requests now; of an ended incident, the requests that it hit. */
  readonly effect: string;
  readonly action: string;
  readonly since: string;
  /** How long ago it began. */
  readonly age: string;
  readonly ended: string | undefined;
  readonly causes: readonly string[];
  readonly failed: number;
  readonly answered: number;
  /** Answered by a slow provider. */
  readonly slow: number;
  readonly affected: readonly Affected[];
  readonly more?: number | undefined;
  readonly beganAtMs: number;
  readonly endedAtMs: number | undefined;
}

type Piece = string | number | false | undefined;

export const formatCount = (value: number) => value.toLocaleString('en');
export const formatOf = (part: number, all: number) =>
  `${formatCount(part)} of ${formatCount(all)}`;
/** Joins the pieces that are not empty. */
export const join = (pieces: readonly Piece[], separator = ', ') =>
  pieces.filter(Boolean).join(separator);

/** Returns a duration as text: `8 min 20 s`. `isRough` leaves out seconds from a minute on. */
export function formatDuration(seconds: number, isRough = false): string {
  const [minutes, hours] = [Math.floor(seconds / 60), Math.floor(seconds / 3600)];
  if (minutes === 0) return `${seconds} s`;
  if (hours >= 48) return `${Math.floor(hours / 24)} d ${hours % 24} h`;
  if (hours > 0) return `${hours} h ${minutes % 60} min`;
  return `${minutes} min${isRough ? '' : ` ${seconds % 60} s`}`;
}

function timesOf(since: Moment, ended: Moment | undefined) {
  const seconds = Math.floor((performance.now() - since.atMs) / 1000);
  return {
    since: timeOf(since.time),
    age: formatDuration(seconds, true),
    ended: timeOf(ended?.time),
    beganAtMs: since.atMs,
    endedAtMs: ended?.atMs,
  };
}

export const isSlowKind = (kind: IncidentKind | undefined) =>
  kind === 'slow' || kind === 'lookup_slow';

/** Returns the words for a kind with this cause. */
export function wordsOf({
  kind,
  cause,
  provider,
}: Pick<Facts, 'kind' | 'cause' | 'provider'>): Words {
  if (kind === 'slow' && provider === undefined) return ALL_SLOW;
  if (kind === 'errors' && OF_SETTING.test(cause)) return NO_SUCH_MODEL;
  const [title, ...rest] = KINDS[kind];
  const [, keys] = (kind === 'key_refused' && KEYS_REFUSED.exec(cause)) || [];
  return [keys ? `${keys} keys refused` : title, ...rest];
}

type AffectedFacts = Facts['affected'][number];

/** Names the streams of a model, or its complete answers. */
export const answersOf = (isStream: boolean) => (isStream ? 'streams' : 'complete answers');

function describeAffected(one: AffectedFacts, { all_models: areAll, provider }: Facts): Affected {
  const { name, failed, good, answered, by, clients, stream } = one;
  const all = failed + (good ?? 0) + answered;
  const isUnread = name === UNREAD;
  const named = { name, clients, words: join([isUnread ? 'failed' : name, provider], ' ') };
  if (failed + answered === 0) {
    return { ...named, shares: [0, 0], text: formatCount(all), rest: ' answered slowly' };
  }
  const text = [
    formatCount(failed || answered),
    good !== undefined && `of ${formatCount(all)}`,
    !areAll && stream !== undefined && answersOf(stream),
    failed > 0 && 'failed',
  ];
  const moved = `${failed > 0 ? `, ${formatCount(answered)}` : ''} answered by ${by}`;
  const rest = isUnread ? ' before their bodies were read' : answered > 0 ? moved : '';
  return { ...named, shares: [failed / all, answered / all], text: join(text, ' '), rest };
}

/** Returns each cause once, a model's or a state's behind its name. */
function causesOf({ key, cause, models = [], provider, states = [] }: Facts): string[] {
  const others = models.filter((one) => one.cause !== cause);
  return [
    join([key && `key ${key}`, cause], ': '),
    ...others.map((one) => join([one.model, one.cause], ': ')),
    ...states.map((one) => join([wordsOf({ ...one, provider })[0], one.cause], ': ')),
  ].filter(Boolean);
}

const sumOf = (affected: readonly AffectedFacts[], count: 'failed' | 'answered' | 'good') =>
  affected.reduce((sum, one) => sum + (one[count] ?? 0), 0);

/** Returns the names, and behind them their clients in brackets. */
function namesOf(affected: readonly AffectedFacts[]): string {
  const clients = [...new Set(affected.flatMap((one) => one.clients?.split(', ') ?? []))];
  const names = join(affected.map(({ name }) => name));
  return join([names, clients.length > 0 && `(${join(clients)})`], ' ');
}

/** Returns the names and clients that have lost requests, and what others have answered. */
function describeHits(affected: readonly AffectedFacts[]): string {
  const hitsOf = (count: 'failed' | 'answered', words: string) => {
    const hit = affected.filter((one) => one[count] > 0);
    return hit.length > 0 && `${formatCount(sumOf(hit, count))} ${words}: ${namesOf(hit)}`;
  };
  const rest = affected.filter(({ failed, answered }) => failed + answered === 0);
  const hits = [hitsOf('failed', 'failed'), hitsOf('answered', 'answered by others')];
  return join([...hits, namesOf(rest)], ' · ');
}

/** Describes an incident by its facts, which may have been redacted. */
export function describeIncident(incident: Incident, facts: Facts): Notice {
  const { affected, ended, kind, models = [], provider, quiet_since: quietSince, until } = facts;
  const [failed, answered] = [sumOf(affected, 'failed'), sumOf(affected, 'answered')];
  const isFailing = (failed > 0 && !quietSince) || kind === 'descriptors' || kind === 'memory';
  const listed = facts.all_models ? [] : models.map(({ model }) => model!);
  const names = [...listed, listed.length > 0 && facts.more_models && `${facts.more_models} more`];
  const who = provider ?? 'gateway';
  const inModels = listed.length > 1 ? `${who} (${join(names)})` : join([who, ...names], '/');
  const [title, action, fault] = wordsOf(facts);
  const isHarmless = provider !== undefined && !facts.models && affected.length === 0;
  const effects = [
    kind === 'store' && 'each gateway limits by itself',
    until !== undefined && Date.parse(until) > Date.now() && `asks us to wait until ${until}`,
    failed === 0 && answered > 0 && 'other providers answer',
    isHarmless && !isSlowKind(kind) && 'no request has failed',
    facts.since_start && 'no success since the gateway’s start',
    quietSince && `no failure since ${quietSince}`,
  ];
  return {
    id: incident.id,
    icon: ended ? 'off' : isFailing ? 'bad' : 'warn',
    kind,
    provider,
    subject: inModels,
    models: facts.models && listed,
    title,
    fault,
    effect: ended ? describeHits(affected) : join(effects),
    action: ended ? '' : action,
    ...timesOf(incident.since, incident.ended),
    causes: causesOf(facts),
    failed,
    answered,
    slow: kind === 'slow' ? sumOf(affected, 'good') : 0,
    affected: ended ? [] : affected.map((one) => describeAffected(one, facts)),
    more: ended ? undefined : facts.more,
  };
}

/** A client's refusals by its own limits, with less than a minute between. */
export interface Refusals {
  readonly client: string;
  /** The latest refusal's limit, and how full it was. */
  readonly limit: string;
  readonly refused: number;
  readonly since: Moment;
  /** The latest refusal. */
  readonly last: Moment;
  /** The client's refused requests and all its requests in the last minute. */
  readonly limited: number;
  readonly requests: number;
}

/** Describes refusals, which are no incident. They have ended without one in the last minute. */
export function describeRefusals(refusals: Refusals): Notice {
  const { client, last, limit, limited, refused, requests, since } = refusals;
  const isOver = limited === 0;
  const row: Affected = {
    name: 'last minute',
    shares: [0, limited / requests],
    text: `${formatOf(limited, requests)} refused`,
    rest: ' by the gateway, no provider asked',
    words: `${client} rate_limited`,
  };
  return {
    id: `client ${client}`,
    icon: isOver ? 'off' : 'warn',
    client,
    subject: client,
    title: 'at its own limit',
    fault: 'the client',
    effect: isOver ? `${formatCount(refused)} refused` : '',
    action: isOver ? '' : `Raise the limit in [clients.${client}], or ask the client to send less.`,
    ...timesOf(since, isOver ? last : undefined),
    causes: [limit],
    failed: 0,
    answered: 0,
    slow: 0,
    affected: isOver ? [] : [row],
  };
}

/**
 * Returns what lasts, the worst incidents first and clients at their limits last, and what has
 * ended, the latest first.
 */
export function sortNotices(notices: readonly Notice[]) {
  const rank = ({ client, icon }: Notice) => (client === undefined ? Number(icon !== 'bad') : 2);
  const countOf = ({ answered, failed }: Notice) => failed + answered;
  // Refusals are not counted, so clients are in the order of their shares.
  const shareOf = ({ affected }: Notice) => affected[0]?.shares[1] ?? 0;
  return {
    lasting: notices
      .filter(({ ended }) => !ended)
      .toSorted((a, b) => rank(a) - rank(b) || countOf(b) - countOf(a) || shareOf(b) - shareOf(a)),
    ended: notices.filter((one) => one.ended).toSorted((a, b) => b.endedAtMs! - a.endedAtMs!),
  };
}

/** A line about what has ended, or several such lines under one that stands for them. */
interface EndedLine {
  readonly id: string;
  readonly subject: string;
  readonly text: string;
  readonly cause?: string | undefined;
  readonly lines?: readonly EndedLine[];
}

/** More lines would push the page's charts away. */
const MAX_ENDED_LINES = 3;

function toEndedLine({ causes, effect, ended, ...one }: Notice): EndedLine {
  const { id, since, subject, title } = one;
  const seconds = Math.floor(Date.parse(ended!) / 1000) - Math.floor(Date.parse(since) / 1000);
  const span = seconds > 0 && `${since} – ${ended} · ${formatDuration(seconds)}`;
  const facts = [span || since, effect];
  return { id, subject, text: join([title, join(facts, ' · ')], ' '), cause: causes[0] };
}

/** Returns a line for each provider with ended incidents, and one for all beyond a few. */
export function foldEnded(ended: readonly Notice[]): EndedLine[] {
  const groups = new Map<string, Notice[]>();
  for (const one of ended) {
    const name = one.provider ?? one.client ?? one.title;
    groups.set(name, [...(groups.get(name) ?? []), one]);
  }
  const lines = Array.from(groups, ([name, group]): EndedLine => {
    const own = group.map(toEndedLine);
    if (own.length === 1) return own[0]!;
    const text = `${own.length} times in the last hour, the last until ${group[0]!.ended}`;
    return { id: `of ${name}`, subject: name, text, lines: own };
  });
  const rest = lines.splice(MAX_ENDED_LINES);
  if (rest.length > 0) {
    lines.push({ id: 'more', subject: `${rest.length} more`, text: '', lines: rest });
  }
  return lines;
}
