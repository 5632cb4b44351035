/**
 * Kept connections of a provider that end, or break off, behind any byte of any response. A tenth
 * of FUZZ_CASES is the number of requests, because each takes sockets, and FUZZ_SEED the first
 * seed.
 */

import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';

import { chatBody, providerToml, startGateway } from '../support/gateway.ts';
import { cutUp } from '../support/mutate.ts';
import { createRandom, SEED as FIXED_SEED } from '../support/random.ts';
import { rawResponse, startRawUpstream, type RawRequest } from '../support/raw-upstream.ts';
import { assertNoErrors, dataOf, eventually } from '../support/streams.ts';
import { sweep } from '../support/sweep.ts';
import { OVER_FETCH } from '../support/transport.ts';

const CASES = Math.ceil(Number(process.env['FUZZ_CASES'] ?? sweep(30_000, 6000)) / 10);
const SEED = Number(
  process.env['FUZZ_SEED'] ?? (process.env['FUZZ_CASES'] ? Date.now() % 2 ** 31 : FIXED_SEED),
);
const WORKERS = 24;

/** How the provider answers a request. */
interface Plan {
  readonly isStream: boolean;
  /** True if only the connection ends the body. */
  readonly isUnsized: boolean;
  /** The body of the whole response. */
  readonly body: string;
  readonly bytes: Buffer;
  /** How many bytes are sent. */
  readonly sent: number;
  /** The end of the connection behind these bytes. */
  readonly end: 'kept' | 'closed' | 'closed later' | 'reset' | 'surplus';
  readonly pieces: readonly Buffer[];
}

function eventsOf(content: string): string[] {
  const event = (delta: object, reason: string | null) =>
    `data: ${JSON.stringify({ choices: [{ index: 0, delta, finish_reason: reason }] })}\n\n`;
  const first = [event({ content }, null), event({ content: `${content}\u{1F600}` }, null)];
  return [...first, event({}, 'stop'), 'data: [DONE]\n\n'];
}

function planOf(seed: number): Plan {
  const random = createRandom(seed);
  const content = `answer ${seed}`;
  const isStream = random.oneIn(2);
  const message = { role: 'assistant', content };
  const json = JSON.stringify({ choices: [{ index: 0, message, finish_reason: 'stop' }] });
  const parts = isStream ? eventsOf(content) : [json.slice(0, 20), json.slice(20)];
  const body = parts.join('');
  const framing = random.pick(['length', 'chunks', 'chunks', 'end']);
  const type = isStream ? 'text/event-stream' : 'application/json';
  const coded = {
    length: `content-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
    chunks: `transfer-encoding: chunked\r\n\r\n${chunked(parts)}`,
    end: `connection: close\r\n\r\n${body}`,
  }[framing]!;
  const bytes = Buffer.from(`HTTP/1.1 200 OK\r\ncontent-type: ${type}\r\n${coded}`);
  const isCut = random.oneIn(2);
  const places = [0, random.integer(0, bytes.length), random.integer(0, bytes.length)];
  const sent = isCut ? random.pick(places) : bytes.length;
  const ends =
    framing === 'end' || isCut
      ? (['closed', 'closed', 'reset'] as const)
      : (['kept', 'kept', 'kept', 'closed', 'closed later', 'surplus'] as const);
  const end = random.pick<Plan['end']>(ends);
  const part = bytes.subarray(0, sent);
  const pieces = random.oneIn(2) ? [part] : cutUp(random, part);
  // In one write with the response, because no client can tell a late surplus from an answer.
  if (end === 'surplus') pieces.push(Buffer.concat([pieces.pop()!, SURPLUS]));
  return { isStream, isUnsized: framing === 'end', body, bytes, sent, end, pieces };
}

function chunked(parts: readonly string[]): string {
  const chunks = parts.map((part) => `${Buffer.byteLength(part).toString(16)}\r\n${part}\r\n`);
  return `${chunks.join('')}0\r\n\r\n`;
}

/** A response to nobody. */
const SURPLUS = Buffer.from(rawResponse('{"choices":[{"surplus":1}]}'));

/** Calls `onCutShort` if an answer `closed later` has ended the connection before these pieces. */
async function answer(
  { socket }: RawRequest,
  { end, pieces }: Plan,
  onCutShort: () => void,
): Promise<void> {
  for (const piece of pieces) {
    if (socket.writableEnded) return onCutShort();
    socket.write(piece);
    await nextTurn();
  }
  if (end === 'closed later') await sleep(2);
  if (end.startsWith('closed')) socket.end();
  // Later, because a reset may overtake the sent bytes.
  if (end === 'reset') await sleep(2);
  if (end === 'reset') socket.resetAndDestroy();
}

const CUT = /^\{"error":\{"type":"provider_error","message":"[^"]*","code":"PROVIDER_ERROR"/;

/** Checks that a client gets its own answer, whole, or its beginning and an error. */
function check(
  plan: Plan,
  isCutShort: boolean,
  status: number,
  text: string,
): 'whole' | 'cut' | 'refused' {
  if (text === plan.body) return 'whole';
  const isLost = plan.sent === plan.bytes.length && plan.end !== 'reset' && !isCutShort;
  assert.ok(!isLost, `a whole response is lost: ${text}`);
  // JSON that only the connection ends is no JSON, and no cut.
  if (plan.isUnsized && !plan.isStream && status === 500) return 'refused';
  if (status !== 200) {
    assert.equal(status, 502);
    assert.match(text, CUT);
    return 'refused';
  }
  assert.ok(plan.isStream, 'an incomplete answer');
  const received = dataOf(text);
  const last = received.pop() ?? '';
  const original = dataOf(plan.body);
  assert.ok(received.length > 0);
  assert.deepEqual(received, original.slice(0, received.length));
  if (last !== '[DONE]') {
    assert.match(last, CUT);
    return 'cut';
  }
  // The gateway ends a stream that has finished.
  assert.equal(received.length, original.length - 1);
  return 'whole';
}

interface Arrival {
  /** True if the connection has carried an earlier request. */
  readonly isReused: boolean;
  /** True if the gateway may not have received a byte of the response. */
  readonly isSilent: boolean;
  /** True if the connection has ended before the last piece, by the answer before it. */
  isCutShort: boolean;
}

/** Starts the provider. `arrivals` are the requests by the seeds of their cases. */
async function startProvider(t: TestContext) {
  const arrivals = new Map<number, Arrival[]>();
  const upstream = await startRawUpstream(t, (request) => {
    const seed = Number(/x-request-id: case-(\d+)/.exec(request.text)?.[1]);
    const arrived = arrivals.get(seed) ?? [];
    const plan = planOf(seed);
    // A reset may overtake bytes, and `closed later` may be too late for the next request.
    const isSilent = plan.sent === 0 || plan.end === 'reset' || request.socket.writableEnded;
    const arrival = { isReused: request.onConnection > 1, isSilent, isCutShort: false };
    arrivals.set(seed, [...arrived, arrival]);
    const isRepeated = arrived.length > 0;
    const end = plan.isUnsized ? 'closed' : 'kept';
    const played: Plan = isRepeated ? { ...plan, end, pieces: [plan.bytes] } : plan;
    void answer(request, played, () => (arrival.isCutShort = true));
  });
  return { upstream, arrivals };
}

const TITLE = 'each client gets its own answer, or an error, however connections are cut';
test(TITLE, { skip: OVER_FETCH, timeout: 3_600_000 }, async (t) => {
  const { upstream, arrivals } = await startProvider(t);
  const gateway = await startGateway(t, { toml: providerToml(upstream) });
  const counts = { whole: 0, cut: 0, refused: 0, repeated: 0, reused: 0 };
  const ask = async (seed: number) => {
    const plan = planOf(seed);
    const headers = { 'x-request-id': `case-${seed}` };
    const { status, text } = await gateway.chat(chatBody({ stream: plan.isStream }), { headers });
    const [first, ...repeated] = arrivals.get(seed) ?? [];
    if (repeated.length > 0) {
      assert.ok(repeated.length === 1 && first!.isReused && first!.isSilent, 'sent again');
      assert.equal(text, plan.body);
      counts.repeated += 1;
    } else counts[check(plan, first?.isCutShort ?? false, status, text)] += 1;
    counts.reused += Number(first?.isReused ?? false);
  };
  let next = SEED;
  const work = async () => {
    while (next < SEED + CASES) {
      const seed = next;
      next += 1;
      await ask(seed).catch((error: Error) => {
        const shown = JSON.stringify({ ...planOf(seed), bytes: undefined, pieces: undefined });
        assert.fail(`${error.message}\n(repeat with FUZZ_SEED=${seed} FUZZ_CASES=10)\n${shown}`);
      });
    }
  };
  await Promise.all(Array.from({ length: WORKERS }, work));
  const hasAll = Object.values(counts).every((count) => count > 0);
  assert.ok(hasAll || CASES < 600, JSON.stringify(counts));
  await eventually(() => gateway.reservedBytes() === 0, 'the memory is free');
  assertNoErrors(gateway);
});
