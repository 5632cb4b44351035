/** An HTTP proxy such as `NODE_USE_ENV_PROXY` makes Node use, with one upstream behind it. */

import { createServer, request as httpRequest } from 'node:http';
import { connect } from 'node:net';
import type { TestContext } from 'node:test';

import { listen } from './listen.ts';
import type { FakeUpstream } from './upstream.ts';

/**
 * Starts a proxy until the test ends. It passes each request on to `upstream`, whatever its host.
 */
export async function startHttpProxy(t: TestContext, upstream: FakeUpstream) {
  const target = { host: '127.0.0.1', port: Number(new URL(upstream.baseUrl).port) };
  const proxy = {
    /** The value for `HTTP_PROXY`. */
    url: '',
    /** The requests so far: `CONNECT host:port`, or a method and an absolute URL. */
    asked: [] as string[],
    /** Answers with this status, and passes nothing on. */
    refusal: undefined as number | undefined,
    /** Closes the connection instead of opening a tunnel. */
    closes: false,
  };
  const server = createServer((incoming, response) => {
    proxy.asked.push(`${incoming.method} ${incoming.url}`);
    if (proxy.refusal) {
      const headers = { 'content-type': 'text/plain', 'proxy-authenticate': 'Basic realm="x"' };
      response.writeHead(proxy.refusal, headers).end('said by the proxy');
      return;
    }
    const { method, headers } = incoming;
    const path = new URL(incoming.url!).pathname;
    const forwarded = httpRequest({ ...target, method, path, headers, agent: false }, (answer) => {
      response.writeHead(answer.statusCode!, answer.headers);
      answer.on('error', () => response.destroy());
      answer.pipe(response);
    });
    forwarded.on('error', () => response.destroy());
    incoming.pipe(forwarded);
  });
  server.on('connect', ({ url }, near) => {
    proxy.asked.push(`CONNECT ${url}`);
    near.on('error', () => {});
    if (proxy.refusal || proxy.closes) {
      near.end(proxy.closes ? '' : `HTTP/1.1 ${proxy.refusal} No\r\ncontent-length: 0\r\n\r\n`);
      return;
    }
    const far = connect(target, () => {
      near.write('HTTP/1.1 200 Connection established\r\n\r\n');
      near.pipe(far).pipe(near);
    });
    far.on('error', () => {});
    far.once('close', () => near.destroy());
    near.once('close', () => far.destroy());
  });
  proxy.url = `http://127.0.0.1:${(await listen(t, server)).port}`;
  return proxy;
}
