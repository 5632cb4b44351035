/**
 * `headers`: an answer has the gateway's own headers, and the provider's headers on the allow-list
 * (docs/behaviour.md#headers, docs/headers.md).
 */

import { answeredBy, providerOf, type Course, type Report } from './course.ts';
import type { Answer } from './history.ts';
import type { Reply } from './plan.ts';

const FRAMING = ['connection', 'keep-alive', 'date', 'content-length', 'transfer-encoding'];
const OWN = ['x-request-id', 'content-type', 'x-content-type-options'];
const OF_CHATS = ['x-gateway-provider', 'x-gateway-tries', 'server-timing'];
const OF_STREAMS = ['cache-control', 'x-accel-buffering'];
const OF_ERRORS = ['x-should-retry', 'retry-after', 'www-authenticate', 'allow'];
const REQUEST_IDS =
  'x-request-id request-id mistral-correlation-id x-ds-trace-id x-generation-id apim-request-id x-amzn-requestid cf-ray';
const OF_LIMITS = /^x-ratelimit-(?:limit|remaining|reset)-(?:requests|tokens)$/;
const RATE_LIMIT = /^(?:(?:x|anthropic)-)?ratelimit/;
const CLOSE_MS = 0.11;

/** Whether `Connection` names this header (RFC 9110 7.6.1). */
function isHopByHop(header: string, { headers }: Reply): boolean {
  const names = headers.find(([name]) => name === 'connection')?.[1] ?? '';
  return names
    .toLowerCase()
    .split(/\s*,\s*/)
    .includes(header);
}

/** The provider's own id for a request. */
export function upstreamIdOf(reply: Reply): string | undefined {
  const given = new Map(reply.headers.filter(([name]) => !isHopByHop(name, reply)));
  const name = REQUEST_IDS.split(' ').find((one) => given.has(one));
  return name && given.get(name);
}

export function checkHeaders(course: Course, report: Report): void {
  const { exchange } = course;
  const { answer } = exchange;
  if (!answer) return;
  const wrong = (text: string) => report('headers', text, exchange);
  const expected = expectedFrom(course);
  const limits = limitsOf(course);
  const own = [...FRAMING, ...OWN, ...OF_ERRORS];
  if (exchange.ask.chat) own.push(...OF_CHATS, 'x-upstream-request-id');
  if (/^text\/event-stream/i.test(answer.headers.get('content-type') ?? '')) {
    own.push(...OF_STREAMS);
    if (answer.headers.get('x-accel-buffering') !== 'no') wrong('a stream may be buffered');
    if (answer.headers.get('cache-control') !== 'no-cache, no-transform')
      wrong('a stream may be rewritten');
  }
  if (limits) checkLimitHeaders(limits, course, answer, wrong);
  for (const [name, value] of answer.headers) {
    if (limits && OF_LIMITS.test(name)) continue;
    const isCors = name.startsWith('access-control-') || name === 'vary';
    const isPassed = expected?.get(name) !== undefined || (!expected && mayPass(name, course));
    if (!own.includes(name) && !isCors && !isPassed) wrong(`${name}: ${value} passes`);
  }
  for (const [name, value] of expected ?? []) {
    const got = answer.headers.get(name);
    const isOverruled =
      (name === 'x-should-retry' && got === 'false') || (limits && OF_LIMITS.test(name));
    if (got !== value && !isOverruled) wrong(`${name} is ${got}, and not ${value}`);
  }
  checkCors(course, answer, wrong);
  checkTiming(course, answer, wrong);
}

/** The client's own limits by unit; undefined if it has none. */
function limitsOf({ early, settings }: Course) {
  const name = early.kind === 'counted' ? early.client : undefined;
  const client = settings.clients.find((one) => one.name === name);
  if (!client) return undefined;
  const burst = client.requests_per_second > 0 ? client.burst_capacity : 0;
  const { requests_per_minute = 0, tokens_per_day = 0, tokens_per_minute = 0 } = client;
  const limits = {
    requests: [burst, requests_per_minute].filter(Boolean),
    tokens: [tokens_per_minute, tokens_per_day].filter(Boolean),
    tokensPerDay: tokens_per_day,
  };
  return limits.requests.length + limits.tokens.length > 0 ? limits : undefined;
}

/** A client with limits sees a limit of each unit, and 0 for the limit that has refused it. */
function checkLimitHeaders(
  limits: NonNullable<ReturnType<typeof limitsOf>>,
  { exchange }: Course,
  { headers, status }: Answer,
  wrong: (text: string) => void,
): void {
  const reason = status === 429 ? String(exchange.lines[0]?.line['reason']) : '';
  for (const unit of ['requests', 'tokens'] as const) {
    const value = (name: string) => headers.get(`x-ratelimit-${name}-${unit}`);
    const [limit, remaining, reset] = ['limit', 'remaining', 'reset'].map(value);
    const shown = `${unit}: ${limit} ${remaining} ${reset}`;
    if (limits[unit].length === 0) {
      if (limit ?? remaining ?? reset) wrong(`${shown} without a limit`);
      continue;
    }
    const isPart = limits[unit].includes(Number(limit)) && Number(remaining) <= Number(limit);
    const isTime = /^(?:0s|[1-9]\d{0,2}ms|(?:(?:\d+h)?\d{1,2}m)?\d{1,2}s)$/.test(reset ?? '');
    if (!isPart || !/^\d+$/.test(remaining!) || !isTime) wrong(shown);
    // A window ends even if nothing of it is used.
    const isWindow = unit === 'tokens' && Number(limit) === limits.tokensPerDay;
    if ((remaining === limit && !isWindow) !== (reset === '0s')) wrong(`${shown}: is it full?`);
    const isRefusing = unit === 'tokens' ? /^client_tokens/ : /^client(?:_requests.*)?$/;
    if (isRefusing.test(reason) && remaining !== '0') wrong(`${shown} after a refusal`);
  }
}

const mayPass = (name: string, { visits }: Course) =>
  visits.length > 0 && (RATE_LIMIT.test(name) || name === 'x-returned');

/** The passed headers from the provider, by name; undefined if the documents leave them open. */
function expectedFrom(course: Course): ReadonlyMap<string, string | undefined> | undefined {
  const { endAtMs, brokenAtMs, exchange, settings } = course;
  const { failure, last, told } = answeredBy(course) ?? {};
  const isEarly = exchange.ask.chat?.isStream === true && settings.server.stream_keepalive > 0;
  if (!told) return course.visits.length > 0 ? undefined : new Map();
  const { api_keys, return_headers } = providerOf(course, told.candidate.provider);
  if (!last || endAtMs >= brokenAtMs || isEarly || api_keys.length > 1) return undefined;
  if (last.try.headAtMs === undefined) return new Map();
  const { reply } = last.try;
  const headers = reply.headers.filter(([name]) => !isHopByHop(name, reply));
  // From a failed reply only the id passes.
  const isRead = !failure || last.reading?.kind === 'stream' || failure.isReported === true;
  const passes = ([name, value]: readonly [string, string]) =>
    RATE_LIMIT.test(name) ||
    name === 'x-should-retry' ||
    (return_headers.includes(name) &&
      /^[\t -~]{1,4096}$/.test(value) &&
      !value.includes('key-of-'));
  return new Map([
    ...(isRead ? headers.filter(passes) : []),
    ['x-upstream-request-id', upstreamIdOf(last.try.reply)],
  ]);
}

/** With `cors`, every page may read every answer and send its own headers. */
function checkCors(
  course: Course,
  { headers, status }: Answer,
  wrong: (text: string) => void,
): void {
  const { early, exchange, settings } = course;
  const names = [...headers.keys()].filter((name) => !FRAMING.includes(name));
  const ofCors = names.filter((name) => name.startsWith('access-control-'));
  if (!settings.server.cors) {
    if (ofCors.length > 0) wrong(`without cors there is ${ofCors.join()}`);
    return;
  }
  if (headers.get('access-control-allow-origin') !== '*') wrong('no page may read it');
  if (headers.has('access-control-allow-credentials')) wrong('cookies are allowed');
  const exposed = headers.get('access-control-expose-headers')?.split(', ') ?? [];
  const hidden = names.filter((name) => !ofCors.includes(name) && !exposed.includes(name));
  if (status !== 204 && hidden.length > 0) wrong(`no page can see ${hidden.join()}`);
  if (early.kind !== 'preflight') return;
  const asked = exchange.ask.headers.find(([name]) => name === 'access-control-request-headers');
  const expected = {
    'access-control-allow-headers': asked?.[1],
    'access-control-allow-methods': 'GET, HEAD, POST, OPTIONS',
    'access-control-max-age': '86400',
    vary: 'access-control-request-headers',
  };
  for (const [name, value] of Object.entries(expected)) {
    if (headers.get(name) !== value) wrong(`${name} is ${headers.get(name)}`);
  }
}

/** The gateway's own share is 0 here, because virtual time stands still while it works. */
function checkTiming(course: Course, answer: Answer, wrong: (text: string) => void): void {
  const { settings, visits } = course;
  const timing = answer.headers.get('server-timing');
  const match = /^gateway;dur=(\d+\.\d)(?:, queue;dur=\d+\.\d)?(?:, upstream;dur=(\d+\.\d))?$/.exec(
    timing ?? '',
  );
  if (visits.length === 0) return;
  const isEarly = course.exchange.ask.chat!.isStream && settings.server.stream_keepalive > 0;
  if (!match) {
    if (!isEarly) wrong(`server-timing is ${timing}`);
    return;
  }
  const [only, ...others] = visits.flatMap(({ tries }) => tries);
  const isPlain = only && others.length === 0 && only.reading && course.endAtMs < course.brokenAtMs;
  if (!isPlain || isEarly || course.exchange.isDelayed || settings.rateLimit.hasStore) return;
  const dueMs = only.resultAtMs - only.try.atMs;
  if (Math.abs(Number(match[2]) - dueMs) > CLOSE_MS)
    wrong(`server-timing is ${timing}, and not ${dueMs}`);
  if (Number(match[1]) > CLOSE_MS) wrong(`the gateway takes ${match[1]} ms`);
}
