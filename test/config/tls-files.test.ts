/** The problems that the settings find in a provider's `ca_file`, `client_cert` and `client_key`. */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { loadConfig } from '../../src/config/config.ts';
import { createCertificate, NO_OPENSSL } from '../support/certificate.ts';
import { problemsIn } from '../support/problems.ts';
import { emptyFolder } from '../support/process.ts';

describe("a provider's files for TLS", { skip: NO_OPENSSL }, () => {
  test('are refused by the name of the setting, without their text', (t) => {
    const { cert, key } = createCertificate(t, ['DNS:one']);
    const other = createCertificate(t, ['DNS:two']);
    const wrong = '-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n';
    const directory = emptyFolder(t, {
      'cert.pem': cert.toString(),
      'key.pem': key.toString(),
      'other.pem': other.key.toString(),
      'wrong.pem': cert.toString() + wrong,
      'mixed.pem': cert.toString().replace(' CERTIFICATE', ' X509 CERTIFICATE'),
      'request.pem': cert.toString().replaceAll(' CERTIFICATE', ' CERTIFICATE REQUEST'),
      'empty.pem': '',
      'large.pem': 'x'.repeat(1_048_577),
      'most.pem': cert.toString() + '\n#'.repeat((1_048_576 - cert.length) / 2),
    });
    const rows: readonly (readonly [lines: string, problem: string | undefined])[] = [
      ['ca_file = "cert.pem"', undefined],
      ['ca_file = "most.pem"', undefined],
      [`ca_file = "${directory}/cert.pem"`, undefined],
      ['ca_file = "${NAME}.pem"', undefined],
      ['client_cert = "cert.pem"\nclient_key = "key.pem"', undefined],
      ['ca_file = "none.pem"', `ca_file: ${directory}/none.pem: no such file`],
      ['ca_file = "${NAME}/none.pem"', 'ca_file: ${NAME}/none.pem: no such file'],
      ['ca_file = "."', `ca_file: ${directory}: is not a file`],
      ['ca_file = "empty.pem"', `ca_file: ${directory}/empty.pem: is empty`],
      ['ca_file = "large.pem"', `ca_file: ${directory}/large.pem: is larger than 1024 KiB`],
      ['ca_file = "key.pem"', 'ca_file: the file has no certificates in PEM'],
      ['ca_file = "wrong.pem"', 'ca_file: the file has no certificates in PEM'],
      ['ca_file = "mixed.pem"', 'ca_file: the file has no certificates in PEM'],
      ['ca_file = "request.pem"', 'ca_file: the file has no certificates in PEM'],
      ['ca_file = 1', 'ca_file: found a number, expected the path of a file'],
      ['client_key = """\nsecret\n"""', 'client_key: found a string, expected the path of a file'],
      ['client_cert = "cert.pem"', 'client_key: required, because client_cert is set'],
      ['client_key = "key.pem"', 'client_cert: required, because client_key is set'],
      [
        'client_cert = "key.pem"\nclient_key = "key.pem"',
        'client_cert: the file has no certificate in PEM',
      ],
      [
        'client_cert = "cert.pem"\nclient_key = "cert.pem"',
        'client_key: the file has no private key in PEM without a password',
      ],
      [
        'client_cert = "cert.pem"\nclient_key = "other.pem"',
        'client_key: the key does not fit the certificate',
      ],
    ];
    for (const [lines, problem] of rows) {
      const toml = `[providers.p]\nbase_url = "https://h/v1"\napi_key = "none"\n${lines}\n`;
      const problems = problemsIn(() => loadConfig({ toml, env: { NAME: 'cert' }, directory }));
      assert.deepEqual(problems, problem ? [`providers.p.${problem}`] : [], lines);
    }
  });

  test('need https, and a transport that takes them', (t) => {
    const { path } = createCertificate(t, ['DNS:one']);
    const lines = `ca_file = "${path}"\napi_key = "none"\n`;
    const load = (baseUrl: string, more = '') =>
      problemsIn(() =>
        loadConfig({ toml: `${more}[providers.p]\nbase_url = "${baseUrl}"\n${lines}`, env: {} }),
      );
    assert.deepEqual(load('HTTPS://h/v1'), []);
    assert.deepEqual(load('http://127.0.0.1/v1'), [
      'providers.p.ca_file: needs a base_url with https://',
    ]);
    assert.deepEqual(load('https://h/v1', '[server]\nupstream = "fetch"\n'), [
      'providers.p.ca_file: server.upstream selects fetch, which takes no certificates',
    ]);
  });

  test('change the digest of the settings, and never show a key', (t) => {
    const [one, two] = ['one', 'two'].map((name) => createCertificate(t, [`DNS:${name}`]));
    const load = ({ cert, key }: { cert: Buffer; key: Buffer }) => {
      const directory = emptyFolder(t, { 'c.pem': cert.toString(), 'k.pem': key.toString() });
      const lines = 'client_cert = "c.pem"\nclient_key = "k.pem"\n';
      const toml = `[providers.p]\nbase_url = "https://h/v1"\napi_key = "none"\n${lines}`;
      return loadConfig({ toml, env: {}, directory });
    };
    const [first, same, other] = [load(one!), load(one!), load(two!)];
    assert.equal(first.digest, same.digest);
    assert.notEqual(first.digest, other.digest);
    assert.equal(first.resolved.get('providers.p.client_key'), 'k.pem');
    assert.ok(!JSON.stringify([first.providers, [...first.resolved]]).includes('BEGIN'));
  });
});
