import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';

import { stopClock } from '../support/clock.ts';
import { PROVIDER_KEY, startGateway, type TestGateway, chatBody } from '../support/gateway.ts';
import { modelOf, scenario, type ProviderSettings } from '../support/scenario.ts';
import { createGate, eventually } from '../support/streams.ts';
import { failWith, sendJson, type Script } from '../support/upstream.ts';

const list =
  (body: unknown): Script =>
  (_, response) =>
    sendJson(response, body);

/** How long a fetched list is used. */
const FRESH_MS = 300_000;

interface Entry {
  readonly id: string;
  readonly object: string;
  readonly created: number;
  readonly owned_by: string;
}

/** Returns the list's entries, after checks on the answer's form and each entry. */
async function entriesOf(gateway: TestGateway, { hasDetails = false } = {}): Promise<Entry[]> {
  const reply = await gateway.send('/v1/models');
  assert.equal(reply.status, 200, reply.text);
  assert.match(reply.headers['content-type']!, /^application\/json/);
  const { data, ...others } = reply.json() as { data: Entry[] };
  assert.deepEqual(others, { object: 'list' });
  for (const { id, object, created, owned_by, ...more } of data) {
    assert.equal(typeof id, 'string');
    assert.equal(object, 'model');
    assert.ok(Number.isInteger(created));
    assert.equal(typeof owned_by, 'string');
    if (!hasDetails) assert.deepEqual(more, {});
  }
  return data;
}

/** Returns each model's details: the members after the first four, common to all models. */
async function detailsOf(gateway: TestGateway): Promise<Record<string, unknown>> {
  const entries = await entriesOf(gateway, { hasDetails: true });
  return Object.fromEntries(
    entries.map((entry) => [entry.id, Object.fromEntries(Object.entries(entry).slice(4))]),
  );
}

async function idsOf(gateway: TestGateway): Promise<string[]> {
  return (await entriesOf(gateway)).map(({ id }) => id);
}

/** Starts a gateway with this script for provider `p`, and these lines in its section. */
async function start(
  t: TestContext,
  script: Script,
  { lines = '', more = '' }: { lines?: string; more?: string } = {},
) {
  const { gateway, p } = await scenario(t, {
    providers: { p: { script, lines } },
    more,
  });
  return { gateway, upstream: p };
}

/** Returns providers `p0`, `p1` and so on with these scripts, and these lines in each section. */
function numbered(scripts: readonly Script[], lines = ''): Record<string, ProviderSettings> {
  return Object.fromEntries(scripts.map((script, index) => [`p${index}`, { script, lines }]));
}

/** Starts a provider that sends its list after `open`. */
async function startGated(t: TestContext, models: readonly unknown[] = [{ id: 'a' }]) {
  const gate = createGate();
  const p: Script = async (_, response) => {
    await gate.opened;
    sendJson(response, models);
  };
  const started = await scenario(t, { providers: { p } });
  const wasSent = async () =>
    eventually(() => started.p.requests.length > 0, 'the list is asked for');
  return { ...started, wasSent, open: gate.open };
}

describe('the list of a provider', { concurrency: true }, () => {
  const shapes: readonly (readonly [body: unknown, names: readonly string[]])[] = [
    [{ object: 'list', data: [{ id: 'a' }, { id: 'b' }] }, ['a', 'b']],
    [
      [{ id: 'a', organization: 'x' }, { id: 'b' }],
      ['a', 'b'],
    ],
    [{ models: [{ name: 'models/a' }, { id: 'b' }] }, ['a', 'b']],
    [{ data: [{ id: 'models/a' }] }, ['a']],
    [{ data: [{ id: 'x/models/a' }] }, ['x/models/a']],
    [{ data: [{ id: 'acc/fire/m' }] }, ['acc/fire/m']],
    [[{ id: 'a' }, { id: 'a' }], ['a']],
    [{ data: [] }, []],
    // Clients send the `id`. OpenRouter's `name` beside it is a display name.
    [{ data: [{ id: 'a', name: 'Model A' }] }, ['a']],
    [{ models: [{ name: 'Model A', id: 'a' }] }, ['a']],
    [{ data: [{ id: null, name: 'a' }] }, ['a']],
    [{ data: null, models: [{ name: 'a' }] }, ['a']],
    [{ data: [{ id: 'a' }], models: [{ id: 'b' }] }, ['a']],
    [{ data: [null, 1, {}, { id: 7 }, { id: '' }, [], 'c', { id: 'a' }] }, ['c', 'a']],
    [
      [{ id: '__proto__' }, { id: 'constructor' }],
      ['__proto__', 'constructor'],
    ],
    // Names that contain a key.
    [
      ['a', `leak-${PROVIDER_KEY}`, 'Bearer abc', 'b'],
      ['a', 'b'],
    ],
  ];
  test('is read from {data}, an array or {models}, without entries that name a key', async (t) => {
    const providers = numbered(shapes.map(([body]) => list(body)));
    const { gateway } = await scenario(t, { providers });
    const expected = shapes.flatMap(([, names], index) => names.map((name) => `p${index}/${name}`));
    assert.deepEqual((await idsOf(gateway)).toSorted(), expected.toSorted());
  });

  test('that is null is empty, unless a message beside it reports a failure', async (t) => {
    const bodies: readonly (readonly [body: object | null, cause?: string])[] = [
      [{ object: 'list', data: null }],
      [{ models: null }],
      [{ data: null, error: {} }],
      [{ code: 500, msg: 'no', data: null }, 'not a model list'],
      [{ error: { message: 'no' }, data: null }, 'not a model list'],
      [{ object: 'list' }, 'not a model list'],
      [null, 'not a model list'],
    ];
    const page: Script = (_, response) => response.end(`<html><h1>Sign in ${'x'.repeat(100)}`);
    const providers = { ...numbered(bodies.map(([body]) => list(body))), page };
    const { gateway } = await scenario(t, { providers, more: '[logging]\nlevel = "debug"' });
    assert.deepEqual(await idsOf(gateway), []);
    const lines = gateway.lines('model list fetched');
    const causes = new Map(lines.map((line) => [line['provider'], line['cause']]));
    for (const [index, [body, cause]] of bodies.entries())
      assert.equal(causes.get(`p${index}`), cause, JSON.stringify(body));
    assert.equal(causes.get('page'), `not a model list: 200, Sign in ${'x'.repeat(92)}`);
  });

  test('of anthropic is requested with its headers and page size', async (t) => {
    const anthropic = list({ data: [{ type: 'model', id: 'claude' }] });
    const { gateway, anthropic: upstream } = await scenario(t, { providers: { anthropic } });
    assert.deepEqual(await detailsOf(gateway), { 'anthropic/claude': { type: 'model' } });
    const [{ url, headers } = assert.fail()] = upstream.requests;
    assert.equal(url, '/v1/models?limit=1000');
    assert.equal(headers['x-api-key'], PROVIDER_KEY);
    assert.equal(headers['anthropic-version'], '2023-06-01');
    upstream.script = list({ choices: [] });
    assert.equal((await gateway.chat(chatBody({ model: 'anthropic/claude' }))).status, 200);
    const chat = upstream.requests[1]!.headers;
    assert.equal(chat.authorization, `Bearer ${PROVIDER_KEY}`);
    assert.ok(!('x-api-key' in chat));
  });

  test('in the settings replaces the request, and includes the default model', async (t) => {
    const lines = 'models = ["x", "y/z"]\ndefault_model = "d"';
    const { gateway, upstream } = await start(t, list([{ id: 'a' }]), { lines });
    assert.deepEqual((await idsOf(gateway)).toSorted(), ['p/d', 'p/x', 'p/y/z']);
    assert.equal(upstream.requests.length, 0);
  });

  test("keeps `created`, has the provider as owner, and adds providers' aliases", async (t) => {
    const more = `[aliases]\nnick = "p/a"\n"x/y" = "p/z"\ngone = "openai/a"\nnobody = "no/a"\n`;
    const data = [
      { id: 'a', created: 1_700_000_000, owned_by: 'someone' },
      { id: 'b', created: '1700000000' },
      { id: 'c', created: 1.5 },
      // The default model is listed once.
      { id: 'd', created: 1_600_000_000 },
    ];
    const { gateway } = await start(t, list({ data }), { lines: 'default_model = "d"', more });
    assert.deepEqual(
      (await entriesOf(gateway)).map(({ id, created, owned_by }) => [id, created, owned_by]),
      [
        ['p/a', 1_700_000_000, 'p'],
        ['p/b', 0, 'p'],
        ['p/c', 0, 'p'],
        ['p/d', 1_600_000_000, 'p'],
        ['nick', 1_700_000_000, 'p'],
        ['x/y', 0, 'p'],
      ],
    );
    assert.deepEqual(await idsOf(await startGateway(t, {})), []);
  });
});

// Not beside other tests, because a list has three seconds.
test('a list may have 4 MiB', async (t) => {
  const head = '{"data":["a"],"more":"';
  const scripts = [4_194_304, 4_194_305].map((bytes): Script => {
    const body = `${head}${'x'.repeat(bytes - head.length - 2)}"}`;
    return (_, response) => response.end(body);
  });
  const { gateway } = await scenario(t, { providers: numbered(scripts) });
  assert.deepEqual(await idsOf(gateway), ['p0/a']);
});

/** All details, as OpenRouter, vLLM, Groq, Anthropic and llama.cpp name them. */
const DETAILS = {
  context_length: 131_072,
  max_model_len: 32_768,
  context_window: 131_072,
  max_input_tokens: 200_000,
  max_output_tokens: 64_000,
  max_completion_tokens: 8192,
  input_modalities: ['text', 'image'],
  output_modalities: ['text'],
  architecture: { modality: 'text->text', input_modalities: ['text'] },
  pricing: { prompt: '0.00000025', tiers: [{ above: 200_000 }] },
  supported_parameters: ['tools', 'temperature'],
  type: 'chat',
  supported_endpoints: ['/chat/completions'],
  supported_operations: ['generate'],
  capabilities: { thinking: { types: { enabled: true } } },
  meta: { n_ctx: 4096 },
};

describe("a provider's details of a model", { concurrency: true }, () => {
  test('come from the first target of an alias that replaces a listed model', async (t) => {
    const more = '[aliases]\n"p/a" = "q/b"\n"p/gone" = "openai/x"\nnick = "p/a"\n';
    const p = { script: list([{ id: 'a', created: 1 }, { id: 'gone' }, { id: 'c' }]) };
    const q = { script: list([{ id: 'b', created: 2 }]) };
    const { gateway } = await scenario(t, { providers: { p, q }, more });
    const entries = await entriesOf(gateway);
    assert.deepEqual(
      entries.map(({ id, created, owned_by }) => [id, created, owned_by]),
      [
        ['p/c', 0, 'p'],
        ['q/b', 2, 'q'],
        ['p/a', 2, 'q'],
        ['nick', 1, 'p'],
      ],
    );
  });

  test('pass unchanged: limits, modalities, prices and uses, and nothing else', async (t) => {
    const { meta } = DETAILS;
    const others = { n_ctx: 1, description: 'x', root: '/srv', permission: [{}], status: 'ok' };
    const entry = { id: 'a', ...DETAILS, ...others, meta: { ...meta, n_params: 7 } };
    const leak = { id: 'leak', pricing: { at: [`leak-${PROVIDER_KEY}`] } };
    const small = { context_length: 4096 };
    const { gateway } = await scenario(t, {
      providers: {
        p: {
          script: list({ data: [entry, { id: 'b', context_length: null, meta: 'x' }, leak] }),
          lines: 'default_model = "a"',
        },
        q: list([{ id: 'b', ...small }]),
      },
      more: [
        '[aliases]',
        'first = ["p/a", "q/b"]',
        'second = ["openai/a", "q/b", "p/a"]',
        'unlisted = ["p/other", "q/b"]',
      ].join('\n'),
    });
    assert.deepEqual(await detailsOf(gateway), {
      'p/a': DETAILS,
      'p/b': {},
      // The details contain a key.
      'p/leak': {},
      'q/b': small,
      first: DETAILS,
      second: small,
      unlisted: {},
    });
  });

  test('are left out above 2,048 characters of JSON or three levels', async (t) => {
    const text = (characters: number) => 'x'.repeat(characters - 2);
    const pricing = { a: [{ b: 1 }] };
    const { gateway } = await scenario(t, {
      providers: {
        p: list([
          { id: 'a', context_length: text(2048), max_model_len: text(2049), pricing },
          { id: 'b', pricing: { a: pricing }, context_length: 1, architecture: [[[[]]]] },
          { id: 'c', meta: { n_ctx: [[[]]] }, max_input_tokens: 7 },
        ]),
        q: (_, response) => {
          const json = `${'['.repeat(100_000)}${']'.repeat(100_000)}`;
          response.end(`[{"id":"a","pricing":${json},"meta":{"n_ctx":${json}}}]`);
        },
      },
    });
    assert.deepEqual(await detailsOf(gateway), {
      'p/a': { context_length: text(2048), pricing },
      'p/b': { context_length: 1 },
      'p/c': { max_input_tokens: 7 },
      'q/a': {},
    });
  });
});

describe("the settings' details of a model", { concurrency: true }, () => {
  const details = (id: string, model: string, lines: string) =>
    `[providers.${id}.model_details."${model}"]\n${lines}\n`;

  test("are added to the provider's details, and override them, for aliases too", async (t) => {
    const more = [
      details('p', 'a', 'context_length = 131072\nmax_output_tokens = 8192'),
      details('p', 'org/m-1.5', 'context_window = 1'),
      details('q', 'd', 'max_input_tokens = 2\nmax_model_len = 3\nmax_completion_tokens = 4'),
      details('q', 'constructor', 'context_length = 5'),
      details('p', 'unlisted', 'context_length = 6'),
      '[aliases]\nnick = "p/a"\nother = "q/constructor"\n',
    ].join('');
    const p = list([
      { id: 'a', context_length: 1, pricing: { prompt: '1' } },
      { id: 'org/m-1.5', context_length: 9 },
      { id: 'valueOf' },
    ]);
    const q = { script: failWith(404), lines: 'default_model = "d"' };
    const { gateway } = await scenario(t, { providers: { p, q }, more });
    const a = { context_length: 131_072, pricing: { prompt: '1' }, max_output_tokens: 8192 };
    assert.deepEqual(await detailsOf(gateway), {
      'p/a': a,
      'p/org/m-1.5': { context_length: 9, context_window: 1 },
      'p/valueOf': {},
      'q/d': { max_input_tokens: 2, max_model_len: 3, max_completion_tokens: 4 },
      nick: a,
      other: { context_length: 5 },
    });
  });

  test('change with a reload, even while the list is on its way', async (t) => {
    const { gateway, wasSent, open, toml } = await startGated(t, [
      { id: 'a', context_length: 9 },
      'b',
    ]);
    const settings = (tokens: number, alias: string) =>
      `${toml}${details('p', 'a', `max_model_len = ${tokens}`)}[aliases]\nnick = "p/${alias}"\n`;
    const first = detailsOf(gateway);
    await wasSent();
    await gateway.reload(settings(1, 'a'));
    const second = detailsOf(gateway);
    open();
    assert.deepEqual(await first, { 'p/a': { context_length: 9 }, 'p/b': {} });
    const a = { context_length: 9, max_model_len: 1 };
    assert.deepEqual(await second, { 'p/a': a, 'p/b': {}, nick: a });
    await gateway.reload(settings(2, 'b'));
    const models = { 'p/a': { ...a, max_model_len: 2 }, 'p/b': {}, nick: {} };
    assert.deepEqual(await detailsOf(gateway), models);
  });
});

describe('a wildcard alias', { concurrency: true }, () => {
  const models = ['m-1', 'm-2', 'n-1', 'm-3-x'].map((id) => ({ id, created: 1 }));

  test('lists the models that its names lead to, and never its pattern', async (t) => {
    const { gateway } = await scenario(t, {
      providers: {
        p: {
          script: list(models),
          lines: 'hide_models = ["m-2"]\nmodel_details."m-1".context_window = 5',
        },
        q: { script: list(models.slice(0, 1)) },
      },
      more: [
        '[aliases]',
        '"best-*" = ["openai/*", "p/m-*", "q/*"]',
        '"best-3-*" = "q/n-*"',
        '"sole-*" = "p/n-1"',
        '"*-1" = "q/*-1"',
        '"q/m-*" = "p/m-*"',
        'best-1 = "q/other"',
        'n-1 = "p/m-1"',
      ].join('\n'),
    });
    const details = await detailsOf(gateway);
    assert.deepEqual(details, {
      'p/m-3-x': {},
      'best-1': {},
      'n-1': { context_window: 5 },
      'q/m-1': { context_window: 5 },
      'q/m-3-x': {},
      'm-1': {},
    });
  });

  test('shows each client the names that it may send', async (t) => {
    const { gateway } = await scenario(t, {
      clients: { alice: 'key = "key-of-alice"\nmodels = ["best-2"]' },
      providers: { p: list(models) },
      more: '[aliases]\n"best-*" = "p/m-*"\n',
    });
    const headers = { authorization: 'Bearer key-of-alice' };
    const { data } = (await gateway.send('/v1/models', { headers })).json() as { data: Entry[] };
    assert.deepEqual(
      data.map(({ id }) => id),
      ['best-2'],
    );
  });

  test('warns of no missing model unless a target has a whole name', async (t) => {
    const { gateway } = await scenario(t, {
      providers: { p: list(models) },
      more: '[aliases]\n"a-*" = "p/gone-*"\n"b-*" = "p/gone"\n',
    });
    await idsOf(gateway);
    assert.deepEqual(
      gateway.lines('model is not listed').map(({ setting, model }) => [setting, model]),
      [['aliases.b-*', 'gone']],
    );
  });
});

describe('hidden models', { concurrency: true }, () => {
  const models = ['chat', 'text-embed-3', 'embed', 'tts-1'].map((id) => ({ id, created: 1 }));

  test('are left out of the list, but an alias of a hidden model is listed', async (t) => {
    const lines = 'hide_models = ["*embed*", "tts-*"]\ndefault_model = "tts-2"';
    const { gateway } = await scenario(t, {
      providers: { p: { script: list(models), lines }, q: list(models.slice(1)) },
      more: '[aliases]\nvectors = "p/embed"\n',
    });
    const entries = await entriesOf(gateway);
    const ofQ = ['q/text-embed-3', 'q/embed', 'q/tts-1'];
    assert.deepEqual(
      entries.map(({ id }) => id),
      ['p/chat', ...ofQ, 'vectors'],
    );
    assert.equal(entries.at(-1)!.created, 1, 'an alias has the details of its hidden target');
  });

  test('are left out of a list in the settings too', async (t) => {
    const lines = 'models = ["a", "b"]\nhide_models = ["a"]';
    const { gateway } = await scenario(t, { providers: { p: { lines } } });
    assert.deepEqual(await idsOf(gateway), ['p/b']);
  });

  test('are served', async (t) => {
    const { gateway, p } = await scenario(t, {
      providers: { p: { lines: 'hide_models = ["*"]' } },
    });
    assert.equal((await gateway.chat(chatBody({ model: 'p/m' }))).status, 200);
    assert.equal(modelOf(p.requests[0]!), 'm');
  });
});

describe('a provider without a usable list', { concurrency: true }, () => {
  const failures: readonly Script[] = [
    // Never answers.
    () => {},
    failWith(401),
    failWith(404),
    (_, response) => sendJson(response, [{ id: 'a' }], { status: 500 }),
    failWith(429),
    (_, response) => response.destroy(),
    (_, response) => {
      response.writeHead(200, { 'content-length': '100' }).write('{"data":[');
      setTimeout(() => response.destroy(), 20);
    },
    (_, response) => response.end('<html>'),
    (_, response) => response.end(),
    list(null),
    list(7),
    list({ error: { message: 'x' } }),
    list({ data: { id: 'a' } }),
    list({ data: [[['a']], { id: { id: 'a' } }] }),
    (request, response) => response.writeHead(302, { location: `${request.url}?again` }).end(),
    // Never ends, and drips.
    (_, response) => response.writeHead(200).write('[{"id":"a"}'),
    (_, response) => {
      response.writeHead(200);
      const timer = setInterval(() => response.write(' '), 100);
      response.once('close', () => clearInterval(timer));
    },
  ];
  test('contributes its default model and aliases, and delays no other list', async (t) => {
    const providers = numbered(failures, 'default_model = "d"');
    const others = { good: list([{ id: 'a' }]), none: failWith(500) };
    const { gateway, p0: slow } = await scenario<string>(t, {
      providers: { ...providers, ...others },
      more: '[aliases]\nnick = "p1/z"\n',
    });
    const expected = [...Object.keys(providers).map((id) => `${id}/d`), 'good/a', 'nick'];
    assert.deepEqual((await idsOf(gateway)).toSorted(), expected.toSorted());
    await slow!.requests[0]!.closed;
  });

  test('is not read on after it has failed, and its connection is closed', async (t) => {
    const providers = numbered([
      (_, response) => response.writeHead(500).write('x'),
      (_, response) => response.writeHead(200).write('x'.repeat(4_194_305)),
    ]);
    const { gateway, ...upstreams } = await scenario(t, { providers });
    assert.deepEqual(await idsOf(gateway), []);
    await upstreams['p0']!.requests[0]!.closed;
    await upstreams['p1']!.requests[0]!.closed;
  });
});

describe('the answer', { concurrency: true }, () => {
  test('is fetched once for concurrent requests, and outlives the first client', async (t) => {
    const { gateway, p, wasSent, open } = await startGated(t);
    const leaving = new AbortController();
    const left = assert.rejects(gateway.send('/v1/models', { signal: leaving.signal }));
    // Requests during the fetch wait for it.
    await wasSent();
    const all = Array.from({ length: 20 }, async () => idsOf(gateway));
    // The requests above came before this request.
    await gateway.send('/health');
    leaving.abort();
    await left;
    open();
    for (const ids of await Promise.all(all)) assert.deepEqual(ids, ['p/a']);
    assert.equal(p.requests.length, 1);
  });

  test('asks providers at the same time', async (t) => {
    const both = createGate();
    let waiting = 0;
    const script: Script = async (_, response) => {
      waiting += 1;
      if (waiting === 2) both.open();
      await both.opened;
      sendJson(response, [{ id: 'a' }]);
    };
    const { gateway } = await scenario(t, { providers: { p: script, q: script } });
    assert.deepEqual(await idsOf(gateway), ['p/a', 'q/a']);
  });

  test('has names that a client can send back as the model', async (t) => {
    const { gateway, upstream } = await start(t, list([{ id: 'a/b' }, { id: 'models/c' }]), {
      lines: 'default_model = "d"',
      more: '[aliases]\nnick = "p/e"\n',
    });
    const ids = await idsOf(gateway);
    upstream.script = list({ choices: [] });
    const asked: unknown[] = [];
    for (const model of ids) {
      assert.equal((await gateway.chat(chatBody({ model }))).status, 200);
      asked.push(modelOf(upstream.requests.at(-1)!));
    }
    assert.deepEqual([ids.length, asked], [4, ['a/b', 'c', 'd', 'e']]);
  });
});

// Not concurrent, because it stops the process's clock.
test('a list is fetched again after five minutes, or ten seconds after a failure', async (t) => {
  const clock = stopClock(t);
  const { gateway, upstream } = await start(t, list({ error: { message: 'x' } }));
  const askedAfter = async (ms: number) => {
    clock.nowMs += ms;
    return [(await idsOf(gateway)).length, upstream.requests.length];
  };
  assert.deepEqual(await askedAfter(0), [0, 1]);
  assert.deepEqual(await askedAfter(9999), [0, 1]);
  upstream.script = list([{ id: 'a' }]);
  assert.deepEqual(await askedAfter(1), [1, 2]);
  upstream.script = list({ error: { message: 'x' } });
  assert.deepEqual(await askedAfter(299_999), [1, 2]);
  assert.deepEqual(await askedAfter(1), [1, 3]);
  assert.deepEqual(await askedAfter(9999), [1, 3]);
});

// Not concurrent either.
test('a model with a name of more than 512 characters is left out, and told once', async (t) => {
  const clock = stopClock(t);
  let longest = 513;
  const script: Script = (_, response) =>
    sendJson(response, [{ id: 'a' }, { id: 'b'.repeat(512) }, { id: 'c'.repeat(longest) }]);
  const { gateway } = await start(t, script);
  const told = () =>
    gateway.lines('models are left out').map(({ models, cause }) => [models, cause]);
  for (let fetched = 0; fetched < 2; fetched += 1) {
    assert.deepEqual(await idsOf(gateway), ['p/a', `p/${'b'.repeat(512)}`]);
    clock.nowMs += FRESH_MS;
  }
  const line = [1, 'names of more than 512 characters'];
  assert.deepEqual(told(), [line]);
  longest = 512;
  assert.equal((await idsOf(gateway)).length, 3);
  clock.nowMs += FRESH_MS;
  longest = 100_000;
  assert.equal((await idsOf(gateway)).length, 2);
  assert.deepEqual(told(), [line, line], 'a list without such names lies between');
});
