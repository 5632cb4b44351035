/**
 * The image of deploy/Dockerfile without an engine: its files, and that it serves, reloads and
 * drains.
 */

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';

import { chatBody, providerToml } from '../support/gateway.ts';
import { openHeldStream } from '../support/held-stream.ts';
import { buildOnce, freePort, SERVER } from '../support/process.ts';
import { eventually, openChat } from '../support/streams.ts';
import { startUpstream } from '../support/upstream.ts';
import { CANNOT_UNSHARE, startContainer, type Container } from './container.ts';
import { assembleImage, filesOf, type Image } from './image.ts';

if (CANNOT_UNSHARE) console.error(`SKIPPED: ${CANNOT_UNSHARE}.`);
const OPTIONS = { skip: CANNOT_UNSHARE, timeout: 300_000 };
const SETTINGS = '/etc/inference-gateway/gateway.toml';
const LIBRARY = /^\/lib(?:64|\/[\w-]+-linux-gnu)?\/[\w.+-]+\.so(?:\.\d+)*$/;

const folder = mkdtempSync(join(tmpdir(), 'gateway-container-'));
after(() => rmSync(folder, { recursive: true, force: true }));
let assembled: Image | undefined;

function theImage(): Image {
  const node = execFileSync('sh', ['test/nodes.sh', '--path', '24'], { encoding: 'utf8' }).trim();
  assembled ??= assembleImage(folder, node);
  return assembled;
}

const sha256 = (path: string) => createHash('sha256').update(readFileSync(path)).digest('hex');

test(
  'the root has Node, its libraries and the server.js of `npm run build`',
  OPTIONS,
  async (t) => {
    await buildOnce();
    const { root } = theImage();
    const files = filesOf(root).filter(([name]) => name !== SETTINGS);
    for (const [name, bytes] of files) t.diagnostic(`${String(bytes).padStart(10)} ${name}`);
    const total = files.reduce((sum, [, bytes]) => sum + bytes, 0);
    t.diagnostic(`${String(total).padStart(10)} bytes in ${files.length} files`);
    const others = files.map(([name]) => name).filter((name) => !LIBRARY.test(name));
    assert.deepEqual(others, ['/app/server.js', '/nodejs/bin/node']);
    assert.equal(sha256(join(root, 'app/server.js')), sha256(SERVER));
  },
);

/** Replaces the file atomically, as editors and Kubernetes do. */
function writeSettings({ root }: Image, text: string): void {
  const path = join(root, SETTINGS);
  writeFileSync(`${path}.new`, text);
  renameSync(`${path}.new`, path);
}

async function sendsCompleteAnswer(port: number, model: string): Promise<number> {
  const chat = openChat(port, chatBody({ model }));
  const response = await chat.response;
  await chat.ended;
  return response.statusCode ?? 0;
}

function assertContained({ pid, execute }: Container, { uid, gid }: Image): void {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8');
  assert.match(status, new RegExp(`^Uid:(\\s${uid}){4}$`, 'm'));
  assert.match(status, new RegExp(`^Gid:(\\s${gid}){4}$`, 'm'));
  assert.match(status, /^NSpid:\s\d+\s1$/m);
  assert.match(status, /^CapEff:\s0+$/m);
  assert.match(status, /^NoNewPrivs:\s1$/m);
  const write = 'try { fs.writeFileSync("/app/x", "") } catch ({ code }) { console.log(code) }';
  // Root may write everywhere except to read-only mounts.
  assert.equal(execute(['/nodejs/bin/node', '-e', write], 0).output, 'EROFS\n');
}

test(
  'as user 65532 on a read-only root it answers, streams, reloads, stays healthy and drains',
  OPTIONS,
  async (t) => {
    const upstream = await startUpstream(t);
    const port = await freePort();
    assert.deepEqual(theImage().env, { GATEWAY_PORT: '8080', UV_THREADPOOL_SIZE: '16' });
    // As `docker run --env` does, because the image's port may be in use here.
    const image = { ...theImage(), env: { GATEWAY_PORT: String(port) } };
    const server = `[server]\nhost = "127.0.0.1"\n${providerToml(upstream)}`;
    writeSettings(image, server);
    const container = await startContainer(t, image);
    assertContained(container, image);
    const assertHealthy = () => {
      const healthcheck = container.execute(image.healthcheck, image.uid);
      assert.match(healthcheck.output, /^\{"status":"healthy",/);
      assert.equal(healthcheck.code, 0);
    };
    assertHealthy();
    assert.equal(await sendsCompleteAnswer(port, 'p/m'), 200);
    await (await openHeldStream(port, upstream)).finish();

    const overReload = await openHeldStream(port, upstream);
    writeSettings(image, `${server}[aliases]\nfast = "p/m"\n`);
    // As `kubectl exec` can, in an image without a shell.
    const signal = ['/nodejs/bin/node', '-e', 'process.kill(1, "SIGHUP")'];
    assert.equal(container.execute(signal, image.uid).code, 0);
    await eventually(() => container.stdout().includes('"message":"reloaded"'), 'it reloads');
    assert.equal(await sendsCompleteAnswer(port, 'fast'), 200);
    await overReload.finish();

    writeSettings(image, '[server]\nprot = 1\n');
    assert.equal(container.execute(signal, image.uid).code, 0);
    await eventually(() => container.stdout().includes('"message":"reload failed"'), 'it fails');
    assertHealthy();

    const overDrain = await openHeldStream(port, upstream);
    process.kill(container.pid, 'SIGTERM');
    await eventually(() => container.stdout().includes('"message":"draining"'), 'it drains');
    await overDrain.finish();
    assert.equal(await container.exit, 0);
    assert.match(container.stdout(), /"message":"stopped",.*"finished":1,"cut":0/);
  },
);
