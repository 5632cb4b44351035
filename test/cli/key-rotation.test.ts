/** docs/deployment.md's chapter "Key rotation", carried out word for word under load. */

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { before, test, type TestContext } from 'node:test';

import { NO_OPENSSL } from '../support/certificate.ts';
import { chatBody } from '../support/gateway.ts';
import { buildOnce, emptyFolder, ROOT, startServing } from '../support/process.ts';
import { eventually } from '../support/streams.ts';
import { startUpstream } from '../support/upstream.ts';

before(buildOnce);

const [, chapter = ''] = /^## Key rotation\n([^]*?)^## /m.exec(
  readFileSync(join(ROOT, 'docs/deployment.md'), 'utf8'),
)!;
const blocksOf = (language: string) =>
  [...chapter.matchAll(new RegExp(`^\`\`\`${language}\\n([^]*?)^\`\`\`$`, 'gm'))].map(
    ([, block = '']) => block,
  );
const [settings = ''] = blocksOf('toml');
const steps = blocksOf('sh');

const CALLERS = 4;
const OLD = { alice: 'alice-old-0123456789', openai: 'openai-old-0123456789' };

/** Starts the gateway with the chapter's settings, and callers that ask without a pause. */
async function start(t: TestContext, folder: string) {
  const upstream = await startUpstream(t);
  const args = ['--config', join(folder, 'gateway.toml'), '--host', '127.0.0.1', '--port', '0'];
  const program = await startServing(t, args, { env: { OPENAI_BASE_URL: upstream.baseUrl } });
  const readKey = (name: string) => readFileSync(join(folder, 'keys', name), 'utf8').trim();
  const statusOf = async (key: string) => {
    const response = await fetch(`http://127.0.0.1:${program.port}/v1/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: JSON.stringify(chatBody({ model: 'openai/m' })),
    });
    await response.arrayBuffer();
    return response.status;
  };
  const load = { isOver: false, key: OLD.alice, answered: 0, failed: [] as number[] };
  const callers = Array.from({ length: CALLERS }, async () => {
    while (!load.isOver) {
      const status = await statusOf(load.key);
      load.answered += 1;
      if (status !== 200) load.failed.push(status);
    }
  });
  /** Carries out a step, and waits until the gateway has read the files, and answers by them. */
  const change = async (step: () => void, setting: string) => {
    const reloads = () => program.lines('reloaded', 'reload failed');
    const { length } = reloads();
    step();
    await eventually(() => reloads().length > length, 'the reload');
    assert.deepEqual(reloads()[length]!['changed'], [setting], program.stdout());
    const { answered } = load;
    await eventually(() => load.answered > answered + 2 * CALLERS, 'the load goes on');
  };
  const end = async () => {
    load.isOver = true;
    await Promise.all(callers);
    assert.deepEqual(load.failed, []);
  };
  const providerKey = () => upstream.requests.at(-1)!.headers.authorization;
  return { change, end, load, providerKey, readKey, statusOf };
}

test('keys rotate by the commands of the document', { skip: NO_OPENSSL }, async (t) => {
  const folder = emptyFolder(t, {
    'gateway.toml': settings,
    'openai.new': 'openai-new-0123456789',
  });
  mkdirSync(join(folder, 'keys'));
  for (const [name, key] of Object.entries(OLD)) writeFileSync(join(folder, 'keys', name), key);
  assert.equal(steps.length, 4);
  const [prepare, add, withdraw, ofProvider] = steps.map(
    (step) => () => void execFileSync('sh', ['-e', '-c', step], { cwd: folder }),
  );
  prepare!();
  const { change, end, load, providerKey, readKey, statusOf } = await start(t, folder);
  await change(add!, 'clients.alice.keys');
  const newKey = readKey('alice');
  assert.notEqual(newKey, OLD.alice);
  assert.deepEqual([await statusOf(OLD.alice), await statusOf(newKey)], [200, 200]);
  load.key = newKey;
  const { answered } = load;
  await eventually(() => load.answered > answered + CALLERS, 'requests with the old key ended');
  await change(withdraw!, 'clients.alice.keys');
  assert.deepEqual([await statusOf(OLD.alice), await statusOf(newKey)], [401, 200]);
  assert.equal(providerKey(), `Bearer ${OLD.openai}`);
  await change(ofProvider!, 'providers.openai.api_keys');
  assert.equal(providerKey(), 'Bearer openai-new-0123456789');
  await end();
});

test('keys rotate as the kubelet replaces the files of a Secret', async (t) => {
  const folder = emptyFolder(t, { 'gateway.toml': settings });
  const keys = join(folder, 'keys');
  mkdirSync(keys);
  let version = 0;
  /** Fills a new folder, and makes the link `..data` lead to it. */
  const apply = (secret: Readonly<Record<string, string>>) => {
    version += 1;
    mkdirSync(join(keys, `..${version}`));
    for (const [name, key] of Object.entries(secret)) {
      writeFileSync(join(keys, `..${version}`, name), key);
    }
    symlinkSync(`..${version}`, join(keys, '..data_tmp'));
    renameSync(join(keys, '..data_tmp'), join(keys, '..data'));
    rmSync(join(keys, `..${version - 1}`), { recursive: true, force: true });
  };
  const secret = { ...OLD, 'alice.old': OLD.alice };
  apply(secret);
  for (const name of Object.keys(secret)) symlinkSync(`..data/${name}`, join(keys, name));
  const { change, end, load, statusOf } = await start(t, folder);
  const added = { ...secret, alice: 'alice-new-0123456789' };
  await change(() => apply(added), 'clients.alice.keys');
  assert.equal(await statusOf(OLD.alice), 200);
  load.key = added.alice;
  const { answered } = load;
  await eventually(() => load.answered > answered + CALLERS, 'requests with the old key ended');
  await change(() => apply({ ...added, 'alice.old': added.alice }), 'clients.alice.keys');
  assert.equal(await statusOf(OLD.alice), 401);
  await end();
});
