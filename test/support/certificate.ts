/** Certificates, made by the `openssl` command when a test needs them. */

import { execFileSync, spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';

import { emptyFolder } from './process.ts';

export interface Certificate {
  readonly key: Buffer;
  readonly cert: Buffer;
  /** The certificate's file, for `NODE_EXTRA_CA_CERTS`: the certificate is its own authority. */
  readonly path: string;
}

/** The reason to skip tests with certificates; `false` if `openssl` is there. */
export const NO_OPENSSL =
  spawnSync('openssl', ['version']).status !== 0 && 'there is no openssl command';

/** The certificates made so far, by their names, because each costs a process. */
const made = new Map<string, { key: Buffer; cert: Buffer }>();

/** Makes a self-signed certificate for names such as `DNS:localhost` or `IP:127.0.0.1`. */
export function createCertificate(t: TestContext, names: readonly string[]): Certificate {
  const folder = emptyFolder(t);
  const path = join(folder, 'cert.pem');
  const known = made.get(names.join());
  if (known) {
    writeFileSync(path, known.cert);
    return { ...known, path };
  }
  const key = join(folder, 'key.pem');
  const command = 'req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2';
  const subject = ['-subj', '/CN=test', '-addext', `subjectAltName=${names.join(',')}`];
  const files = ['-keyout', key, '-out', path];
  execFileSync('openssl', [...command.split(' '), ...subject, ...files], { stdio: 'pipe' });
  const certificate = { key: readFileSync(key), cert: readFileSync(path) };
  made.set(names.join(), certificate);
  return { ...certificate, path };
}

/** Returns the certificate in PEM with each label that OpenSSL reads as a certificate. */
export function inAllLabels({ path, cert }: Certificate): Record<string, string> {
  const command = ['x509', '-in', path, '-trustout', '-addtrust', 'serverAuth'];
  return {
    CERTIFICATE: cert.toString(),
    'X509 CERTIFICATE': cert.toString().replaceAll(' CERTIFICATE', ' X509 CERTIFICATE'),
    'TRUSTED CERTIFICATE': execFileSync('openssl', command, { encoding: 'utf8' }),
  };
}

/**
 * Returns settings that name the certificates of the documents, and a directory with these files.
 * Without `openssl` the settings name no files.
 */
export function withExampleFiles(t: TestContext, toml: string) {
  if (NO_OPENSSL) return { toml: toml.replace(/^(?:ca_file|client_(?:cert|key)) = .*$/gm, '') };
  const certificate = createCertificate(t, ['DNS:gateway']);
  const [cert, key] = [certificate.cert.toString(), certificate.key.toString()];
  const files = { 'internal-ca.pem': cert, 'gateway.pem': cert, 'gateway.key': key };
  return { toml, directory: emptyFolder(t, files) };
}
