/** docs/headers.md is right about each header in it, both ways. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import { chatBody, providerToml, startGateway } from './support/gateway.ts';
import { ROOT } from './support/process.ts';
import { completion, sendJson, startUpstream } from './support/upstream.ts';

const [, toProvider = '', toClient = ''] = readFileSync(
  join(ROOT, 'docs/headers.md'),
  'utf8',
).split('\n## ');

/** Returns the names in those rows of a table whose second column matches. */
function namesOf(text: string, fate: RegExp): string[] {
  return text
    .split('\n')
    .map((line) => line.split(' | '))
    .filter((columns) => fate.test(columns[1] ?? ''))
    .flatMap(([names = '']) => [...names.matchAll(/`([^`]+)`/g)].map(([, name]) => name!));
}

test('docs/headers.md names the headers that pass and the headers that are dropped', async (t) => {
  const withValue = (names: readonly string[]) =>
    Object.fromEntries(names.map((name) => [name, 'sent-canary']));
  const dropped = namesOf(toProvider, /^dropped/);
  const back = { passed: namesOf(toClient, /^passed/), dropped: namesOf(toClient, /^dropped/) };
  assert.ok(dropped.length > 10 && back.passed.length > 5 && back.dropped.length > 10);

  const upstream = await startUpstream(t, (_, response) =>
    sendJson(response, completion(), { headers: withValue([...back.passed, ...back.dropped]) }),
  );
  const gateway = await startGateway(t, { toml: providerToml(upstream) });
  // A page of this machine, because other hosts' pages are refused.
  const headers = { ...withValue(dropped), origin: 'http://localhost' };
  const reply = await gateway.chat(chatBody(), { headers });
  assert.equal(reply.status, 200, reply.text);

  const [received] = upstream.requests;
  const named = namesOf(toProvider, /^(?!dropped)/);
  for (const name of dropped) assert.equal(received!.headers[name], undefined, name);
  for (const name of Object.keys(received!.headers)) assert.ok(named.includes(name), name);
  for (const name of back.passed) assert.equal(reply.headers[name], 'sent-canary', name);
  for (const name of back.dropped) assert.equal(reply.headers[name], undefined, name);
});
