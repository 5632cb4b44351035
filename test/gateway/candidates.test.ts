/** The providers that a `model` names, and their order. For the balance, see balance.test.ts. */

import type { Affinity } from '../../src/protocol/model-request.ts';
import { EMBEDDINGS } from '../../src/protocol/embeddings.ts';
import { CHAT } from '../../src/protocol/chat.ts';
import type { Endpoint } from '../../src/protocol/endpoint.ts';
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { loadConfig, type Tenant } from '../../src/config/config.ts';
import type { Call } from '../../src/downstream/call.ts';
import { parseTarget } from '../../src/config/aliases-section.ts';
import { candidatesFor } from '../../src/gateway/candidates.ts';
import type { Services } from '../../src/gateway/services.ts';
import type { GatewayError } from '../../src/lib/errors.ts';
import type { Provider } from '../../src/upstream/connections/provider.ts';

/** Providers `p` and `q` have a default model, `r` has none. */
const SECTIONS = ['p', 'q', 'r'].map((id) => {
  const model = id === 'r' ? '' : `default_model = "${id}-default"\n`;
  return `[providers.${id}]\nbase_url = "http://127.0.0.1:1/v1"\napi_key = "none"\n${model}`;
});

interface Given {
  /** Lines of `[providers]`, such as the fallback. */
  readonly lines?: string;
  readonly aliases?: string;
  readonly tenant?: Pick<Tenant, 'models'>;
  /** The header `x-gateway-fallback`. */
  readonly header?: string;
  readonly affinity?: Affinity;
  readonly endpoint?: Endpoint;
}

/** Returns the candidates as `<provider> <model>`, or the refusal's status and text. */
function candidates(
  name: string,
  { lines = '', aliases = '', tenant, header, affinity, endpoint = CHAT }: Given = {},
) {
  const toml = `[providers]\n${lines}\n${SECTIONS.join('')}[aliases]\n${aliases}`;
  const config = loadConfig({ toml, env: {} });
  const providers = new Map(
    config.providers.registered.map(({ id, defaultModel }) => [
      id,
      { id, defaultModel } as unknown as Provider,
    ]),
  );
  const fallbacks = config.providers.fallback.map((id) => providers.get(id)!);
  const services = { config, providers, fallbacks, balances: new Map() } as unknown as Services;
  const headers = header === undefined ? {} : { 'x-gateway-fallback': header };
  try {
    const [list] = [true, false].map((stream) => {
      const call = { headers, history: { affinity, endpoint, stream } } as Call;
      const all = candidatesFor(name, call, services, tenant as Tenant | undefined);
      assert.ok(all.every(({ isStream }) => isStream === stream));
      return all;
    }) as [ReturnType<typeof candidatesFor>];
    return list.map(({ provider, model }) => `${provider.id} ${model}`).join(', ');
  } catch (error) {
    const { status, message, details } = error as GatewayError;
    return `${status} ${message}${details.check ? ` (${details.check})` : ''}`;
  }
}

test('a name is a provider and a model, a provider, or a model of the primary', () => {
  const names: Record<string, string> = {
    'p/m': 'p m',
    'p/a/b': 'p a/b',
    p: 'p p-default',
    'p/': 'p p-default',
    'r/m': 'r m',
    r: '400 Invalid request: provider r has no default_model; name a model',
    'x/m': '400 Unknown provider: x',
    '/m': '400 Invalid request: "model" must have the form "<provider_id>/<model_name>"',
    'P/m': '400 Unknown provider: P',
    m: '400 Invalid request: "model" must have the form "<provider_id>/<model_name>"',
    '\u0007/m': String.raw`400 Unknown provider: \u0007`,
  };
  for (const [name, expected] of Object.entries(names)) {
    assert.equal(candidates(name), expected, name);
  }
  const lines = 'primary = "q"';
  assert.equal(candidates('m', { lines }), 'q m');
  assert.equal(candidates('p', { lines }), 'p p-default');
  assert.equal(candidates('/m', { lines }), names['/m']);
  assert.equal(candidates('x/m', { lines }), '400 Unknown provider: x');
});

test('no fallback follows for embeddings, but the other targets of an alias do', () => {
  const given = {
    lines: 'fallback = ["q", "r"]',
    aliases: 'a = ["p/x", "q/y"]',
    endpoint: EMBEDDINGS,
  };
  assert.equal(candidates('p/m', given), 'p m');
  assert.equal(candidates('a', given), 'p x, q y');
});

test('each fallback follows once, with its default model or the first model', () => {
  const lines = 'fallback = ["q", "r"]';
  assert.equal(candidates('p/m', { lines }), 'p m, q q-default, r m');
  assert.equal(candidates('q/m', { lines }), 'q m, r m');
  const aliases = 'a = ["r/x", "p/y"]';
  assert.equal(candidates('a', { lines, aliases }), 'r x, p y, q q-default');
  assert.equal(candidates('a', { lines, aliases: 'a = ["r/x", "q/y"]' }), 'r x, q y');
  assert.equal(candidates('a', { lines, aliases: 'a = ["p/x", "q/y"]' }), 'p x, q y, r x');
  for (const header of ['off', 'OFF', 'on, off']) {
    assert.equal(candidates('p/m', { lines, header }), 'p m', header);
    assert.equal(candidates('a', { lines, aliases, header }), 'r x', header);
  }
  assert.equal(candidates('a', { lines, aliases, affinity: 'organisation' }), 'r x');
  assert.equal(candidates('q/m', { lines, affinity: 'session' }), 'q m, r m');
  for (const header of ['on', 'offline', '']) {
    assert.equal(candidates('q/m', { lines, header }), 'q m, r m', header);
  }
});

test('an alias has the targets with a registered provider, in order', () => {
  // Without a key, `openai` and `groq` are not registered.
  assert.equal(
    candidates('a', { aliases: 'a = ["openai/x", "q/y", "groq/z", "p/z"]' }),
    'q y, p z',
  );
  const none = 'a = ["openai/x", "groq/y"]';
  assert.equal(candidates('a', { aliases: none }), '400 Unknown provider: openai');
  assert.equal(candidates('a', { aliases: 'a = "p/m"' }), 'p m');
  assert.equal(candidates('a/b', { aliases: '"a/b" = ["q/m", "p/m"]' }), 'q m, p m');
});

test('a wildcard alias has the text of its * in the targets, and the most specific is first', () => {
  const aliases = [
    '"*" = "r/*"',
    '"m-*" = "p/*"',
    '"m-*-fast" = ["openai/*", "q/fast/m-*", "p/one"]',
    '"m-exact" = "q/e"',
    '"*-o" = "p/o-*"',
    '"p/*" = "q/p-*"',
    '"none-*" = ["openai/*", "groq/*"]',
  ].join('\n');
  const rows: Record<string, string> = {
    'm-1': 'p 1',
    'm-$&': 'p $&',
    'm-a/b': 'p a/b',
    'm-1-fast': 'q fast/m-1, p one',
    'm-exact': 'q e',
    'm-': 'p p-default',
    'm--fast': 'q fast/m-, p one',
    // Of equally specific names the first in the file wins.
    'm-o': 'p o',
    'a-o': 'p o-a',
    'p/x': 'q p-x',
    // The alias `*` leaves a registered provider its own names.
    'q/x': 'q x',
    p: 'p p-default',
    'unknown/x': 'r unknown/x',
    'none-1': '400 Unknown provider: openai',
  };
  for (const [name, expected] of Object.entries(rows)) {
    assert.equal(candidates(name, { aliases }), expected, name);
  }
  assert.equal(candidates('m-*', { aliases }), 'p *');
  assert.equal(candidates('', { aliases: '"*" = "r/*"' }).slice(0, 3), '400');
});

test('a client with models may name a wildcard alias if they allow the name', () => {
  const aliases = '"m-*" = "p/*"';
  const refused = '404 Resource not found (model_not_allowed)';
  for (const [models, expected] of [
    [['m-*'], 'p 1'],
    [['m-1'], 'p 1'],
    [['m-2'], refused],
    [['p/*'], refused],
  ] as const) {
    assert.equal(candidates('m-1', { aliases, tenant: { models } }), expected, models.join());
  }
});

test('a client with models may name an alias in them, or a full name, in any spelling', () => {
  const lines = 'primary = "p"\nfallback = ["q"]';
  const aliases = 'a = "r/m"';
  const refused = '404 Resource not found (model_not_allowed)';
  const rows: readonly (readonly [models: string[], name: string, expected: string])[] = [
    [['p/m'], 'p/m', 'p m, q q-default'],
    [['p/m'], 'm', 'p m, q q-default'],
    [['p/*'], 'p', 'p p-default, q q-default'],
    [['p/m'], 'p/n', refused],
    [['p/m'], 'q/m', refused],
    [['p/m'], 'x/m', refused],
    [['*'], 'x/m', '400 Unknown provider: x'],
    [['a'], 'a', 'r m, q q-default'],
    [['r/m'], 'a', refused],
    [['p/a'], 'a', refused],
    [['r/m'], 'r/m', 'r m, q q-default'],
    [[], 'p/m', refused],
  ];
  for (const [models, name, expected] of rows) {
    const given = { lines, aliases, tenant: { models } };
    assert.equal(candidates(name, given), expected, `${models.join()}: ${name}`);
  }
  assert.equal(candidates('p/m', { tenant: { models: undefined } }), 'p m');
});

test('a target is split at its first slash, and has no model without a slash', () => {
  assert.deepEqual(parseTarget('p/a/b'), { name: 'p/a/b', providerId: 'p', model: 'a/b' });
  assert.deepEqual(parseTarget('p'), { name: 'p', providerId: 'p', model: '' });
});
