/**
 * `connections`: when the gateway closes a connection, and how it answers bytes other than HTTP
 * (docs/behaviour.md#uploads, #failed-streams, #shutdown).
 */

import type { Report } from './course.ts';
import type { Event, Exchange, History, Line } from './history.ts';

const CLOSE_MS = 0.01;
/** How long a client may go on sending: without a byte, and in all. The check runs each second. */
const [QUIET_MS, LINGER_MS, CHECK_MS] = [5000, 30_000, 1000];
/** How long an idle connection is kept after the port is closed. The check runs each 100 ms. */
const [GRACE_MS, POLL_MS] = [1000, 100];

/** The delay from a stream's error event to its connection's end. */
const FAILED_STREAM_MS = 2000;

type Drain = Readonly<Record<'closesMs' | 'cutMs', number>>;

export function checkConnections(
  { events, exchanges }: History,
  { closesMs, cutMs }: Drain,
  report: Report,
): void {
  const wrong = (text: string, exchange: Exchange) =>
    report('connections', `its answer ${text}`, exchange);
  const drain = events.find(({ kind }) => kind === 'drain');
  for (const event of events) {
    if (event.kind !== 'ended' || event.exchange?.isDelayed || event.atMs >= cutMs) continue;
    const { answer } = event.exchange ?? {};
    if (answer?.headers.get('connection') === 'close') checkLingering(event, report);
    else checkGrace(event, closesMs, report);
  }
  for (const exchange of exchanges) checkFailedStream(exchange, { closesMs, cutMs }, report);
  const lines = events.flatMap((event) => (event.kind === 'line' ? event.line : []));
  for (const exchange of exchanges) {
    const { answer, ask, isDelayed } = exchange;
    if (ask.broken) checkBroken(exchange, lines, report);
    if (!answer || exchange.lines.length === 0 || isDelayed || ask.version === '1.0') continue;
    const isSaid = answer.headers.get('connection') === 'close';
    const others = exchanges.filter(({ behind }) => behind === exchange);
    const isInDrain = answer.headAtMs > (drain?.atMs ?? Infinity);
    if (others.length === 0 && isInDrain && !isSaid) wrong('keeps its connection', exchange);
    const isWaited = ({ ask: one, headSentAtMs = Infinity }: Exchange) =>
      headSentAtMs < answer.headAtMs && !one.broken;
    const isRead = exchange.tries.length > 0;
    if (isSaid && isRead && others.some(isWaited)) wrong('is not the last one', exchange);
  }
}

type Ended = Extract<Event, { kind: 'ended' }>;

/** Checks how long a connection is kept after its last answer. */
function checkLingering({ atMs, exchange }: Ended, report: Report): void {
  const { answer, ask, isContinued, pieceMs } = exchange!;
  // A client that waits for `100 Continue` sends nothing more.
  const isWaiting = !isContinued && ask.headers.some(([name]) => name === 'expect');
  const sentAtMs = isWaiting ? 0 : (exchange!.sentAtMs ?? Infinity);
  const wasWhole = Math.abs(atMs - Math.max(sentAtMs, answer!.endAtMs)) < CLOSE_MS;
  const quietMs = atMs - Math.max(answer!.endAtMs, ...pieceMs);
  const isQuiet = quietMs > QUIET_MS - CLOSE_MS && quietMs < QUIET_MS + CHECK_MS - CLOSE_MS;
  const isLong = Math.abs(atMs - answer!.endAtMs - LINGER_MS) < CLOSE_MS;
  if (!wasWhole && !isLong && !(isQuiet && sentAtMs > atMs))
    report('connections', `it ends ${atMs - answer!.endAtMs} ms behind its last answer`, exchange);
}

function checkGrace({ atMs, exchange, sinceMs }: Ended, closesMs: number, report: Report): void {
  const lateMs = atMs - Math.max(sinceMs, closesMs) - GRACE_MS;
  if (lateMs < -CLOSE_MS || lateMs > POLL_MS + CLOSE_MS)
    report('connections', `an idle one ends ${lateMs} ms late`, exchange);
}

/** A failed stream ends its connection two seconds after the error event, without a last chunk. */
function checkFailedStream(exchange: Exchange, { closesMs, cutMs }: Drain, report: Report): void {
  const { answer, ask, isDelayed, leftAtMs } = exchange;
  const last = answer?.pieces.at(-1);
  const hasFailed = last?.bytes.toString().startsWith('data: {"error":{"type"') === true;
  if (!hasFailed || leftAtMs !== undefined || ask.version === '1.0') return;
  const wrong = (text: string) => report('connections', `its failed stream ${text}`, exchange);
  if (answer!.end !== 'cut') wrong('has a last chunk');
  if (isDelayed || answer!.endAtMs >= cutMs) return;
  const dueMs = last.atMs + FAILED_STREAM_MS;
  const idleMs = Math.max(last.atMs, closesMs) + GRACE_MS;
  const earlyMs = Math.min(dueMs, idleMs) - answer!.endAtMs;
  const lateMs = answer!.endAtMs - Math.min(dueMs, idleMs + POLL_MS);
  if (Math.max(earlyMs, lateMs) > CLOSE_MS)
    wrong(`ends ${answer!.endAtMs - last.atMs} ms behind its error event`);
}

/**
 * Bytes other than HTTP get an answer and an access line, unless a request before them is still
 * open, or a failed stream before them ends the connection.
 */
function checkBroken(exchange: Exchange, lines: readonly Line[], report: Report): void {
  const { answer, ask, behind, behindAnswer, headSentAtMs, isDelayed, leftAtMs } = exchange;
  const wrong = (text: string) => report('connections', text, exchange);
  if (!answer) {
    const isAlone =
      !behind && behindAnswer?.answer?.end !== 'cut' && !isDelayed && leftAtMs === undefined;
    if (headSentAtMs !== undefined && isAlone) wrong('no answer');
    return;
  }
  const text = Buffer.concat(answer.pieces.map(({ bytes }) => bytes)).toString();
  const [, message = ''] =
    /^\{"error":\{"type":"invalid_request_error","message":"([^"]+)/.exec(text) ?? [];
  if (answer.status !== ask.broken!.status || !message.startsWith('Invalid request: '))
    wrong(`its answer is ${answer.status} ${text}`);
  if (!answer.headers.has('date')) wrong('its answer has no date');
  const id = answer.headers.get('x-request-id');
  const [line, ...others] = lines.filter(
    (one) => one.message === 'broken request' && one['request_id'] === id,
  );
  if (line?.['status'] !== answer.status || line['reason'] !== message || others.length > 0)
    wrong(`the log has ${JSON.stringify(line)}`);
}
