/** Reads a provider's certificates: the authorities to trust, and what the gateway itself shows. */

import { createPrivateKey, X509Certificate } from 'node:crypto';
import { createSecureContext, type SecureContext } from 'node:tls';

import { digestOf } from '../lib/secret.ts';
import type { NamedFile } from './setting-kinds.ts';
import type { SettingValues } from './setting-values.ts';

export interface TlsSettings {
  readonly context: SecureContext;
  /** Equal for equal files. */
  readonly digest: string;
}

interface Files {
  readonly caFile: NamedFile | undefined;
  readonly clientCert: NamedFile | undefined;
  readonly clientKey: NamedFile | undefined;
}

/** With each label that OpenSSL reads as a certificate. */
const CERTIFICATE = /-----BEGIN ((?:TRUSTED |X509 )?CERTIFICATE)-----[^-]+-----END \1-----/g;

/**
 * Returns the TLS settings from the files, or undefined without any. Reports files that are not
 * what their names say, and a key that does not fit. `path` is the section's name.
 */
export function readTls(
  path: string,
  { caFile, clientCert, clientKey }: Files,
  baseUrl: string,
  values: SettingValues,
): TlsSettings | undefined {
  const files = { ca_file: caFile, client_cert: clientCert, client_key: clientKey };
  const [first] = Object.entries(files).find(([, file]) => file) ?? [];
  if (first === undefined) return undefined;
  const refuse = (key: string, text: string) => values.problem(`${path}.${key}`, text);
  if (!/^https:/i.test(baseUrl)) return refuse(first, 'needs a base_url with https://');
  const { origin = 'server.upstream', value: upstream } = values.plain().get('server.upstream')!;
  if (upstream === 'fetch') {
    return refuse(first, `${origin} selects fetch, which takes no certificates`);
  }
  if (!clientCert !== !clientKey) {
    const [missing, given] = clientKey ? ['cert', 'key'] : ['key', 'cert'];
    return refuse(`client_${missing}`, `required, because client_${given} is set`);
  }
  const authorities = caFile?.text.match(CERTIFICATE) ?? [];
  const areValid = authorities.every((text) => attempt(() => new X509Certificate(text)));
  if (caFile && !(areValid && authorities.length > 0)) {
    return refuse('ca_file', 'the file has no certificates in PEM');
  }
  const certificate = attempt(() => clientCert && new X509Certificate(clientCert.text));
  if (clientCert && !certificate)
    return refuse('client_cert', 'the file has no certificate in PEM');
  const key = attempt(() => clientKey && createPrivateKey(clientKey.text));
  if (clientKey && !key) {
    return refuse('client_key', 'the file has no private key in PEM without a password');
  }
  if (key && !certificate!.checkPrivateKey(key)) {
    return refuse('client_key', 'the key does not fit the certificate');
  }
  const texts = { ca: caFile?.text, cert: clientCert?.text, key: clientKey?.text };
  // OpenSSL refuses more, such as a key that is too short.
  const context = attempt(() => createSecureContext(texts));
  return context
    ? { context, digest: digestOf(texts) }
    : refuse(first, 'OpenSSL refuses the files');
}

function attempt<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch {
    return undefined;
  }
}
