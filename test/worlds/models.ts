/**
 * `models`: the answer to `GET /v1/models`, and the requests for its providers' lists
 * (docs/behaviour.md#list).
 */

import { keyOf, type Course, type Report } from './course.ts';
import type { History, Try } from './history.ts';
import { aliasFor, mayName, starOf } from './oracle.ts';
import type { ProviderSettings } from './plan.ts';

const LIMIT_MS = 3000;
const ERROR_BODY_MS = 1000;
const FRESH_MS = 300_000;
/** After this time, an unreadable list is asked for again (docs/incidents.md). */
const FAILED_MS = 10_000;
const KEY_STATUSES = new Set([401, 402, 403, 429]);
const CLOSE_MS = 0.01;
/** How late a store may make a request. */
const STORE_MS = 50;

export function checkModels(history: History, courses: readonly Course[], report: Report): void {
  const overMs = Math.max(...history.events.map(({ atMs }) => atMs));
  for (const list of history.lists) {
    // The admin listener asks for a list again by itself, also after the world is over.
    if (list.end === 'open' && list.atMs > overMs - LIMIT_MS) continue;
    const { atMs, end, endAtMs, headAtMs = Infinity, provider, reply } = list;
    if (end === 'open') report('leaving', `the question for models at ${provider} never ends`);
    if (endAtMs > atMs + LIMIT_MS + CLOSE_MS)
      report('leaving', `${provider} is asked for models for longer than three seconds`);
    // Only the body of a 400 is read, because its words may be about the key.
    const readMs = reply.status === 400 ? ERROR_BODY_MS : 0;
    if (reply.status !== 200 && endAtMs > headAtMs + readMs + CLOSE_MS)
      report('leaving', `${provider} goes on with a list after its refusal`);
  }
  // With other settings it is another provider, whose models are not known.
  if (history.events.filter(({ kind }) => kind === 'settings').length > 1) return;
  const [settings] = courses.map((course) => course.settings);
  for (const provider of settings?.providers ?? []) {
    const fetches = fetchesFrom(history.lists.filter((one) => one.provider === provider.id));
    // A list in the limit's last millisecond may be read or not.
    if (fetches.some(isAtLimit)) return;
    checkFetches(fetches, provider, courses, report);
  }
  for (const course of courses) checkList(course, history.lists, report);
}

/** Returns the list's models, if it came in time. */
function modelsOf({ end, pieces, reply }: Try) {
  const hasCome = end === 'over' || pieces.length > 0;
  const isRead = hasCome && reply.status === 200 && !reply.fault && reply.end === 'end';
  return isRead ? reply.items[0]?.models : undefined;
}

/** A fetch tries one key after another, until a key is not refused. */
interface Fetch {
  readonly tries: Try[];
  readonly atMs: number;
  /** When the fetch ended, and for how long no other may begin. */
  endAtMs: number;
  restMs: number;
}

function fetchesFrom(lists: readonly Try[]): Fetch[] {
  const fetches: Fetch[] = [];
  for (const one of lists) {
    const last = fetches.at(-1);
    const isNext = last && Math.abs(one.atMs - last.endAtMs) < CLOSE_MS;
    const own = isNext ? last : { tries: [], atMs: one.atMs, endAtMs: 0, restMs: 0 };
    if (own !== last) fetches.push(own);
    own.tries.push(one);
    own.endAtMs = one.endAtMs;
    own.restMs = modelsOf(one) ? FRESH_MS : FAILED_MS;
  }
  return fetches;
}

/** Whether the limit passed while the last list came. */
function isAtLimit({ atMs, endAtMs, tries }: Fetch): boolean {
  return endAtMs > atMs + LIMIT_MS - 1 && tries.at(-1)!.pieces.length > 0;
}

/**
 * Checks a provider's fetches: one at a time, with unrefused keys, and none while the list is
 * fresh. Without a fresh list, there must be a fetch.
 */
function checkFetches(
  fetches: readonly Fetch[],
  { api_keys, enabled, id, models }: ProviderSettings,
  courses: readonly Course[],
  report: Report,
): void {
  const wrong = (text: string, exchange?: Course['exchange']) =>
    report('models', `${id} ${text}`, exchange);
  const wasRefused = courses.some(({ exchange }) =>
    exchange.tries.some(
      (one) =>
        one.provider === id &&
        (KEY_STATUSES.has(one.reply.status) ||
          one.reply.items.some(({ kind }) => kind === 'error')),
    ),
  );
  for (const [index, { atMs, endAtMs, tries }] of fetches.entries()) {
    if (models || !enabled) wrong('is asked for its models');
    const keys = new Set(tries.map(keyOf));
    if (keys.size < tries.length || [...keys].some((key) => !api_keys.includes(key)))
      wrong(`is asked for its models with ${[...keys].join()}`);
    const refused = tries.filter(
      ({ headAtMs, reply }) => headAtMs && KEY_STATUSES.has(reply.status),
    );
    // The words of a 400 about the key may come too late.
    const mayGoOn = (one: Try) => refused.includes(one) || one.reply.items[0]?.error?.refusesKey;
    if (!tries.slice(0, -1).every(mayGoOn)) wrong('is asked with more keys');
    const isRefused = refused.includes(tries.at(-1)!) && tries.length < api_keys.length;
    if (isRefused && !wasRefused && endAtMs < atMs + LIMIT_MS) wrong('is asked with too few keys');
    const before = fetches[index - 1];
    if (before && before.endAtMs > atMs) wrong('is asked twice at the same time');
    if (before && atMs < before.endAtMs + before.restMs - CLOSE_MS)
      wrong('is asked although its list is fresh');
  }
  for (const { begunAtMs, brokenAtMs, early, endAtMs, exchange } of courses) {
    if (early.kind !== 'counted' || early.to !== 'models' || models || !enabled) continue;
    if (exchange.answer?.status !== 200 || endAtMs >= brokenAtMs) continue;
    const isKnown = fetches.some(
      (one) =>
        one.atMs <= begunAtMs + STORE_MS + CLOSE_MS &&
        begunAtMs < one.endAtMs + one.restMs + CLOSE_MS,
    );
    if (!isKnown) wrong('is not asked for its models', exchange);
  }
}

function checkList(course: Course, lists: readonly Try[], report: Report): void {
  const { begunAtMs, brokenAtMs, early, endAtMs, exchange, settings } = course;
  const { answer } = exchange;
  if (early.kind !== 'counted' || early.to !== 'models') return;
  if (!answer || answer.status !== 200 || endAtMs >= brokenAtMs) return;
  const wrong = (text: string) => report('models', text, exchange);
  if (answer.headAtMs > begunAtMs + LIMIT_MS + STORE_MS && !exchange.isDelayed)
    wrong('it takes longer than three seconds');
  const entries = new Map<string, object>();
  const registered = settings.providers.filter(({ enabled }) => enabled);
  const add = (id: string, owned_by: string, shown: object = {}, created = 0) =>
    entries.set(id, { id, object: 'model', created, owned_by, ...shown });
  for (const { default_model, id, model_details = {}, models } of registered) {
    const known = lists.findLast(
      (one) => one.provider === id && modelsOf(one) && one.endAtMs <= endAtMs,
    );
    const listed = new Map((known ? modelsOf(known)! : []).map((one) => [one.id, one]));
    for (const name of [...(models ?? listed.keys()), ...(default_model ? [default_model] : [])]) {
      const { created, shown } = listed.get(name) ?? {};
      add(`${id}/${name}`, id, { ...shown, ...model_details[name] }, created);
    }
  }
  for (const { name, targets } of settings.aliases) {
    const target = targets.find((one) => registered.some(({ id }) => one.startsWith(`${id}/`)));
    if (target === undefined || name.includes('*')) continue;
    const id = target.split('/', 1)[0]!;
    const details = registered.find((one) => one.id === id)!.model_details?.[
      target.slice(id.length + 1)
    ];
    if (entries.has(target)) entries.set(name, { ...entries.get(target), id: name });
    else add(name, id, details);
  }
  const isHidden = (model: string) =>
    registered.some(({ hide_models = [], id }) =>
      hide_models.some((pattern) =>
        new RegExp(`^${id}/${pattern.replaceAll('*', '.*')}$`).test(model),
      ),
    );
  for (const model of [...entries.keys()].filter(isHidden)) entries.delete(model);
  const shown = [...entries];
  for (const { name, targets } of settings.aliases.filter((alias) => alias.name.includes('*'))) {
    const first = targets.find((one) => registered.some(({ id }) => one.startsWith(`${id}/`)));
    for (const [model, entry] of shown) {
      const star = first && starOf(first, model);
      const id = name.replace('*', star ?? '*');
      // An exact alias wins, even if none of its providers is registered.
      if (star !== undefined && aliasFor(id, settings)?.name === name)
        entries.set(id, { ...entry, id });
    }
  }
  const expected = [...entries].filter(([id]) => mayName(id, settings, early.client));
  const text = Buffer.concat(answer.pieces.map(({ bytes }) => bytes)).toString();
  const { data } = JSON.parse(text) as { data: object[] };
  const sorted = (all: readonly object[]) => all.map(spell).toSorted().join('\n');
  const [got, due] = [sorted(data), sorted(expected.map(([, entry]) => entry))];
  if (got !== due) wrong(`the list has ${got}\nand not ${due}`);
}

/** Returns the entry as JSON, with its members sorted by name. */
function spell(entry: object): string {
  return JSON.stringify(Object.entries(entry).toSorted(([a], [b]) => (a < b ? -1 : 1)));
}
