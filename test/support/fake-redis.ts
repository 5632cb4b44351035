/** A fake Redis that answers each command with the test's bytes. */

import { connect, createServer, type Socket } from 'node:net';
import { pipeline } from 'node:stream';
import type { TestContext } from 'node:test';
import { createServer as createTlsServer, type TlsOptions } from 'node:tls';

import { listen } from './listen.ts';

export const status = (text: string) => `+${text}\r\n`;

/** Called for each command. Returns false to answer it with `+OK`, as a working store does. */
type Answer = (command: readonly string[], socket: Socket) => unknown;

export interface FakeRedis {
  readonly port: number;
  readonly commands: (readonly string[])[];
  /** How many connections there have been. */
  readonly connections: () => number;
  /** The open connections. */
  readonly sockets: ReadonlySet<Socket>;
}

/** Starts a fake Redis until the test ends. */
export async function startFakeRedis(t: TestContext, answer: Answer): Promise<FakeRedis> {
  const commands: (readonly string[])[] = [];
  let connections = 0;
  const server = createServer((socket) => {
    connections += 1;
    let text = '';
    socket.on('data', (chunk: Buffer) => {
      text += chunk.toString('latin1');
      for (let parsed = parseCommand(text); parsed; parsed = parseCommand(text)) {
        text = text.slice(parsed.length);
        commands.push(parsed.words);
        if (answer(parsed.words, socket) === false) socket.write(status('OK'));
      }
    });
  });
  const { port, sockets } = await listen(t, server);
  return { port, commands, connections: () => connections, sockets };
}

/** Starts a fake Redis that answers `+OK`, behind TLS. Returns its port. */
export async function startTlsRedis(t: TestContext, certificate: TlsOptions): Promise<number> {
  const redis = await startFakeRedis(t, () => false);
  const front = createTlsServer(certificate, (socket) => {
    const behind = connect(redis.port, '127.0.0.1');
    pipeline(socket, behind, socket, () => {});
  });
  return (await listen(t, front)).port;
}

/** Parses the first command; undefined if it is not complete. */
function parseCommand(text: string): { words: string[]; length: number } | undefined {
  const count = /^\*(\d+)\r\n/.exec(text);
  if (!count) return undefined;
  let at = count[0].length;
  const words: string[] = [];
  while (words.length < Number(count[1])) {
    const length = /^\$(\d+)\r\n/.exec(text.slice(at, at + 20));
    if (!length) return undefined;
    const start = at + length[0].length;
    at = start + Number(length[1]) + 2;
    if (text.length < at) return undefined;
    words.push(text.slice(start, at - 2));
  }
  return { words, length: at };
}
