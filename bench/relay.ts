/**
 * The shortest code to forward a POST: over the agent under fetch with all headers as text
 * (`agent`) or only the forwarded headers (`lean`), or over fetch itself (`fetch`). Arguments: its
 * port (0 for a free port, which it prints), the upstream's port, and the way.
 */

import { once } from 'node:events';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

const [port, upstreamPort, way] = process.argv.slice(2);
const origin = `http://127.0.0.1:${upstreamPort}`;

interface Controller {
  pause(): void;
  resume(): void;
}
type Headers = Readonly<Record<string, string | undefined>>;

// fetch's module fills the slot at the first use.
void globalThis.Headers;
const slots = globalThis as unknown as Record<symbol, object>;
const slot =
  slots[Symbol.for('undici.globalDispatcher.2')] ?? slots[Symbol.for('undici.globalDispatcher.1')]!;
const Agent = slot.constructor as new (options: object) => {
  dispatch(options: object, handler: object): void;
};
const dispatcher = new Agent({
  keepAliveTimeout: 60_000,
  headersTimeout: 0,
  bodyTimeout: 0,
  allowH2: false,
  connect: { timeout: 10_000 },
});

function writeHead(response: ServerResponse, status: number, headers: Headers): void {
  for (const name of ['content-type', 'content-length']) {
    const value = headers[name];
    if (value !== undefined) response.setHeader(name, value);
  }
  response.writeHead(status);
}

/** Creates a handler with the callbacks of undici 6, and of undici 7 and later. */
function createHandler(response: ServerResponse) {
  return {
    onConnect() {},
    onHeaders(status: number, raw: Buffer[], resume: () => void) {
      const headers: Record<string, string> = {};
      for (let at = 0; at < raw.length; at += 2) {
        headers[raw[at]!.toString().toLowerCase()] = raw[at + 1]!.toString();
      }
      writeHead(response, status, headers);
      response.on('drain', resume);
      return true;
    },
    onData: (chunk: Buffer) => response.write(chunk),
    onComplete: () => response.end(),
    onError: (error: Error) => response.destroy(error),

    onRequestStart() {},
    onResponseStart(controller: Controller, status: number, headers: Headers) {
      writeHead(response, status, headers);
      response.on('drain', () => controller.resume());
    },
    onResponseData(controller: Controller, chunk: Buffer) {
      if (!response.write(chunk)) controller.pause();
    },
    onResponseEnd: () => response.end(),
    onResponseError: (_: Controller, error: Error) => response.destroy(error),
  };
}

/** Creates a handler that decodes only the forwarded headers, and that undici 7 need not wrap. */
function createLeanHandler(response: ServerResponse) {
  const passed: string[] = [];
  const begin = (status: number, raw: readonly Buffer[]) => {
    for (let at = 0; at < raw.length; at += 2) {
      const name = raw[at]!.toString('latin1').toLowerCase();
      if (name !== 'content-type' && name !== 'content-length') continue;
      passed.push(name, raw[at + 1]!.toString('latin1'));
    }
    response.writeHead(status, passed);
  };
  if (Number(process.versions['undici']!.split('.')[0]) >= 8) {
    return {
      onRequestStart() {},
      onResponseStart(controller: Controller & { rawHeaders: readonly Buffer[] }, status: number) {
        begin(status, controller.rawHeaders);
        response.on('drain', () => controller.resume());
      },
      onResponseData(controller: Controller, chunk: Buffer) {
        if (!response.write(chunk)) controller.pause();
      },
      onResponseEnd: () => response.end(),
      onResponseError: (_: Controller, error: Error) => response.destroy(error),
    };
  }
  return {
    onConnect() {},
    onHeaders(status: number, raw: readonly Buffer[], resume: () => void) {
      begin(status, raw);
      response.on('drain', resume);
      return true;
    },
    onData: (chunk: Buffer) => response.write(chunk),
    onComplete: () => response.end(),
    onError: (error: Error) => response.destroy(error),
  };
}

async function forwardByFetch(path: string, request: RequestInit, response: ServerResponse) {
  const options = { ...request, dispatcher: dispatcher as never };
  const { status, headers, body } = await fetch(origin + path, options);
  writeHead(response, status, {
    'content-type': headers.get('content-type') ?? undefined,
    'content-length': headers.get('content-length') ?? undefined,
  });
  const reader = body!.getReader();
  for (;;) {
    const { value } = await reader.read();
    if (value === undefined) break;
    if (!response.write(value)) await once(response, 'drain');
  }
  response.end();
}

const server = createServer((request, response) => {
  const chunks: Buffer[] = [];
  request.on('data', (chunk: Buffer) => chunks.push(chunk));
  request.on('end', () => {
    const { method, url: path = '' } = request;
    const { authorization = '', 'content-type': type = '' } = request.headers;
    const headers = { authorization, 'content-type': type };
    const forwarded = { method: 'POST', headers, body: Buffer.concat(chunks) };
    if (method === 'GET') response.end('ok');
    else if (way !== 'fetch') {
      const create = way === 'lean' ? createLeanHandler : createHandler;
      dispatcher.dispatch({ origin, path, ...forwarded }, create(response));
    } else {
      forwardByFetch(path, forwarded, response).catch((error: Error) => response.destroy(error));
    }
  });
}).listen(Number(port), '127.0.0.1');

server.on('listening', () => {
  console.error(`listening http://127.0.0.1:${(server.address() as AddressInfo).port}/`);
});

// --cpu-prof writes at an exit, but not at a kill.
process.on('SIGTERM', () => process.exit());
