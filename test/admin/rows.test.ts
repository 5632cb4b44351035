/** The rows of the page's tables. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { describeHeld, type Figures } from '../../src/admin/figures.ts';
import { describeRows } from '../../src/admin/rows.ts';
import { Traffic } from '../../src/admin/traffic.ts';
import { loadConfig } from '../../src/config/config.ts';
import { type Notice, sortNotices } from '../../src/incidents/notice.ts';
import type { Situation } from '../../src/incidents/verdict.ts';

const TOML = `[providers]\nprimary = "b"\nfallback = ["c"]
[providers.a]\napi_key = "k-a"\nbase_url = "http://a/v1"
[providers.b]\napi_key = "k-b"\nbase_url = "http://b/v1"
[providers.c]\napi_key = "k-c"\nbase_url = "http://c/v1"\ndefault_model = "d"
[aliases]\nfast = ["a/m", "b/m"]\n"x-*" = "b/*"\nlast = "c/d"
turns = ["c/d", "b/m", "c/e"]
`;
const config = loadConfig({ toml: TOML, env: {} });
const at = performance.now();

function rows({
  failing = [] as Partial<Notice>[],
  settings = config,
  traffic = new Traffic(() => 1e12),
} = {}) {
  const circuit = { state: 'open', halfOpenAtMs: at } as const;
  const circuits: Record<string, object[]> = {
    a: [true, false].map((isStream) => ({ ...circuit, model: 'm', isStream })),
    b: [circuit, { ...circuit, state: 'half_open' }],
    c: [],
  };
  const providers = new Map(
    Object.entries(circuits).map(([id, own]) => [id, { breaker: { report: () => own } }]),
  );
  const figures = {
    providers: () => providers,
    oldestAgesMs: () => new Map([['c', 14_200]]),
    inFlightOf: () => 1,
    waitingFor: (id: string) => (id === 'c' ? 3 : undefined),
    usedOf: () => [],
  } as unknown as Figures;
  const situation = {
    minute: {},
    providers: {},
    suspected: new Set(),
    ...sortNotices(failing as Notice[]),
  };
  return describeRows(settings, figures, traffic.report(), situation as unknown as Situation);
}

test('a provider has its open circuits, waiting requests, and the age of its oldest request', () => {
  const { providers } = rows() as unknown as { providers: Record<string, { details: string[] }> };
  const detailsOf = (id: string) => providers[id]!.details.map((text) => text.slice(0, 32));
  assert.deepEqual(detailsOf('a'), [
    'streams of m kept away until 202',
    'complete answers of m kept away ',
  ]);
  assert.deepEqual(
    detailsOf('b').map((text) => text.slice(0, 16)),
    ['kept away until '],
  );
  assert.deepEqual(detailsOf('c'), ['3 waiting', 'oldest request 14 s']);
});

/** Returns the chain of each of these models. */
function chainsOf(names: readonly string[], failing: Partial<Notice>[] = [], settings = config) {
  const traffic = new Traffic(() => 1e12);
  const facts = { request_id: 'x', method: 'POST', path: '/', duration_ms: 1, bytes: 1 };
  const ended = { endTime: 1, durationMs: 1 };
  for (const name of names) {
    traffic.add({ facts: { ...facts, outcome: 'ok' }, ...ended }, { name } as never);
  }
  const { models } = rows({ failing, settings, traffic });
  return Object.entries(models).map(([name, row]) => {
    const { chain = [] } = row as { chain?: [string, string][] };
    return `${name}: ${chain.map(([icon, id]) => `${icon} ${id}`).join(' ')}`;
  });
}

const failingAt = (provider: string, models: string[] | undefined) => {
  return { provider, models, affected: [], causes: [] };
};

test('a model has the providers in turn, each with whether the model fails there', () => {
  const chains = (...failing: Partial<Notice>[]) =>
    chainsOf(['fast', 'x-1', 'a/big', 'last', 'turns', 'other'], failing);
  assert.deepEqual(chains(), [
    'fast: good a good b good c',
    'x-1: good b good c',
    'a/big: good a good c',
    'last: ',
    'turns: good c good b',
    'other: good b good c',
  ]);
  const [fast, , big] = chains(failingAt('a', ['m']));
  assert.deepEqual([fast, big], ['fast: bad a good b good c', 'a/big: good a good c']);
  assert.equal(chains(failingAt('a', []))[2], 'a/big: bad a good c');
  assert.equal(chains(failingAt('a', undefined))[2], 'a/big: good a good c');
});

test('a model fails at the providers that are asked for it by a `*` or a default_model', () => {
  const names = ['x-1', 'c'];
  const settings = loadConfig({ toml: TOML.replace('["c"]', '["c", "a"]'), env: {} });
  const failing = (provider: string, model: string) =>
    chainsOf(names, [failingAt(provider, [model])], settings);
  assert.deepEqual(failing('b', '1'), ['x-1: bad b good c good a', 'c: good c good a']);
  assert.deepEqual(failing('c', 'd'), ['x-1: good b bad c good a', 'c: bad c good a']);
  assert.deepEqual(failing('a', '1'), ['x-1: good b good c bad a', 'c: good c good a']);
  assert.deepEqual(failing('a', 'd'), ['x-1: good b good c good a', 'c: good c bad a']);
});

test('traffic has a letter for each minute of a provider, tokens, and unknown models', () => {
  let now = 1_700_000_040_000;
  const traffic = new Traffic(() => now);
  const facts = { request_id: 'x', method: 'POST', path: '/', duration_ms: 1, bytes: 1 };
  const add = (good: number, failed: number, status = 503) => {
    for (let n = 0; n < good + failed; n += 1) {
      const outcome = n < good ? 'ok' : 'upstream_error';
      const one = { provider: 'p', model: 'm', outcome, status } as const;
      const usage = { prompt_tokens: 20, completion_tokens: 3 };
      const request = { ...facts, ...usage, outcome, provider: 'p', tries: [one] } as const;
      traffic.add({ facts: request, endTime: 1, durationMs: 1 }, { name: 'fast' } as never);
    }
    now += 60_000;
  };
  add(200, 1);
  add(9, 1);
  now += 60_000;
  add(1, 1);
  now -= 60_000;
  const { all, minute, providers, unknownTo } = traffic.report();
  assert.equal(providers['p']!.minutes, '...........gw.b');
  assert.deepEqual([all.tokens, minute.tokens], [213 * 23, 2 * 23]);
  assert.equal(unknownTo.size, 0);
  add(0, 1, 404);
  assert.equal(traffic.report().unknownTo.get('fast'), 'p');
  add(1, 0);
  assert.equal(traffic.report().unknownTo.size, 0);
});

test('a slow provider has the times of the last minute', () => {
  let now = 1e12;
  const traffic = new Traffic(() => now);
  const facts = { request_id: 'x', method: 'POST', path: '/', duration_ms: 1, bytes: 1 };
  const add = (firstByteMs: number) => {
    const tries = [{ provider: 'a', model: 'm', outcome: 'ok', connect_ms: 9 }] as const;
    const more = { status: 200, stream: true, provider: 'a' };
    const all = { ...facts, outcome: 'ok', ...more, tries } as const;
    traffic.add({ facts: all, endTime: now, durationMs: 1, firstByteMs }, undefined);
  };
  for (let count = 0; count < 50; count += 1) add(200);
  now += 120_000;
  for (let count = 0; count < 9; count += 1) add(1600);
  type Told = { p50: number; requests: number; details: string[] };
  const told = (...failing: Partial<Notice>[]) =>
    rows({ failing, traffic }).providers['a'] as unknown as Told;
  const words = { title: 'slow', icon: 'warn', causes: ['x'], affected: [] } as const;
  const slow = { provider: 'a', kind: 'slow', ...words } as const;
  assert.ok(told().p50 < 300);
  assert.ok(told({ ...slow, ended: 'x' }).p50 < 300);
  const { details, p50, requests } = told(slow);
  assert.ok(p50 > 1000, `${p50}`);
  assert.deepEqual([requests, details.slice(0, 2)], [59, ['x', 'times of the last minute']]);
});

test('from half of max_buffered_bytes on, the client that holds most is told', () => {
  const { maxBufferedBytes } = config.server;
  const toldOf = (share: number, clients: [string | undefined, number][]) => {
    const figures = {
      bufferedBytes: () => share * maxBufferedBytes,
      bufferedBytesByClient: () => new Map(clients),
    };
    return describeHeld(config, figures as unknown as Figures)?.replace(/hold .* MB,/, 'hold,');
  };
  assert.equal(toldOf(0.49, [['ci', 9e6]]), undefined);
  assert.equal(
    toldOf(0.5, [
      ['web', 1e6],
      ['ci', 9e6],
    ]),
    'Bodies hold, most ci: 9 MB.',
  );
  assert.equal(toldOf(0.5, [[undefined, 9e6]]), 'Bodies hold, most clients without a name: 9 MB.');
});
