/** What goes wrong on a network: a TCP proxy that breaks things on demand, and addresses that never work. */

import { once } from 'node:events';
import { connect, createServer, type Socket } from 'node:net';
import type { TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Worker } from 'node:worker_threads';

import { listen, type Listening } from './listen.ts';
import { idle } from './clock.ts';

/** What the proxy does to the next connections and answers. Empty: nothing. */
export interface Fault {
  /** Done to a new connection, which then goes nowhere. */
  readonly onConnect?: 'close' | 'reset' | 'ignore';
  /** Sent instead of what the upstream answers. */
  readonly garbage?: Buffer;
  /** Waited before anything of an answer is passed on. */
  readonly delayMs?: number;
  /** Passes answers on in pieces of so many bytes, each in a turn of its own. */
  readonly sliceBytes?: number;
  /** Passes so many bytes of an answer, and then does this. */
  readonly cutAfter?: { readonly bytes: number; readonly by: 'close' | 'reset' | 'stall' };
}

export interface FaultProxy extends Listening {
  fault: Fault;
  /** Sends these bytes on every open connection, asked or not. */
  push(bytes: string): void;
}

/** Lets what was written arrive before a reset can overtake it. */
const BEFORE_RESET_MS = 25;

/** Starts one in front of an upstream on this port, for the length of a test. */
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
  // One after the other, whatever each has to wait for.
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
 * A port whose connections stay half open: the listener does not accept, and its backlog is full. `open` lets it begin to,
 * and to answer every request with this HTTP response.
 */
export async function startBlackHole(t: TestContext, answer = '') {
  const gate = new Int32Array(new SharedArrayBuffer(4));
  // In a thread, because a listener accepts as soon as its event loop turns.
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
  // Linux queues one more than the backlog says; what does not connect any more proves that it is full.
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
