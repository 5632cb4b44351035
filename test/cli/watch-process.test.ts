/** `[server] watch`: the program reloads when its files change. */

import assert from 'node:assert/strict';
import { mkdirSync, renameSync, rmSync, symlinkSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { before, describe, test, type TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { createCertificate, NO_OPENSSL } from '../support/certificate.ts';
import { chatBody } from '../support/gateway.ts';
import { startHeldUpstream } from '../support/held-stream.ts';
import { buildOnce, emptyFolder, startServing } from '../support/process.ts';
import { eventually, openChat } from '../support/streams.ts';
import { CHUNK, completionEvents, startUpstream, type FakeUpstream } from '../support/upstream.ts';

before(buildOnce);

/** More than two polls, in which a change would have been read. */
const THREE_POLLS_MS = 3200;

const serverToml = (more = 'watch = true') => `[server]\nhost = "127.0.0.1"\nport = 0\n${more}\n`;

const providerToml = ({ baseUrl }: FakeUpstream, key = '${file:key}', more = '') =>
  `[providers]\nprimary = "p"\n[providers.p]\nbase_url = "${baseUrl}"\napi_key = "${key}"\n${more}`;

/** Starts the program in a folder with these files. */
async function start(t: TestContext, files: Readonly<Record<string, string>>) {
  const folder = emptyFolder(t, files);
  return startIn(t, folder, join(folder, 'gateway.toml'));
}

async function startIn(t: TestContext, folder: string, path: string) {
  const program = await startServing(t, ['--config', path]);
  await eventually(() => program.lines('started').length === 1, 'the start');
  const ask = async () => {
    const response = await fetch(`http://127.0.0.1:${program.port}/v1/chat/completions`, {
      method: 'POST',
      headers: { authorization: 'Bearer any', 'content-type': 'application/json' },
      body: JSON.stringify(chatBody()),
    });
    await response.arrayBuffer();
    return response.status;
  };
  /** Returns the lines about reloads when there are `count`. */
  const reloads = async (count: number) => {
    const lines = () => program.lines('reloaded', 'reload failed');
    await eventually(() => lines().length >= count, `${count} reloads`);
    assert.equal(lines().length, count);
    return lines();
  };
  const write = (name: string, text: string) => writeFileSync(join(folder, name), text);
  return { ...program, ask, folder, path, reloads, write };
}

const keyOf = ({ requests }: FakeUpstream) => requests.at(-1)!.headers.authorization;

describe('with watch = true', { concurrency: 8 }, () => {
  test('a renamed file and a written key are in use without a signal', async (t) => {
    const upstream = await startUpstream(t);
    const toml = serverToml() + providerToml(upstream);
    const { ask, path, reloads, write } = await start(t, { 'gateway.toml': toml, key: 'key-one1' });
    assert.equal(await ask(), 200);
    assert.equal(keyOf(upstream), 'Bearer key-one1');
    write('key', 'key-two2');
    await reloads(1);
    await ask();
    assert.equal(keyOf(upstream), 'Bearer key-two2');
    write('next.toml', `${serverToml('watch = true\ncors = true')}${providerToml(upstream)}`);
    renameSync(join(path, '..', 'next.toml'), path);
    const [, last] = await reloads(2);
    assert.deepEqual(last!['changed'], ['server.cors']);
  });

  test('a link that Kubernetes replaces is followed', async (t) => {
    const upstream = await startUpstream(t);
    const folder = emptyFolder(t);
    const fill = (name: string, key: string) => {
      mkdirSync(join(folder, name));
      writeFileSync(join(folder, name, 'gateway.toml'), serverToml() + providerToml(upstream));
      writeFileSync(join(folder, name, 'key'), key);
      symlinkSync(name, join(folder, '..data_tmp'));
      renameSync(join(folder, '..data_tmp'), join(folder, '..data'));
    };
    fill('..1', 'key-one1');
    for (const name of ['gateway.toml', 'key']) symlinkSync(`..data/${name}`, join(folder, name));
    const { ask, reloads } = await startIn(t, folder, join(folder, 'gateway.toml'));
    fill('..2', 'key-two2');
    rmSync(join(folder, '..1'), { recursive: true });
    await reloads(1);
    await ask();
    assert.equal(keyOf(upstream), 'Bearer key-two2');
  });

  test("an editor's several writes make one reload", async (t) => {
    const upstream = await startUpstream(t);
    const toml = serverToml() + providerToml(upstream);
    const { path, reloads, write } = await start(t, { 'gateway.toml': toml, key: 'key-one1' });
    truncateSync(path);
    write('gateway.toml', '[server]\nhost = "127.0');
    write('gateway.toml', toml.replace('watch = true', 'watch = true\ncors = true'));
    await reloads(1);
    await sleep(THREE_POLLS_MS);
    assert.deepEqual((await reloads(1))[0]!['changed'], ['server.cors']);
  });

  test('a file that is wrong or gone is reported once, and read when it is mended', async (t) => {
    const upstream = await startUpstream(t);
    const toml = serverToml() + providerToml(upstream);
    const files = { 'gateway.toml': toml, key: 'key-one1' };
    const { ask, folder, reloads, write } = await start(t, files);
    rmSync(join(folder, 'key'));
    assert.match(String((await reloads(1))[0]!['cause']), /key: no such file$/);
    write('gateway.toml', '[wrong');
    assert.match(String((await reloads(2))[1]!['cause']), /gateway\.toml:/);
    await sleep(THREE_POLLS_MS);
    await reloads(2);
    // The wrong gateway.toml names no key, but the key is watched still.
    write('key', 'key-two2');
    assert.equal((await reloads(3))[2]!['message'], 'reload failed');
    assert.equal(await ask(), 200);
    assert.equal(keyOf(upstream), 'Bearer key-one1');
    write('gateway.toml', toml);
    assert.equal((await reloads(4))[3]!['message'], 'reloaded');
    assert.equal(await ask(), 200);
    assert.equal(keyOf(upstream), 'Bearer key-two2');
  });

  test('a provider gets the certificates that were replaced', { skip: NO_OPENSSL }, async (t) => {
    const certificate = createCertificate(t, ['IP:127.0.0.1']);
    const upstream = await startUpstream(t, undefined, certificate);
    const other = createCertificate(t, ['DNS:other']).cert.toString();
    const toml = serverToml() + providerToml(upstream, 'key-one1', 'ca_file = "ca.pem"\n');
    const { ask, reloads, write } = await start(t, { 'gateway.toml': toml, 'ca.pem': other });
    assert.equal(await ask(), 502);
    write('ca.pem', certificate.cert.toString());
    assert.deepEqual((await reloads(1))[0]!['changed'], ['providers.p.ca_file']);
    assert.equal(await ask(), 200);
  });

  test('a stream keeps its settings', async (t) => {
    const { upstream, finish } = await startHeldUpstream(t);
    const toml = serverToml() + providerToml(upstream);
    const { port, reloads, write } = await start(t, { 'gateway.toml': toml, key: 'key-one1' });
    const stream = openChat(port);
    await eventually(() => stream.text() === CHUNK, 'the first event');
    write('gateway.toml', serverToml());
    await reloads(1);
    finish();
    assert.equal(await stream.ended, CHUNK + completionEvents());
  });

  test('a reload ends the watch and begins it', async (t) => {
    const upstream = await startUpstream(t);
    const tomlOf = (more: string) => serverToml(more) + providerToml(upstream, 'key-one1');
    const { child, reloads, write } = await start(t, { 'gateway.toml': tomlOf('watch = true') });
    write('gateway.toml', tomlOf(''));
    assert.deepEqual((await reloads(1))[0]!['changed'], ['server.watch']);
    write('gateway.toml', tomlOf('cors = true'));
    await sleep(THREE_POLLS_MS);
    await reloads(1);
    write('gateway.toml', tomlOf('watch = true'));
    child.kill('SIGHUP');
    await reloads(2);
    write('gateway.toml', tomlOf('watch = true\ncors = true'));
    assert.deepEqual((await reloads(3))[2]!['changed'], ['server.cors']);
  });

  test('a change in a drain is not read', async (t) => {
    const { upstream, finish } = await startHeldUpstream(t);
    const toml = serverToml() + providerToml(upstream);
    const program = await start(t, { 'gateway.toml': toml, key: 'key-one1' });
    const stream = openChat(program.port);
    await eventually(() => stream.text() === CHUNK, 'the first event');
    program.child.kill('SIGTERM');
    await eventually(() => program.lines('draining').length === 1, 'the drain');
    program.write('key', 'key-two2');
    await eventually(() => program.lines('reload ignored').length === 1, 'the line');
    program.write('key', 'key-three3');
    await sleep(THREE_POLLS_MS);
    finish();
    assert.equal(await program.exit, 0);
    assert.equal(program.lines('reload ignored').length, 1);
    assert.deepEqual(program.lines('reloaded'), []);
  });
});

test('without watch, a changed file waits for SIGHUP', async (t) => {
  const upstream = await startUpstream(t);
  const toml = serverToml('') + providerToml(upstream);
  const { child, reloads, write } = await start(t, { 'gateway.toml': toml, key: 'key-one1' });
  write('key', 'key-two2');
  await sleep(THREE_POLLS_MS);
  await reloads(0);
  child.kill('SIGHUP');
  await reloads(1);
});
