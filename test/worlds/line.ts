/** `line`: an access line agrees with its request's history (docs/log.md). */

import { answeredBy, providerOf, type Course, type ReadTry, type Report } from './course.ts';
import { upstreamIdOf } from './headers.ts';
import { isRefusal } from './log.ts';
import { pathOf, type Failure } from './oracle.ts';
import type { Reply } from './plan.ts';

/** A tolerance, because times in the line are rounded. */
const CLOSE_MS = 1;
const PEER = '192.0.2.7';
const LEVELS: Readonly<Record<string, string>> = {
  rate_limited: 'warn',
  upstream_error: 'warn',
  timeout: 'warn',
  internal_error: 'error',
};
const FIELDS =
  'time level message request_id trace_id method path remote client status provider model upstream_model upstream_request_id stream duration_ms first_byte_ms waited_ms bytes outcome reason limit cause finish_reason prompt_tokens completion_tokens cached_tokens reasoning_tokens usage_added tries headers';
const LIMITS =
  /^(?:global|client(?:_(?:requests_per_minute|tokens_per_(?:minute|day)|concurrency))?|provider(?:_requests_per_minute|_concurrency)?|server_concurrency|memory)$/;

type Wrong = (text: string) => void;

export function checkLine(course: Course, report: Report): void {
  const { brokenAtMs, early, exchange } = course;
  const { answer, ask } = exchange;
  const { atMs, line } = exchange.lines[0]!;
  const wrong = (text: string) => report('line', text, exchange);
  for (const name of Object.keys(line))
    if (!FIELDS.split(' ').includes(name)) wrong(`a field ${name}`);
  const outcome = String(line['outcome']);
  // A page's preflight of /health is logged like any other request.
  const isHealth = pathOf(ask) === '/health' && ask.method !== 'OPTIONS' && outcome === 'ok';
  // A drain's cut is no bug, but the request may also have failed by itself in that moment.
  const isShutDown = line['reason'] === 'The gateway is shutting down';
  const isCut = outcome === 'internal_error' && atMs >= brokenAtMs && isShutDown;
  // `checkRefusals` has the level of a refusal that may be summed up.
  const level = isRefusal(line) ? line['level'] : isCut ? 'warn' : (LEVELS[outcome] ?? 'info');
  const logged = JSON.stringify(headersOf(course));
  if (JSON.stringify(line['headers']) !== logged)
    wrong(`headers is ${JSON.stringify(line['headers'])}, and not ${logged}`);
  const { chat } = ask;
  const isRead =
    course.candidates !== undefined && 'list' in course.candidates && course.visits.length > 0;
  check({
    level: isHealth ? 'debug' : level,
    method: ask.method,
    path: pathOf(ask),
    remote: remoteOf(course),
    client: 'client' in early ? early.client : undefined,
    ...(isRead ? { model: chat!.model, stream: chat!.isStream } : {}),
    ...(isRead && hasTrace(course) ? { trace_id: traceOf(course) } : {}),
  });
  function check(expected: Record<string, unknown>): void {
    for (const [name, value] of Object.entries(expected)) {
      if (line[name] !== value) wrong(`${name} is ${String(line[name])}, and not ${String(value)}`);
    }
  }
  if (!answer || exchange.leftAtMs !== undefined || atMs >= brokenAtMs) return;
  const bytes = answer.pieces.reduce((sum, one) => sum + one.bytes.length, 0);
  check({ bytes });
  const near = (name: string, dueMs: number) => {
    if (Math.abs(Number(line[name]) - dueMs) > CLOSE_MS)
      wrong(`${name} is ${String(line[name])}, and not ${dueMs}`);
  };
  if (!exchange.behind && !exchange.isDelayed) {
    // A failed stream's connection ends some time after its last byte.
    const endAtMs = answer.end === 'cut' ? answer.pieces.at(-1)!.atMs : answer.endAtMs;
    near('duration_ms', endAtMs - course.begunAtMs);
    if (!chat?.isStream) near('first_byte_ms', answer.headAtMs - course.begunAtMs);
  }
  const streamed = course.visits.at(-1)?.tries.at(-1);
  // Comments alone are no token.
  if (chat?.isStream && answer.status === 200 && streamed?.reading?.kind !== 'stream')
    check({ first_byte_ms: undefined });
  else if (streamed?.reading?.kind === 'stream')
    near('first_byte_ms', streamed.resultAtMs - course.begunAtMs);
  const text = Buffer.concat(answer.pieces.map((one) => one.bytes)).toString();
  const [, type, message] =
    /"error":\{"type":"([a-z_]+)","message":("(?:[^"\\]|\\.)*")/.exec(text) ?? [];
  const told = message && (JSON.parse(message) as string);
  const { failure, last, told: visit } = answeredBy(course) ?? {};
  if (visit) check({ provider: visit.candidate.provider });
  if (!last) {
    if (outcome === 'ok') check({ reason: undefined });
    // Also if a comment has begun the stream.
    else if (type === 'rate_limit_error') checkLimit();
    else if (told) check({ reason: refusalOf(course) ?? told });
    return;
  }
  function checkLimit(): void {
    const reason = String(line['reason']);
    const isFitting = reason === 'memory' || reason.startsWith('provider') === Boolean(visit);
    if (!LIMITS.test(reason) || !isFitting) wrong(`the limit ${reason}`);
    if (line['limit'] === undefined && reason !== 'memory') wrong('no limit');
  }
  const { reading, try: made } = last;
  const settingsOf = providerOf(course, made.provider);
  const isAdded = settingsOf.stream_usage && chat!.isStream && !chat!.asksForUsage;
  check({
    usage_added: isAdded || undefined,
    limit: undefined,
    reason: failure && reasonOf(failure, told),
  });
  if (settingsOf.api_keys.length === 1) {
    const id = made.headAtMs === undefined ? undefined : upstreamIdOf(made.reply);
    check({ upstream_model: visit!.candidate.model, upstream_request_id: id });
  }
  if (reading && reading.kind !== 'failure' && !failure) {
    const { finishReason = 'none', usage } = reading.facts;
    check({
      finish_reason: finishReason,
      prompt_tokens: usage?.prompt_tokens,
      completion_tokens: usage?.completion_tokens,
      cached_tokens: usage?.prompt_tokens_details?.cached_tokens,
      reasoning_tokens: usage?.completion_tokens_details?.reasoning_tokens,
    });
  } else if (reading?.kind === 'failure')
    check({ finish_reason: undefined, prompt_tokens: undefined });
  const tries = course.visits.flatMap((one) => one.tries);
  const lines = course.tryLines.filter(
    (one) => one.outcome !== 'circuit_open' && one.outcome !== 'limit',
  );
  for (const [index, one] of tries.entries()) checkTry(one, lines[index] ?? {}, course, wrong);
}

function checkTry(
  { reading, resultAtMs, try: made }: ReadTry,
  line: Readonly<Record<string, unknown>>,
  course: Course,
  wrong: Wrong,
): void {
  if (!reading) return;
  const { api_keys } = providerOf(course, made.provider);
  const key = api_keys.indexOf(made.headers.get('authorization')!.replace('Bearer ', '')) + 1;
  const isSeen = made.headAtMs !== undefined;
  const expected = {
    status: isSeen ? made.reply.status : undefined,
    key: api_keys.length > 1 ? key : undefined,
    upstream_request_id: isSeen ? upstreamIdOf(made.reply) : undefined,
    ...(reading.kind === 'stream'
      ? {}
      : { outcome: outcomeOf(reading.kind === 'failure' ? reading.failure : undefined) }),
    ...(reading.kind === 'failure'
      ? { url: `https://${made.provider}.test${pathOf(course.exchange.ask)}` }
      : {}),
  };
  for (const [name, value] of Object.entries(expected)) {
    if (line[name] !== value)
      wrong(`${name} of a try is ${String(line[name])}, and not ${String(value)}`);
  }
  if (reading.kind === 'failure' && line['cause'] === undefined)
    wrong('a try fails without a cause');
  if (reading.kind === 'failure' && !hasCause(String(line['cause']), reading.failure, made.reply))
    wrong(`a try has the cause ${String(line['cause'])}`);
  const dueMs = resultAtMs - made.atMs;
  if (Math.abs(Number(line['duration_ms']) - dueMs) > CLOSE_MS)
    wrong(`a try takes ${String(line['duration_ms'])} ms, and not ${dueMs}`);
}

/** The setting that names a missing model, before the provider's text. */
const SETTING = /^(?:aliases\.[^:]+|providers\.\w+\.default_model): /;

/**
 * Whether the cause names the passed limit, the provider's own text, or the reply's first 200
 * characters or fewer.
 */
function hasCause(whole: string, failure: Failure, reply: Reply): boolean {
  const { code, exactly, isGone, isReported } = failure;
  const [setting = ''] = SETTING.exec(whole) ?? [];
  if (isReported && (setting !== '') !== Boolean(isGone)) return false;
  const cause = whole.slice(setting.length);
  if (code === 'TIMEOUT') return /\d ms(?:: no connection was made)?$/.test(cause);
  const [, text] = /^API error: \d+ - ([^]{1,190})/.exec(exactly ?? '') ?? [];
  if (!isReported || text === undefined) return true;
  const type = new Map(reply.headers).get('content-type')?.split(';', 1)[0];
  const instead = `${reply.status}, ${type}, "${text}"`;
  if (cause === instead) return true;
  const [, words] = /^\d+, \S+, "(.*)"$/.exec(cause) ?? [];
  const body = reply.items.map((item) => item.text).join('') + reply.rest;
  if (words !== undefined) return /<(?:!|html)/i.test(body) && body.includes(words);
  return type !== 'text/html' && cause.startsWith(text.slice(0, 150));
}

/** Returns a failure's outcome in the log. */
export function outcomeOf(failure: Failure | undefined): string {
  if (!failure) return 'ok';
  if (failure.isRejected) return 'rejected';
  if (failure.type === 'rate_limit_error') return 'rate_limited';
  if (failure.type === 'timeout_error') return 'timeout';
  return failure.code === 'INTERNAL_ERROR' ? 'internal_error' : 'upstream_error';
}

/** Returns the message to the client, without the provider's own text. */
function reasonOf(failure: Failure, told: string | undefined): string | undefined {
  if (failure.type === 'rate_limit_error') return 'upstream';
  return failure.reason ?? told;
}

function refusalOf({ candidates, early, exchange }: Course): string | undefined {
  if (early.kind === 'refused' && early.failure.status === 401) {
    if (early.client) return 'expired token';
    const sent = exchange.ask.headers.filter(([name]) => name === 'authorization');
    const isToken = sent.length === 1 && /^bearer +[^ ]/i.test(sent[0]![1].trim());
    return isToken ? 'unknown token' : 'no token';
  }
  if (early.kind === 'counted' && typeof early.to === 'object') return early.to.reason;
  const isModel = candidates && !('list' in candidates) && candidates.status === 404;
  return isModel ? 'model not allowed for this client' : undefined;
}

/** Returns the client's address: behind a trusted proxy, the last address other than a proxy's. */
function remoteOf({ exchange, settings }: Course): string {
  const named = exchange.ask.headers.find(([name]) => name === 'x-forwarded-for')?.[1];
  if (!settings.server.trusted_proxies || named === undefined) return PEER;
  const addresses = named.split(', ').map((one) => one.replace(/:\d+$/, ''));
  return addresses.findLast((one) => !one.startsWith('192.0.2.')) ?? PEER;
}

const SHOWN_CHARACTERS = 200;

/** Returns the client's headers in the line, in the order of `[logging] headers`. */
function headersOf({ exchange, settings }: Course): Record<string, string> | undefined {
  const names = settings.logging.headers?.map((name) => name.toLowerCase()) ?? [];
  const headers = names.flatMap((name) => {
    const values = exchange.ask.headers.filter(([one]) => one === name).map(([, value]) => value);
    const shown = values.join(', ').slice(0, SHOWN_CHARACTERS);
    const text = shown.replace('key-of-a-1', '[secret]').replaceAll('\t', String.raw`\u0009`);
    return values.length > 0 ? [[name, text] as const] : [];
  });
  return headers.length > 0 ? Object.fromEntries(headers) : undefined;
}

const traceOf = ({ exchange: { ask } }: Course) =>
  ask.headers.find(([name]) => name === 'traceparent')?.[1].split('-')[1] ?? '';
/** Whether the trace is the generator's: it begins with the request's number. */
const hasTrace = (course: Course) =>
  /^0{5}[\da-f]{3}(?:ab){12}$/.test(traceOf(course)) &&
  course.exchange.ask.headers.filter(([name]) => name === 'traceparent').length === 1;
