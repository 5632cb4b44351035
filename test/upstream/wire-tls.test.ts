/** `ca_file`, `client_cert` and `client_key` of a provider, with real TLS. */

import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import type { TLSSocket } from 'node:tls';

import { createTransport } from '../../src/upstream/connections/transport.ts';
import {
  createCertificate,
  inAllLabels,
  NO_OPENSSL,
  type Certificate,
} from '../support/certificate.ts';
import { checkHere } from '../support/check.ts';
import { chatBody, providerToml, startGateway, triesOf } from '../support/gateway.ts';
import { emptyFolder } from '../support/process.ts';
import { createGate, eventually, openChat } from '../support/streams.ts';
import { OVER_FETCH } from '../support/transport.ts';
import { answerWell, CHUNK, DONE, LAST, startUpstream, type Script } from '../support/upstream.ts';

const skip = NO_OPENSSL || OVER_FETCH;

const socketOf = (response: Parameters<Script>[1]) => response.socket as TLSSocket;

interface Names {
  readonly ca?: string;
  readonly cert?: string;
  readonly key?: string;
}

/** The settings' lines for these files. */
function linesOf({ ca, cert, key }: Names): string {
  const lines = { ca_file: ca, client_cert: cert, client_key: key };
  return Object.entries(lines)
    .flatMap(([name, path]) => (path ? `${name} = ${JSON.stringify(path)}\n` : []))
    .join('');
}

/** Writes the certificate and its key into the folder, and returns their paths. */
function writeFiles(folder: string, name: string, { cert, key }: Certificate) {
  const paths = { cert: join(folder, `${name}.pem`), key: join(folder, `${name}.key`) };
  writeFileSync(paths.cert, cert);
  writeFileSync(paths.key, key);
  return paths;
}

/**
 * Starts a provider that only a client with one of these certificates may ask, and records the
 * certificate that each request's connection has shown.
 */
async function startMutual(t: TestContext, clients: readonly Certificate[]) {
  const folder = emptyFolder(t);
  const server = createCertificate(t, ['IP:127.0.0.1']);
  const shown: string[] = [];
  const script: Script = (request, response) => {
    shown.push(socketOf(response).getPeerCertificate().subjectaltname ?? 'none');
    return answerWell(request, response);
  };
  const options = { ...server, requestCert: true, ca: clients.map(({ cert }) => cert) };
  const upstream = await startUpstream(t, script, options);
  const { cert: ca } = writeFiles(folder, 'server', server);
  return { upstream, folder, ca, shown };
}

describe('a provider with certificates in its settings', { concurrency: true, skip }, () => {
  test('is reached with ca_file, and no other provider gets its connections', async (t) => {
    const certificate = createCertificate(t, ['IP:127.0.0.1']);
    const { path: ca } = certificate;
    const { path: other } = createCertificate(t, ['IP:127.0.0.9']);
    const upstream = await startUpstream(t, answerWell, certificate);
    const toml = [
      providerToml(upstream, 'p', linesOf({ ca })),
      providerToml(upstream, 'same', linesOf({ ca })),
      providerToml(upstream, 'without'),
      providerToml(upstream, 'other', linesOf({ ca: other })),
    ].join('');
    const gateway = await startGateway(t, { toml });
    for (const id of ['p', 'same', 'without', 'other', 'p']) {
      const { status } = await gateway.chat(chatBody({ model: `${id}/m` }));
      assert.equal(status, ['without', 'other'].includes(id) ? 502 : 200, id);
    }
    for (const index of [2, 3]) {
      assert.match(JSON.stringify(gateway.accessLines()[index]), /SELF_SIGNED_CERT/);
    }
    assert.equal(upstream.sockets.size, 1);
  });

  test('trusts all authorities of the file, and these alone', async (t) => {
    const certificate = createCertificate(t, ['IP:127.0.0.1']);
    const other = createCertificate(t, ['IP:127.0.0.9']);
    const bundle = Buffer.concat([Buffer.from('# Two\n'), other.cert, certificate.cert]).toString();
    const folder = emptyFolder(t, { 'ca.pem': bundle });
    const upstream = await startUpstream(t, answerWell, certificate);
    const toml = providerToml(upstream, 'p', linesOf({ ca: join(folder, 'ca.pem') }));
    const gateway = await startGateway(t, { toml });
    assert.equal((await gateway.chat(chatBody())).status, 200);
  });

  test('is trusted whatever label the PEM of its authority has', async (t) => {
    const certificate = createCertificate(t, ['IP:127.0.0.1']);
    const other = inAllLabels(createCertificate(t, ['IP:127.0.0.9']));
    const upstream = await startUpstream(t, answerWell, certificate);
    for (const [label, pem] of Object.entries(inAllLabels(certificate))) {
      assert.ok(pem.startsWith(`-----BEGIN ${label}-----\n`), pem);
      for (const before of ['', Object.values(other).join('')]) {
        const folder = emptyFolder(t, { 'ca.pem': before + pem });
        const toml = providerToml(upstream, 'p', linesOf({ ca: join(folder, 'ca.pem') }));
        const gateway = await startGateway(t, { toml });
        assert.equal((await gateway.chat(chatBody())).status, 200, label);
      }
    }
  });

  test('is shown client_cert, and refuses another or none', async (t) => {
    const mine = createCertificate(t, ['DNS:gateway']);
    const { upstream, folder, ca, shown } = await startMutual(t, [mine]);
    const stranger = createCertificate(t, ['DNS:stranger']);
    const toml = [
      providerToml(upstream, 'p', linesOf({ ca, ...writeFiles(folder, 'mine', mine) })),
      providerToml(upstream, 'q', linesOf({ ca, ...writeFiles(folder, 'stranger', stranger) })),
      providerToml(upstream, 'r', linesOf({ ca })),
    ].join('');
    const gateway = await startGateway(t, { toml });
    for (const [id, expected] of [
      ['q', 502],
      ['r', 502],
      ['p', 200],
      ['q', 502],
      ['p', 200],
    ] as const) {
      const { status, text } = await gateway.chat(chatBody({ model: `${id}/m` }));
      assert.equal(status, expected, `${id}: ${text}`);
    }
    assert.deepEqual(shown, ['DNS:gateway', 'DNS:gateway']);
  });

  test('gets a request again on a new connection with the same certificate', async (t) => {
    const mine = createCertificate(t, ['DNS:gateway']);
    const { upstream, folder, ca, shown } = await startMutual(t, [mine]);
    const lines = linesOf({ ca, ...writeFiles(folder, 'mine', mine) });
    const gateway = await startGateway(t, { toml: providerToml(upstream, 'p', lines) });
    assert.equal((await gateway.chat(chatBody())).status, 200);
    const answer = upstream.script;
    upstream.script = (_, response) => {
      upstream.script = answer;
      response.socket!.destroy();
    };
    assert.equal((await gateway.chat(chatBody())).status, 200);
    assert.deepEqual(shown, ['DNS:gateway', 'DNS:gateway']);
    assert.equal(gateway.accessLines().map(triesOf)[1], 'p:upstream_error p:200');
  });

  test('gets new certificates with a reload, while a stream goes on', async (t) => {
    const [first, second] = ['first', 'second'].map((name) =>
      createCertificate(t, [`DNS:${name}`]),
    );
    const { upstream, folder, ca, shown } = await startMutual(t, [first!, second!]);
    const paths = writeFiles(folder, 'mine', first!);
    const toml = providerToml(upstream, 'p', linesOf({ ca, ...paths }));
    const gateway = await startGateway(t, { toml });
    const gate = createGate();
    const answer = upstream.script;
    upstream.script = async (_, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(CHUNK + LAST);
      await gate.opened;
      response.end(DONE);
    };
    const { response, ended } = openChat(gateway.port, chatBody({ stream: true }));
    await response;
    upstream.script = answer;
    await gateway.chat(chatBody());
    assert.equal(upstream.sockets.size, 2);
    writeFiles(folder, 'mine', second!);
    await gateway.reload(toml);
    const [reloaded] = gateway.lines('reloaded');
    const changed = ['providers.p.client_cert', 'providers.p.client_key'];
    assert.deepEqual(reloaded!['changed'], changed);
    // The idle connection with the former certificate closes, the stream's connection stays.
    await eventually(() => upstream.sockets.size === 1, 'the idle connection is closed');
    await gateway.chat(chatBody());
    assert.deepEqual(shown, ['DNS:first', 'DNS:second']);
    gate.open();
    assert.match(await ended, /\[DONE\]/);
    await eventually(() => upstream.sockets.size === 1, "the stream's connection is closed");
    // A reload without a change keeps the connection.
    await gateway.reload(`${toml}\n[logging]\nverbose = true`);
    await gateway.chat(chatBody());
    assert.equal(upstream.sockets.size, 1);
  });

  test('resumes its TLS session behind a reload that keeps its certificates', async (t) => {
    const client = createCertificate(t, ['DNS:first']);
    const { upstream, folder, ca } = await startMutual(t, [client]);
    const paths = writeFiles(folder, 'mine', client);
    const toml = providerToml(upstream, 'p', linesOf({ ca, ...paths }));
    const gateway = await startGateway(t, { toml });
    const resumed: boolean[] = [];
    upstream.script = (request, response) => {
      resumed.push(socketOf(response).isSessionReused());
      response.setHeader('connection', 'close');
      return answerWell(request, response);
    };
    await gateway.chat(chatBody());
    await gateway.reload(`${toml}\n[logging]\nverbose = true`);
    await gateway.chat(chatBody());
    assert.deepEqual(resumed, [false, true]);
  });

  test('keeps its certificates if a reload finds wrong files', async (t) => {
    const mine = createCertificate(t, ['DNS:gateway']);
    const { upstream, folder, ca } = await startMutual(t, [mine]);
    const paths = writeFiles(folder, 'mine', mine);
    const toml = providerToml(upstream, 'p', linesOf({ ca, ...paths }));
    const gateway = await startGateway(t, { toml });
    writeFileSync(paths.key, createCertificate(t, ['DNS:stranger']).key);
    await gateway.reload(toml);
    const [{ cause } = assert.fail()] = gateway.lines('reload failed');
    assert.equal(cause, 'providers.p.client_key: the key does not fit the certificate');
    assert.equal((await gateway.chat(chatBody())).status, 200);
  });

  test('is asked by --check with its certificates, and --check prints their paths', async (t) => {
    const mine = createCertificate(t, ['DNS:gateway']);
    const { upstream, folder, ca } = await startMutual(t, [mine]);
    upstream.script = (_, response) => response.end('{"data":[{"id":"m"}]}');
    const names = { ca: 'server.pem', cert: 'mine.pem', key: 'mine.key' };
    writeFiles(folder, 'mine', mine);
    const path = join(folder, 'gateway.toml');
    writeFileSync(path, providerToml(upstream, 'p', linesOf(names)));
    const { code, stdout } = await checkHere(['--check', '--config', path]);
    assert.equal(code, 0, stdout);
    assert.match(stdout, /^providers\.p\.client_key = "mine\.key"$/m);
    assert.ok(!stdout.includes('-----BEGIN'));
    writeFileSync(path, providerToml(upstream, 'p', linesOf({ ca })));
    assert.equal((await checkHere(['--check', '--config', path])).code, 3);
  });
});

test('a transport over fetch starts no provider with certificates', { skip }, async (t) => {
  const certificate = createCertificate(t, ['IP:127.0.0.1']);
  const upstream = await startUpstream(t, answerWell, certificate);
  const toml = providerToml(upstream, 'p', linesOf({ ca: certificate.path }));
  const start = startGateway(t, { toml, createTransport: () => createTransport('fetch') });
  await assert.rejects(start, /^ConfigError: providers\.p: fetch takes no certificates: fetch \(/);
});
