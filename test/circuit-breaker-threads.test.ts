/** The circuit breaker, and the rests of keys, in several threads: each runs a task of `TASKS`, in this very file. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { describe, mock, test, type TestContext } from 'node:test';
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';

import { loadConfig } from '../src/config/config.ts';
import { sharedNowMs } from '../src/lib/clock.ts';
import { GatewayError } from '../src/lib/errors.ts';
import { SharedMemory, type SharedBlocks } from '../src/lib/shared-memory.ts';
import { CircuitBreaker } from '../src/policy/circuit-breaker.ts';
import { CircuitTable } from '../src/policy/circuit-table.ts';
import { KeyPool } from '../src/policy/key-pool.ts';
import { CircuitModel, createOperation, restsOf } from './support/circuit-model.ts';
import { withRandom } from './support/random.ts';

const P = { id: 'p' };
const THREADS = 4;
const ROUNDS = 200;
/** Of each thread: so many that none ends before the others begin. */
const FAILURES = 5000;
const REFUSALS = 2000;

/** Stops the clock that threads share at `nowMs`, in this thread. */
function stopClock(): { nowMs: number } {
  const threadStartMs = sharedNowMs() - performance.now();
  const clock = { nowMs: 1_000_000 };
  mock.method(performance, 'now', () => clock.nowMs - threadStartMs);
  return clock;
}

const [KEYS] = loadConfig({
  toml: '[providers.p]\nbase_url = "http://localhost"\napi_keys = ["key-1", "key-2"]',
  env: {},
}).providers.registered;
const REVOKED = new GatewayError('api', 'revoked', { upstreamStatus: 401 });

const memoryOf = (thread: number, blocks?: SharedBlocks) =>
  new SharedMemory({ thread, threads: 1 + THREADS }, blocks);

/** A breaker and a pool of keys, and the lines that they log: message, provider and model. */
function createBreaker(memory: SharedMemory) {
  const lines: string[] = [];
  const log = (_: string, message: string, { provider, model }: Record<string, unknown> = {}) =>
    lines.push(`${message} ${provider as string} ${model as string}`);
  const logger = { log, isEnabled: () => true };
  const keys = new KeyPool(KEYS!, memory, logger);
  return { breaker: new CircuitBreaker(memory, logger), keys, lines };
}

interface ThreadData {
  readonly blocks: SharedBlocks;
  /** Counts the threads that have come to a meeting. */
  readonly met: Int32Array;
  readonly thread: number;
  readonly task: keyof typeof TASKS;
}

interface TaskContext extends ThreadData {
  readonly memory: SharedMemory;
  readonly breaker: CircuitBreaker;
  readonly keys: KeyPool;
  readonly clock: { nowMs: number };
  /** Waits until all threads have called it as often as this one. */
  readonly meet: () => void;
}

const TASKS = {
  /** Returns the states that each attempt found, with a rest before each. */
  probe: ({ breaker, clock, meet }: TaskContext) =>
    Array.from({ length: ROUNDS }, () => {
      clock.nowMs += 10_000;
      meet();
      return breaker.recordAttempt(P, 'm');
    }),
  failTogether({ breaker, meet }: TaskContext) {
    meet();
    for (let count = 0; count < FAILURES; count += 1) breaker.recordModelFailure(P, 'm');
  },
  /** Each rest is over when the next begins. */
  refuse({ keys, clock, meet }: TaskContext) {
    for (let round = 0; round < REFUSALS; round += 1) {
      clock.nowMs += 60_000;
      meet();
      keys.recordFailure(0, REVOKED);
    }
  },
  openMany({ breaker, thread }: TaskContext) {
    for (let index = 0; index < 300; index += 1) openCircuit(breaker, `${thread}:${index}`);
  },
  openUnicode({ breaker }: TaskContext) {
    for (let count = 0; count < 3; count += 1) breaker.recordModelFailure(P, UNICODE, LONG_CAUSE);
  },
  /** Returns how much longer circuits rest, on the clock of this thread. */
  report: ({ breaker }: TaskContext) =>
    breaker.report().map(({ restsUntilMs }) => Math.round(restsUntilMs - performance.now())),
  retire: ({ breaker }: TaskContext) => breaker.retire({ id: 'p' }),
  dieWithLock({ memory }: TaskContext) {
    new CircuitTable(memory).locked(() => process.exit());
  },
};

/** Its last character is half of a surrogate pair. */
const UNICODE = 'ü/模型-🦜\ud800';
const LONG_CAUSE = `${'é'.repeat(255)}🦜 and more`;

function runTask({ port, data }: { port: NonNullable<typeof parentPort>; data: ThreadData }): void {
  const { blocks, met, thread, task } = data;
  const memory = memoryOf(thread, blocks);
  const { breaker, keys, lines } = createBreaker(memory);
  let meetings = 0;
  const meet = () => {
    meetings += 1;
    Atomics.add(met, 0, 1);
    Atomics.notify(met, 0);
    for (;;) {
      const count = Atomics.load(met, 0);
      if (count >= meetings * THREADS) return;
      Atomics.wait(met, 0, count, 1000);
    }
  };
  const result = TASKS[task]({ ...data, memory, breaker, keys, clock: stopClock(), meet });
  port.postMessage({ result, lines });
}

/** What a thread's task returned, and what its breaker logged. Empty if the thread ended before. */
interface Outcome {
  readonly result?: unknown;
  readonly lines: readonly string[];
}

/** Runs a task in as many threads at once, numbered from 1, and waits for their end. */
async function inThreads(
  t: TestContext,
  task: keyof typeof TASKS,
  { memory, threads = THREADS }: { memory: SharedMemory; threads?: number },
): Promise<Outcome[]> {
  const met = new Int32Array(new SharedArrayBuffer(4));
  return Promise.all(
    Array.from({ length: threads }, async (_, index) => {
      const data: ThreadData = { blocks: memory.blocks, met, thread: index + 1, task };
      const worker = new Worker(new URL(import.meta.url), { workerData: data });
      t.after(async () => worker.terminate());
      let outcome: Outcome = { lines: [] };
      worker.on('message', (message: Outcome) => (outcome = message));
      await once(worker, 'exit');
      return outcome;
    }),
  );
}

const linesOf = (outcomes: readonly Outcome[]) => outcomes.flatMap(({ lines }) => lines);

function openCircuit(breaker: CircuitBreaker, model: string): void {
  for (let count = 0; count < 3; count += 1) breaker.recordModelFailure(P, model);
}

function describeThreads(): void {
  const clock = stopClock();

  test('of the attempts that threads make at a half-open circuit at once, exactly one is the probe', async (t) => {
    const memory = memoryOf(0);
    openCircuit(createBreaker(memory).breaker, 'm');
    const outcomes = await inThreads(t, 'probe', { memory });
    const states = outcomes.map(({ result }) => result as string[]);
    for (let round = 0; round < ROUNDS; round += 1) {
      const found = states.map((own) => own[round]);
      assert.equal(found.filter((state) => state === 'half-open').length, 1);
      assert.equal(found.filter((state) => state === 'open').length, THREADS - 1);
    }
    const lines = Array<string>(ROUNDS).fill('breaker half-open p m');
    assert.deepEqual(linesOf(outcomes), lines);
  });

  test('failures in a row are counted over all threads, and one of them logs that the circuit opens', async (t) => {
    const memory = memoryOf(0);
    const { breaker } = createBreaker(memory);
    const lines = linesOf(await inThreads(t, 'failTogether', { memory }));
    assert.deepEqual(
      breaker.report().map(({ failures }) => failures),
      [THREADS * FAILURES],
    );
    assert.equal(lines.filter((line) => line === 'breaker opened p m').length, 1);
    assert.equal(lines.length, THREADS * FAILURES - 2);
  });

  test('a key that all threads find refused at once rests once, and one of them logs it', async (t) => {
    const memory = memoryOf(0);
    createBreaker(memory);
    const lines = linesOf(await inThreads(t, 'refuse', { memory }));
    assert.deepEqual(lines, Array<string>(REFUSALS).fill('key rests p undefined'));
  });

  test('threads together keep the 1,000 circuits that failed last, and each that is dropped is logged once', async (t) => {
    const memory = memoryOf(0);
    const { breaker } = createBreaker(memory);
    openCircuit(breaker, 'first');
    const lines = linesOf(await inThreads(t, 'openMany', { memory }));
    assert.equal(lines.filter((line) => line.startsWith('breaker opened')).length, 1200);
    const closed = lines.filter((line) => line.startsWith('breaker closed'));
    assert.ok(closed.includes('breaker closed p first'));
    assert.equal(new Set(closed).size, 201);
    assert.equal(closed.length, 201);
    assert.equal(breaker.report().length, 1000);
  });

  test('a name of any characters is the same in all threads, and a cause is cut between two characters', async (t) => {
    const memory = memoryOf(0);
    const { breaker } = createBreaker(memory);
    await inThreads(t, 'openUnicode', { memory, threads: 1 });
    assert.deepEqual(
      breaker.report().map(({ model, cause }) => [model, cause]),
      [[UNICODE, 'é'.repeat(255)]],
    );
    assert.equal(breaker.stateOf(P, UNICODE), 'open');
    assert.equal(breaker.stateOf(P, UNICODE.replace('\ud800', '\ud801')), 'closed');
  });

  test('two models whose names have the same hash have a circuit each', () => {
    const memory = memoryOf(0);
    const { breaker } = createBreaker(memory);
    // With 1 as the key, the order of the characters makes no difference to a hash.
    new Int32Array(memory.blocks.get('circuits')!)[2] = 1;
    openCircuit(breaker, 'ab');
    assert.deepEqual([breaker.stateOf(P, 'ab'), breaker.stateOf(P, 'ba')], ['open', 'closed']);
    openCircuit(breaker, 'ba');
    assert.equal(breaker.report().length, 2);
  });

  test('each thread reports the end of the rest on its own clock', async (t) => {
    const memory = memoryOf(0);
    openCircuit(createBreaker(memory).breaker, 'm');
    const [outcome] = await inThreads(t, 'report', { memory, threads: 1 });
    assert.deepEqual(outcome!.result, [10_000]);
  });

  test('if all threads retire a provider at once, each of its circuits closes once, and no other', async (t) => {
    const memory = memoryOf(0);
    const { breaker } = createBreaker(memory);
    const models = Array.from({ length: 100 }, (_, index) => `${index}`);
    for (const model of models) openCircuit(breaker, model);
    for (let count = 0; count < 3; count += 1) breaker.recordProviderFailure({ id: 'p-2' });
    const lines = linesOf(await inThreads(t, 'retire', { memory }));
    assert.deepEqual(lines.toSorted(), models.map((m) => `breaker closed p ${m}`).toSorted());
    assert.deepEqual(
      breaker.report().map(({ provider }) => provider),
      ['p-2'],
    );
  });

  test('if a thread dies with the lock, the others take all circuits as closed until the lock is freed', async (t) => {
    const memory = memoryOf(0);
    const { breaker, lines } = createBreaker(memory);
    openCircuit(breaker, 'm');
    lines.splice(0);
    await inThreads(t, 'dieWithLock', { memory, threads: 1 });
    breaker.releaseLock(2);
    assert.equal(new CircuitTable(memory).size, 1, 'another thread held it');
    assert.equal(breaker.stateOf(P, 'm'), 'closed');
    breaker.recordModelFailure(P, 'm');
    assert.deepEqual(lines, []);
    breaker.releaseLock(1);
    assert.deepEqual(breaker.report(), [], 'a circuit may have been half written');
    openCircuit(breaker, 'm');
    assert.equal(breaker.stateOf(P, 'm'), 'open');
    assert.deepEqual(lines, ['breaker opened p m']);
  });

  test('breakers that share memory do what a Map would, whatever is recorded', async () => {
    await withRandom((random) => {
      const memory = memoryOf(0);
      createBreaker(memory);
      const breakers = [0, 1, 2].map((thread) => createBreaker(memoryOf(thread, memory.blocks)));
      const model = new CircuitModel(() => clock.nowMs);
      for (let round = 0; round < 20_000; round += 1) {
        if (random.oneIn(10)) clock.nowMs += random.integer(0, 8000);
        const { breaker, lines } = random.pick(breakers);
        const operation = createOperation(random);
        assert.deepEqual(operation(breaker), operation(model));
        assert.deepEqual(lines.splice(0).toSorted(), model.lines.splice(0).toSorted());
        if (round % 100 > 0) continue;
        assert.deepEqual(restsOf(breaker, performance.now()), restsOf(model, clock.nowMs));
      }
    });
  });
}

if (isMainThread) describe('the circuit breaker over threads', describeThreads);
else runTask({ port: parentPort!, data: workerData as ThreadData });
