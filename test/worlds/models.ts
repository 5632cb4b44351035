/** `models`: what `GET /v1/models` says, and how its providers are asked (decisions.md, Models). */

import type { Course, Report } from './course.ts';
import type { History, Try } from './history.ts';
import { mayName } from './oracle.ts';
import type { ModelDetails } from './plan.ts';

const LIMIT_MS = 3000;
const FRESH_MS = 300_000;
const CLOSE_MS = 0.01;
/** Of a store. */
const STORE_MS = 50;

export function checkModels(history: History, courses: readonly Course[], report: Report): void {
  for (const list of history.lists) {
    const { atMs, end, endAtMs, headAtMs = Infinity, provider, reply } = list;
    if (end === 'open') report('leaving', `the question for models at ${provider} never ends`);
    if (endAtMs > atMs + LIMIT_MS + CLOSE_MS)
      report('leaving', `${provider} is asked for models for longer than three seconds`);
    if (reply.status !== 200 && endAtMs > headAtMs + CLOSE_MS)
      report('leaving', `${provider} goes on with a list that nobody reads`);
  }
  // With other settings it is another provider, whose models are not known.
  if (history.events.filter(({ kind }) => kind === 'settings').length > 1) return;
  checkFetches(history.lists, report);
  for (const course of courses) checkList(course, history.lists, report);
}

/** What it says, if it is read. */
function modelsOf({ end, reply }: Try) {
  const isRead = end === 'over' && reply.status === 200 && !reply.fault && reply.end === 'end';
  return isRead ? reply.items[0]?.models : undefined;
}

/** One at a time, and none while the list is fresh. */
function checkFetches(lists: readonly Try[], report: Report): void {
  const latest = new Map<string, Try>();
  for (const list of lists) {
    const { atMs, provider } = list;
    const before = latest.get(provider);
    latest.set(provider, list);
    if (!before) continue;
    if (before.endAtMs > atMs) report('models', `${provider} is asked twice at the same time`);
    if (modelsOf(before) && atMs < before.endAtMs + FRESH_MS - CLOSE_MS)
      report('models', `${provider} is asked although its list is fresh`);
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
  const entries = new Map<string, ModelDetails & { owned_by: string }>();
  const registered = settings.providers.filter(({ enabled }) => enabled);
  for (const { default_model, id, model_details = {}, models } of registered) {
    const known = lists.findLast(
      (one) => one.provider === id && modelsOf(one) && one.endAtMs <= endAtMs,
    );
    const listed = new Map((known ? modelsOf(known)! : []).map((one) => [one.id, one]));
    for (const name of [...(models ?? listed.keys()), ...(default_model ? [default_model] : [])]) {
      const details = { ...listed.get(name), ...model_details[name] };
      entries.set(`${id}/${name}`, { ...details, owned_by: id });
    }
  }
  for (const { name, targets } of settings.aliases) {
    const target = targets.find((one) => registered.some(({ id }) => one.startsWith(`${id}/`)));
    if (target === undefined) continue;
    const id = target.split('/', 1)[0]!;
    const details = registered.find((one) => one.id === id)!.model_details?.[
      target.slice(id.length + 1)
    ];
    entries.set(name, entries.get(target) ?? { ...details, owned_by: id });
  }
  const expected = [...entries]
    .filter(([id]) => mayName(id, settings, early.client))
    .map(([id, { context_length = '', owned_by }]) => `${id} of ${owned_by} ${context_length}`);
  const text = Buffer.concat(answer.pieces.map(({ bytes }) => bytes)).toString();
  const { data } = JSON.parse(text) as {
    data: { id: string; object: string; owned_by: string; context_length?: number }[];
  };
  const got = data.map(
    ({ context_length = '', id, owned_by }) => `${id} of ${owned_by} ${context_length}`,
  );
  if (got.toSorted().join('\n') !== expected.toSorted().join('\n'))
    wrong(`the list has ${got.join(', ')}, and not ${expected.join(', ')}`);
}
