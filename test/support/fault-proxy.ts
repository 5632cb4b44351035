/** Network faults: a TCP proxy that breaks connections, and addresses that never answer. */

import { once } from 'node:events';
import { connect, createServer, type Socket } from 'node:net';
import type { TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Worker } from 'node:worker_threads';

import { listen, type Listening } from './listen.ts';
import { idle } from './clock.ts';

/** The faults that the proxy adds to new connections and answers; `{}` adds none. */
export interface Fault {
  /** Applies to a new connection, which is not connected to the upstream. */
  readonly onConnect?: 'close' | 'reset' | 'ignore';
  /** Replaces the upstream's answer. */
  readonly garbage?: Buffer;
  /** Delays the first bytes of an answer. */
  readonly delayMs?: number;
  /** Splits an answer into slices of this size, each in its own turn of the event loop. */
  readonly sliceBytes?: number;
  /** Breaks the connection after this many bytes of an answer. */
  readonly cutAfter?: { readonly bytes: number; readonly by: 'close' | 'reset' | 'stall' };
}

export interface FaultProxy extends Listening {
  fault: Fault;
  /** Writes these bytes to every open connection, whether or not a request waits. */
  push(bytes: string): void;
}

/** Gives written bytes time to arrive, because a reset may overtake them. */
const BEFORE_RESET_MS = 25;

/** Starts a proxy in front of this port until the test ends. */
export async function startFaultProxy(t: TestContext, upstreamPort: number): Promise<FaultProxy> {
  const server = createServer((near) => {
    const { onConnect } = proxy.fault;
    if (onConnect === 'close') near.end();
    if (onConnect === 'reset') near.resetAndDestroy();
    if (onConnect === undefined) passOn(near, upstreamPort, proxy);
    else near.resume();
  });
  const listening = await listen(t, server);
  const push = (bytes: string) => listening.sockets.forEach((socket) => socket.write(bytes));
  const proxy: FaultProxy = { ...listening, fault: {}, push };
  return proxy;
}

function passOn(near: Socket, upstreamPort: number, proxy: { readonly fault: Fault }): void {
  const far = connect(upstreamPort, '127.0.0.1');
  near.setNoDelay(true);
  far.on('error', () => near.destroy());
  near.once('close', () => far.destroy());
  let fault: Fault = {};
  let passed = 0;
  let isFirst = true;
  near.on('data', (bytes: Buffer) => {
    fault = proxy.fault;
    passed = 0;
    isFirst = true;
    far.write(bytes);
  });
  // Chunks wait for each other, because `pass` may sleep.
  let turn = Promise.resolve();
  far.on('data', (bytes: Buffer) => {
    turn = turn.then(async () => pass(bytes));
  });
  far.once('end', () => {
    turn = turn.then(() => void near.end());
  });

  async function pass(bytes: Buffer): Promise<void> {
    const { cutAfter, delayMs, garbage, sliceBytes } = fault;
    if (isFirst && delayMs !== undefined) await sleep(delayMs);
    const isAnswer = isFirst;
    isFirst = false;
    if (garbage) {
      if (isAnswer) near.write(garbage);
      return;
    }
    const left = cutAfter ? cutAfter.bytes - passed : bytes.length;
    const part = bytes.subarray(0, Math.max(0, left));
    passed += part.length;
    const step = sliceBytes ?? (part.length || 1);
    for (let start = 0; start < part.length; start += step) {
      near.write(part.subarray(start, start + step));
      if (sliceBytes) await new Promise(setImmediate);
    }
    if (!cutAfter || left > bytes.length) return;
    if (cutAfter.by === 'close') near.end();
    if (cutAfter.by === 'reset') {
      await sleep(BEFORE_RESET_MS);
      near.resetAndDestroy();
    }
  }
}

/**
 * Opens a port whose connections never finish their handshake, because the backlog is full and the
 * listener does not accept. `open` makes it accept, and answer every request with `answer`.
 */
export async function startBlackHole(t: TestContext, answer = '') {
  const gate = new Int32Array(new SharedArrayBuffer(4));
  // In a thread: on this thread, the listener would accept at the event loop's next turn.
  const code = `
    const { createServer } = require('node:net');
    const { parentPort, workerData } = require('node:worker_threads');
    const server = createServer((socket) => {
      socket.on('error', () => {});
      socket.on('data', () => socket.write(workerData.answer));
    });
    server.listen({ port: 0, host: '127.0.0.1', backlog: 1 }, () => {
      parentPort.postMessage(server.address().port);
      Atomics.wait(workerData.gate, 0, 0);
    });`;
  const worker = new Worker(code, { eval: true, workerData: { gate, answer } });
  const [port] = (await once(worker, 'message')) as [number];
  // Linux queues more connections than the backlog, so fill it until a connection does not open.
  const fillers: Socket[] = [];
  t.after(async () => {
    for (const filler of fillers) filler.destroy();
    await worker.terminate();
  });
  for (let isFull = false; !isFull;) {
    const filler = connect(port, '127.0.0.1').on('error', () => {});
    fillers.push(filler);
    const connected = once(filler, 'connect').then(() => false);
    isFull = await Promise.race([connected, idle(200).then(() => true)]);
    if (isFull) filler.destroy();
  }
  return {
    port,
    baseUrl: `http://127.0.0.1:${port}/v1`,
    open() {
      Atomics.store(gate, 0, 1);
      Atomics.notify(gate, 0);
    },
  };
}
