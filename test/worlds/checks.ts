/** The checks that hold in every world. Each has a name, which begins its problems. */

import {
  answeredBy,
  coursesOf,
  isFlagged,
  noticedAtMs,
  providerOf,
  type Course,
  type Report,
  type Visit,
} from './course.ts';
import type { Answer, Exchange, History } from './history.ts';
import { allowOf, pathOf, type Failure, type Reading } from './oracle.ts';
import { checkConnections } from './connections.ts';
import { checkHeaders } from './headers.ts';
import { checkLine, outcomeOf } from './line.ts';
import { checkIncidents } from './incidents.ts';
import { checkLog } from './log.ts';
import { checkLimits } from './limits.ts';
import { checkMetrics } from './metrics.ts';
import { checkModels } from './models.ts';
import { checkOrder } from './order.ts';
import { checkQueues } from './queues.ts';
import type { Ask, Plan } from './plan.ts';

/** The largest difference between two equal times. */
const CLOSE_MS = 0.01;
const LEAVING_MS = 1000;
const AFTER_DONE_MS = 5000;
/** The time limit for the drain at each world's end. */
const LAST_DRAIN_MS = 1000;

/** Returns a world's problems; each begins with its check's name. */
export function check(plan: Plan, history: History): string[] {
  const problems: string[] = [];
  const report: Report = (name, text, exchange) =>
    void problems.push(`${name}: ${exchange ? `${exchange.ask.id}: ` : ''}${text}`);
  for (const text of history.leftovers) report('afterwards', `left: ${text}`);
  const drain = drainOf(plan, history);
  const courses = coursesOf(history, drain.cutMs);
  checkSums(history, courses, report);
  checkSecrets(history, report);
  checkHealth(history, report);
  checkIncidents(history, courses, report);
  for (const exchange of history.exchanges) {
    checkEnds(exchange, report);
    checkLeaving(exchange, report);
  }
  for (const course of courses) {
    checkUpstream(course, report);
    checkVisits(course, report);
    checkAnswer(course, report);
    checkHeaders(course, report);
    checkLine(course, report);
  }
  checkOrder(history, courses, report);
  checkLimits(history, courses, report);
  checkQueues(history, courses, report);
  checkModels(history, courses, report);
  checkMetrics(history, report);
  checkConnections(history, drain, report);
  checkLog(history, courses, report);
  return problems;
}

/** When the drain closes the port and cancels requests in flight. Infinity without a drain. */
function drainOf({ incidents }: Plan, { events }: History) {
  const drain = events.find(({ kind }) => kind === 'drain');
  const planned = incidents.find((one) => one.kind === 'drain');
  if (!drain) return { closesMs: Infinity, cutMs: Infinity };
  const last = { delayMs: 0, timeoutMs: LAST_DRAIN_MS };
  const { delayMs, timeoutMs } = planned?.kind === 'drain' ? planned : last;
  return { closesMs: drain.atMs + delayMs, cutMs: drain.atMs + delayMs + timeoutMs };
}

const textOf = (answer: Answer) =>
  Buffer.concat(answer.pieces.map(({ bytes }) => bytes)).toString();

/** `secrets`: no answer and no line has a provider's or client's key. */
function checkSecrets({ events, exchanges }: History, report: Report): void {
  const settings = events.flatMap((event) => (event.kind === 'settings' ? event.settings : []));
  const keys = settings.flatMap(({ authKeys, clients, providers }) => [
    ...authKeys,
    ...clients.flatMap((one) => one.keys),
    ...providers.flatMap((one) => (one.enabled ? one.api_keys : [])),
  ]);
  const find = (text: string) => keys.find((key) => text.includes(key));
  for (const exchange of exchanges) {
    const { answer } = exchange;
    const found = answer && find(JSON.stringify([...answer.headers]) + textOf(answer));
    if (found) report('secrets', `its client is told ${found}`, exchange);
  }
  for (const event of events) {
    const found = event.kind === 'line' && find(JSON.stringify(event.line));
    if (found) report('secrets', `a line has ${found}`, event.exchange);
  }
}

/** `health`: a draining gateway reports `draining`. */
function checkHealth({ exchanges, events }: History, report: Report): void {
  const drainMs = events.find(({ kind }) => kind === 'drain')?.atMs ?? Infinity;
  for (const exchange of exchanges) {
    const { answer, ask, lines } = exchange;
    const isAsked = pathOf(ask) === '/health' && /^(?:GET|HEAD)$/.test(ask.method);
    if (!answer || !isAsked || answer.status === 400 || ask.leaves) continue;
    // The line, if there is one: a slow client may read the head much later.
    const isDraining = (lines[0]?.atMs ?? answer.headAtMs) >= drainMs;
    if (answer.status !== (isDraining ? 503 : 200)) report('health', `${answer.status}`, exchange);
    const status = isDraining ? 'draining' : 'healthy';
    const text = textOf(answer).replace(/"version":"[^"]+"/, '"version":"…"');
    const expected = ask.method === 'HEAD' ? '' : `{"status":"${status}","version":"…"}`;
    if (text !== expected) report('health', text, exchange);
  }
}

/**
 * `sums`: a request whose turn came has one access line, with as many tries as the providers saw.
 */
function checkSums(history: History, courses: readonly Course[], report: Report): void {
  for (const exchange of history.exchanges) {
    const { answer, ask, lines, tries } = exchange;
    if (ask.broken) continue;
    if (lines.length > 1) report('sums', `${lines.length} access lines`, exchange);
    if (lines.length === 0 && (answer || tries.length > 0))
      report('sums', 'no access line', exchange);
    const [only] = lines;
    const isCounted = answer && only && exchange.leftAtMs === undefined;
    if (isCounted && only.line['status'] !== answer.status) {
      report('sums', `the line has status ${String(only.line['status'])}`, exchange);
    }
  }
  for (const { exchange, tryLines } of courses) {
    const told = tryLines.filter(
      ({ outcome }) => outcome !== 'circuit_open' && outcome !== 'limit',
    );
    const seen = exchange.tries.map(({ provider }) => provider).join(' ');
    const line = told.map(({ provider }) => provider).join(' ');
    if (line !== seen)
      report('sums', `the line has the tries [${line}], there were [${seen}]`, exchange);
  }
}

/** `ends`: an answer ends once, a stream with `[DONE]` or one error event, and nothing follows. */
function checkEnds(exchange: Exchange, report: Report): void {
  const { answer, leftAtMs } = exchange;
  if (!answer) return;
  const hasLeft = leftAtMs !== undefined;
  if (answer.end === 'open' && !hasLeft) report('ends', 'the answer never ends', exchange);
  if (!/^text\/event-stream/i.test(answer.headers.get('content-type') ?? '')) return;
  const text = textOf(answer);
  const dones = text.match(/^data: *\[DONE\] *$/gm)?.length ?? 0;
  const errors = text.match(/^data: \{"error":\{"type"/gm)?.length ?? 0;
  if (dones + errors > 1) report('ends', `${dones} [DONE] and ${errors} error events`, exchange);
  if (answer.end === 'whole' && dones + errors === 0)
    report('ends', 'neither [DONE] nor an error', exchange);
  if (/^data: *(?:\[DONE\] *|\{"error":\{"type".*)\n\s*\S/m.test(text))
    report('ends', 'something behind its end', exchange);
}

/** `leaving`: no provider works for a client after it has left, and no try outlives its request. */
function checkLeaving(exchange: Exchange, report: Report): void {
  const { lines, tries } = exchange;
  // A delivered answer is not cancelled, even if its client never reads it (behaviour.md#leaving).
  const [last] = lines;
  const isDelivered =
    last?.line['outcome'] === 'ok' || (last?.atMs ?? Infinity) < (exchange.leftAtMs ?? 0);
  const leftAtMs = isDelivered ? Infinity : noticedAtMs(exchange);
  for (const { provider, end, endAtMs, atMs } of tries) {
    if (end === 'open') report('leaving', `the try at ${provider} never ends`, exchange);
    const lateMs = endAtMs - leftAtMs;
    if (lateMs > LEAVING_MS) report('leaving', `${provider} works ${lateMs} ms longer`, exchange);
    if (atMs > leftAtMs + CLOSE_MS) report('leaving', `${provider} is asked afterwards`, exchange);
    if (endAtMs > (lines[0]?.atMs ?? Infinity) + AFTER_DONE_MS + CLOSE_MS) {
      report('leaving', `${provider} is kept for longer than five seconds`, exchange);
    }
  }
}

/**
 * `bytes`: a provider gets the client's bytes and its own key. Only the model and `stream_usage`
 * may change them.
 */
function checkUpstream(course: Course, report: Report): void {
  const { exchange, visits } = course;
  const { ask } = exchange;
  const wrong = (text: string) => report('bytes', text, exchange);
  for (const { candidate, tries } of visits) {
    for (const { try: made } of tries) {
      if (made.body === undefined) continue;
      const settings = providerOf(course, candidate.provider);
      const { isStream, asksForUsage, model, usage } = ask.chat!;
      const { written = ['"model":', JSON.stringify(model)] } = ask.chat!;
      const isAdded = settings.stream_usage && isStream && !asksForUsage;
      const added = '"stream_options":{"include_usage":true},';
      const [now, asking] = isAdded ? (usage ?? ['{', `{${added}`]) : ['', ''];
      const expected = ask
        .body!.replace(written.join(''), () => written[0] + JSON.stringify(candidate.model))
        .replace(now, () => asking);
      if (made.method !== 'POST' || made.path !== pathOf(ask))
        wrong(`${made.provider} gets ${made.method} ${made.path}`);
      if (made.body !== expected) wrong(`${made.provider} gets ${made.body}, and not ${expected}`);
      const [parent = '', ...more] = ask.headers.flatMap(([name, value]) =>
        name === 'traceparent' ? value : [],
      );
      const hasTrace =
        more.length === 0 && /^00-(?!0+-)[\da-f]{32}-(?!0+-)[\da-f]{16}-01$/.test(parent);
      const trace = made.headers.get('traceparent')!;
      if (!/^00-[\da-f]{32}-[\da-f]{16}-\d\d$/.test(trace)) wrong(`the trace ${trace}`);
      const headers: Record<string, string | undefined> = {
        'x-request-id': ask.id,
        'content-type': 'application/json',
        accept: isStream ? 'text/event-stream' : 'application/json',
        'accept-encoding': 'identity',
        traceparent: hasTrace ? parent : trace,
        tracestate: hasTrace ? stateOf(ask) : undefined,
        'x-forwarded-by-name':
          settings.forward_headers.length > 0
            ? ask.headers.find(([name]) => name === 'x-forwarded-by-name')?.[1]
            : undefined,
      };
      for (const [name, value] of Object.entries(headers)) {
        const got = made.headers.get(name);
        if (got !== value) wrong(`${made.provider} gets ${name}: ${got}, and not ${value}`);
      }
      for (const name of made.headers.keys()) {
        const isOwn = name === 'user-agent' || name === 'authorization';
        if (!isOwn && !(name in headers)) wrong(`${made.provider} gets the header ${name}`);
      }
      const key = made.headers.get('authorization')?.replace('Bearer ', '') ?? '';
      if (!settings.api_keys.includes(key)) wrong(`${made.provider} gets the key ${key}`);
    }
  }
}

/** Returns a valid `tracestate` (W3C Trace Context 3.3): a list in at most 512 characters. */
function stateOf({ headers }: Ask): string | undefined {
  const state = headers.find(([name]) => name === 'tracestate')?.[1] ?? '';
  return /^[ -~]{1,512}$/.test(state) ? state : undefined;
}

/** `order`: the candidates, how often each was asked, and the waits before them. */
function checkVisits(course: Course, report: Report): void {
  const { candidates, exchange, visits } = course;
  const wrong = (text: string) => report('order', text, exchange);
  if (!candidates || !('list' in candidates)) {
    if (visits.length > 0) wrong('a provider is asked for a refused request');
    return;
  }
  const { atMost, list, balanced, isBalanced, weights } = candidates;
  const { fallbackOn } = course.settings;
  const name = ({ provider, model }: { provider: string; model: string }) => `${provider}/${model}`;
  const front = new Set(list.slice(0, balanced).map(name));
  const rest = list.slice(balanced).map(name);
  for (const [index, visit] of visits.entries()) {
    const { candidate } = visit;
    const isFirstAgain =
      atMost > 1 && index >= atMost && name(candidate) === name(visits[0]!.candidate);
    const isExpected =
      index < balanced ? front.delete(name(candidate)) : isNamed(rest[index - balanced], candidate);
    const isLate = isFirstAgain || visit.hasWaited;
    if (index >= atMost ? !isLate : !isExpected) wrong(`${name(candidate)} is not next`);
    // Only a weighted alias's first candidate is drawn; the rest keep the order of the settings.
    const behind = list
      .slice(0, balanced)
      .map(name)
      .filter((one) => one !== name(visits[0]!.candidate));
    const isInPlace = visit.hasWaited || name(candidate) === behind[index - 1];
    if (weights && index > 0 && index < balanced && !isInPlace)
      wrong(`${name(candidate)} is not next by its place`);
    const before = visits[index - 1];
    if (index === 1 && before && mayGoOn(before, isBalanced, fallbackOn) === false) {
      wrong(`${name(candidate)} is asked although ${name(before.candidate)} has given the answer`);
    }
    if (before && before.tries.at(-1)?.reading?.kind === 'stream')
      wrong('a provider is asked after the answer has begun');
    if (before && before.tries.at(-1)?.reading?.kind === 'answer')
      wrong('a provider is asked after the answer');
    if (isFlagged(before)) wrong('a provider is asked after a refusal by a content policy');
    checkTries(visit, course, wrong);
  }
  const last = visits.at(-1);
  const isBroken = course.exchange.lines[0]!.atMs >= course.brokenAtMs - CLOSE_MS;
  if (!last || isBroken || last.tries.at(-1)?.reading === undefined) return;
  const isOver = visits.length >= atMost;
  const [first] = visits;
  const isDue =
    visits.length === 1
      ? mayGoOn(last, isBalanced, fallbackOn) === true
      : last.tries.at(-1)!.reading!.kind === 'failure' && !isFlagged(last);
  if (!isOver && isDue) wrong(`no provider is asked after ${name(last.candidate)}`);
  const isPostponed = first!.skipped === 'circuit_open' && visits.length === atMost;
  if (isPostponed && last.tries.at(-1)!.reading!.kind === 'failure' && !isFlagged(last))
    wrong('the first is not asked after all');
}

/** Whether `expected` names this candidate. It may list several models. */
function isNamed(expected = '', { provider, model }: Visit['candidate']): boolean {
  const [id, ...models] = expected.split(/\/| or /);
  return id === provider && (expected === `${id}/${model}` || models.includes(model));
}

/** Whether a second candidate may be asked after this visit; undefined if both are right. */
function mayGoOn(
  { skipped, tries }: Visit,
  isBalanced: boolean,
  fallbackOn: readonly number[],
): boolean | undefined {
  if (skipped) return skipped === 'circuit_open' ? true : undefined;
  const failures = tries.flatMap(({ reading }) =>
    reading?.kind === 'failure' ? reading.failure : [],
  );
  const last = failures.at(-1);
  if (!last || tries.at(-1)!.reading?.kind !== 'failure') return undefined;
  if (isBalanced && (last.isOfKey || last.status === 404 || last.status === 429)) return true;
  // With several keys, a 429 takes precedence over a 401 or 403.
  const goesOn = ({ fallsBack, isPolicy, status }: Failure) =>
    fallbackOn.includes(status) && !isPolicy ? true : fallsBack;
  const hasOther = failures.some((one) => goesOn(one) !== goesOn(last));
  return hasOther ? undefined : goesOn(last);
}

function checkTries(
  { candidate, tries }: Visit,
  course: Course,
  wrong: (text: string) => void,
): void {
  const { api_keys, retries: own } = providerOf(course, candidate.provider);
  const maxRetries = own ?? course.settings.server.retries;
  let retries = 0;
  let hasReconnected = false;
  let keys = new Set<string | undefined>();
  for (const [index, { try: made, reading }] of tries.entries()) {
    const key = made.headers.get('authorization');
    const before = tries[index - 1];
    if (before) {
      const waitMs = made.atMs - before.resultAtMs;
      const failed = before.reading?.kind === 'failure' ? before.reading.failure : undefined;
      // At a drain's deadline, the failure and the deadline may come in either order.
      const isCut = before.reading === undefined && course.endAtMs >= course.brokenAtMs;
      if (!failed) return isCut ? undefined : wrong('a try is repeated without its failure');
      const isKeys = api_keys.length > 1 && failed.restsKey === true && !keys.has(key);
      const isAtOnce = failed.isRepeatedAtOnce === true && !hasReconnected;
      if (waitMs < CLOSE_MS) {
        if (!isKeys && !isAtOnce) return wrong('a try is repeated at once');
        if (!isKeys) {
          hasReconnected = true;
          keys = new Set();
        }
      } else {
        const stepMs = Math.min(8000, 500 * 2 ** retries);
        const afterMs = (failed.asksFor ?? 0) * 1000;
        const [leastMs, mostMs] = [Math.max(stepMs / 2, afterMs), Math.max(stepMs, afterMs)];
        retries += 1;
        keys = new Set();
        const isOther = api_keys.length > 1 && failed.restsKey === true;
        if (failed.isRetried === false && !isOther) wrong('a try is repeated that must not be');
        if (retries > maxRetries) wrong(`there are ${retries} retries of ${maxRetries}`);
        const isInTime = waitMs > leastMs - CLOSE_MS && waitMs < mostMs + CLOSE_MS;
        if (!isInTime && !isOther) wrong(`it waits ${waitMs} ms, and not ${leastMs} to ${mostMs}`);
      }
    }
    keys.add(key);
    const isLast = index === tries.length - 1;
    if (!isLast || reading?.kind !== 'failure') continue;
    const { failure } = reading;
    const isBroken = course.exchange.lines[0]!.atMs >= course.brokenAtMs - CLOSE_MS;
    if (failure.isRepeatedAtOnce && !hasReconnected && !isBroken)
      wrong('a stale connection is not repeated');
  }
  return undefined;
}

/** `truth` and `bytes`: the client gets the documented answer, and a stream without delay. */
function checkAnswer(course: Course, report: Report): void {
  const { early, exchange } = course;
  const { answer, ask, leftAtMs } = exchange;
  if (!answer || leftAtMs !== undefined || exchange.lines[0]!.atMs >= course.brokenAtMs) return;
  const wrong = (text: string) => report('truth', text, exchange);
  if (answer.headers.get('x-request-id') !== ask.id) wrong('another x-request-id');
  if (early.kind === 'health') return checkStatus(answer, [200, 503], wrong);
  const isHead = ask.method === 'HEAD';
  if (early.kind === 'refused') return checkFailure(answer, early.failure, { isHead }, wrong);
  if (early.kind !== 'counted') return checkStatus(answer, [204], wrong);
  const line = exchange.lines[0]!.line;
  // `limits` checks whether this 429 is right.
  if (answer.status === 429 && course.visits.length === 0) return undefined;
  if (early.to === 'models') return checkStatus(answer, [200], wrong);
  if (early.to !== 'chat') {
    if (answer.headers.get('allow') !== allowOf(ask, course.settings)) wrong('another Allow');
    return checkFailure(answer, early.to, { isHead }, wrong);
  }
  const { candidates } = course;
  if (candidates && !('list' in candidates)) return checkFailure(answer, candidates, {}, wrong);
  const asked = course.visits.filter(({ tries }) => tries.length > 0);
  const answered = answeredBy(course);
  if (!answered) return wrong('an answer without a try');
  const { failure, last, told } = answered;
  const { provider } = told.candidate;
  const context = { provider, hasRepeated: hasRepeated(course, asked), course };
  const isEarly = exchange.ask.chat!.isStream && course.settings.server.stream_keepalive > 0;
  const own = answer.headers.get('x-gateway-provider');
  if (own !== context.provider && !(isEarly && own === undefined))
    wrong(`it is said to be from ${own}`);
  const tries = exchange.tries.length > 1 ? `${exchange.tries.length}` : undefined;
  if (!isEarly && answer.headers.get('x-gateway-tries') !== tries)
    wrong(`x-gateway-tries ${answer.headers.get('x-gateway-tries')}, and not ${tries}`);
  if (!last) return checkStatus(answer, isEarly ? [200, 429] : [429], wrong);
  const { reading } = last;
  if (!reading) return wrong('an answer to a try without a result');
  if (line['outcome'] !== outcomeOf(failure)) wrong(`the outcome ${String(line['outcome'])}`);
  if (reading.kind === 'stream') return checkStream(answer, reading, context, wrong);
  if (reading.kind === 'answer') {
    checkStatus(answer, [last.try.reply.status], wrong);
    if (textOf(answer) !== reading.text)
      report('bytes', `not the provider's: ${textOf(answer)}`, exchange);
    return undefined;
  }
  if (isEarly && answer.status === 200) return checkEvent(textOf(answer), failure!, context, wrong);
  return checkFailure(answer, failure!, context, wrong);
}

const sameAs = (one: object, other: object) => JSON.stringify(one) === JSON.stringify(other);

/**
 * Whether the gateway has repeated the request, also with another key. An immediate reconnect does
 * not count.
 */
function hasRepeated(course: Course, asked: readonly Visit[]): boolean {
  if (asked.some(({ candidate }) => !sameAs(candidate, course.visits[0]!.candidate))) return true;
  for (const { tries } of asked) {
    for (const [index, { try: made }] of tries.entries()) {
      const before = tries[index - 1];
      if (before && made.atMs - before.resultAtMs > CLOSE_MS) return true;
      const failed = before?.reading?.kind === 'failure' ? before.reading.failure : undefined;
      if (failed && !failed.isRepeatedAtOnce) return true;
    }
  }
  return false;
}

interface Context {
  readonly provider?: string;
  readonly hasRepeated?: boolean | undefined;
  readonly isHead?: boolean;
}

type Wrong = (text: string) => void;

function checkStatus(answer: Answer, allowed: readonly number[], wrong: Wrong): void {
  if (!allowed.includes(answer.status))
    wrong(`status ${answer.status}, and not ${allowed.join(' or ')}`);
}

function checkFailure(answer: Answer, failure: Failure, context: Context, wrong: Wrong): void {
  checkStatus(answer, [failure.status], wrong);
  const text = textOf(answer);
  if (context.isHead !== true) checkError(text, failure, context, wrong);
  else if (text !== '') wrong('an answer to HEAD has a body');
  const { headers } = answer;
  const told = headers.get('retry-after');
  if (failure.retryAfter !== undefined && told !== `${failure.retryAfter}`)
    wrong(`Retry-After ${told}`);
  if (failure.status === 401 && failure.type === 'authentication_error') {
    if (headers.get('www-authenticate') !== 'Bearer') wrong('no WWW-Authenticate');
  }
  const isFinal = failure.isFinal === true || context.hasRepeated === true;
  const isOpen = (failure.retryAfter ?? 0) > 60;
  const should = headers.get('x-should-retry');
  if (isFinal && should !== 'false') wrong('x-should-retry is not false');
  if (!isFinal && !isOpen && should === 'false') wrong('x-should-retry is false');
}

function errorIn(text: string): Record<string, unknown> | undefined {
  try {
    return (JSON.parse(text) as { error?: Record<string, unknown> }).error;
  } catch {
    return undefined;
  }
}

function checkError(text: string, failure: Failure, context: Context, wrong: Wrong): void {
  const error = errorIn(text);
  if (!error) return wrong(`no error object: ${text.slice(0, 300)}`);
  const expected: Record<string, unknown> = {
    type: failure.type,
    code: failure.code,
    provider: failure.isOfProvider ? context.provider : undefined,
    status: failure.code === 'API_ERROR' ? failure.status : undefined,
    ...(failure.status === 429 && failure.retryAfter ? { retry_after: failure.retryAfter } : {}),
  };
  for (const [name, value] of Object.entries(expected)) {
    if (error[name] !== value)
      wrong(`error.${name} is ${String(error[name])}, and not ${String(value)}`);
  }
  const message = String(error['message']);
  if (failure.exactly !== undefined && message !== failure.exactly)
    wrong(`the message: ${message}`);
  if (failure.says !== undefined && !message.includes(failure.says))
    wrong(`the message: ${message}`);
}

function checkEvent(text: string, failure: Failure, context: Context, wrong: Wrong): void {
  const [, event] = /(?:^|[\r\n])data: (\{"error":\{"type".*)\n\n$/.exec(text) ?? [];
  if (event === undefined) return wrong(`no error event: ${text}`);
  return checkError(event, failure, context, wrong);
}

type Stream = Extract<Reading, { kind: 'stream' }>;

function checkStream(
  answer: Answer,
  reading: Stream,
  context: Context & { readonly course: Course },
  wrong: Wrong,
): void {
  const { course } = context;
  checkStatus(answer, [200], wrong);
  if (textOf(answer).lastIndexOf('\ufeff') > 0) wrong('a byte order mark that is not its first');
  const isKeptAlive = course.settings.server.stream_keepalive > 0;
  // The gateway's comments may come anywhere, and a provider's comments before its answer begins.
  const strip = (text: string) =>
    isKeptAlive ? text.replace(/^\ufeff?:.*(?:\r\n?|\n){1,2}|^\ufeff/gm, '') : text;
  const got = strip(textOf(answer));
  const expected = strip(reading.passes.map(({ text }) => text).join(''));
  if (!got.startsWith(expected)) return wrong(`the stream is ${got}\nand not ${expected}`);
  const rest = got.slice(expected.length);
  if (reading.failure) checkEvent(`\n${rest}`, reading.failure, context, wrong);
  else if (rest !== '') wrong(`something behind its end: ${rest}`);
  if (isKeptAlive || course.exchange.isDelayed) return undefined;
  const offsetMs = course.visits.at(-1)!.tries.at(-1)!.try.atMs;
  let passed = 0;
  let index = 0;
  let received = 0;
  for (const { atMs, text } of reading.passes) {
    passed += Buffer.byteLength(text);
    while (received < passed) received += answer.pieces[index++]!.bytes.length;
    const dueMs = offsetMs + Math.max(atMs, reading.atMs);
    const gotMs = answer.pieces[index - 1]!.atMs;
    if (Math.abs(gotMs - dueMs) > CLOSE_MS)
      return wrong(`an event at ${gotMs}, and not at ${dueMs}`);
  }
  return undefined;
}
