/** nginx, Caddy and HAProxy with the files of deploy/. Only ports and certificates are changed. */

import assert from 'node:assert/strict';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import type { Certificate } from '../support/certificate.ts';
import { ROOT } from '../support/process.ts';
import { debian, type Source } from './tools.ts';

export interface Place {
  /** The test's folder, to which the proxy writes. */
  readonly folder: string;
  readonly port: number;
  readonly gatewayPort: number;
  readonly certificate: Certificate;
}

export interface Proxy {
  readonly name: string;
  /** The path of its file in the project. */
  readonly file: string;
  readonly source: Source;
  /**
   * Whether it sends a request on when it is whole. Other proxies abort it if the gateway refuses
   * early.
   */
  readonly buffersRequests: boolean;
  /** Whether its file names a user. */
  readonly dropsRoot: boolean;
  /** Writes the configuration. Returns the arguments for its check and for the run. */
  readonly configure: (place: Place) => { check: readonly string[]; run: readonly string[] };
}

export const IS_ROOT = process.getuid?.() === 0;
const GATEWAY = '127.0.0.1:8080';
const SITE = 'gateway.example.com';

/** Returns a file of the project with these texts replaced. Fails if a text is missing. */
export function rewrite(path: string, changes: Readonly<Record<string, string>>): string {
  return applyChanges(readFileSync(join(ROOT, path), 'utf8'), changes);
}

export function applyChanges(text: string, changes: Readonly<Record<string, string>>): string {
  return Object.entries(changes).reduce((changed, [from, to]) => {
    assert.ok(changed.includes(from), `not in the file: ${from}`);
    return changed.replaceAll(from, to);
  }, text);
}

/**
 * Returns an nginx.conf around these servers: a single process that writes only below the folder.
 */
export function aroundServers(folder: string, servers: string): string {
  const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(
    (name) => `${name}_temp_path ${join(folder, name)};`,
  );
  return [
    `daemon off; master_process off; pid ${join(folder, 'nginx.pid')}; error_log stderr;`,
    // Each request in flight takes two connections.
    'events { worker_connections 4096; }',
    `http {\naccess_log off; ${temporary.join(' ')}\n${servers}\n}\n`,
  ].join('\n');
}

/** Returns the gateway.toml lines from the comment at a proxy file's top. */
export function settingsOf(file: string): string {
  const text = readFileSync(join(ROOT, file), 'utf8');
  const [, lines = ''] = /^# In gateway\.toml.*:\n#\n((?:# {3}.*\n)+)/m.exec(text) ?? [];
  assert.notEqual(lines, '', file);
  return lines.replaceAll(/^# {3}/gm, '');
}

export const NGINX = debian('usr/sbin/nginx', ['nginx']);

export function nginxArguments(folder: string): string[] {
  return ['-e', 'stderr', '-p', folder, '-c', join(folder, 'nginx.conf')];
}

export const PROXIES: readonly Proxy[] = [
  {
    name: 'nginx',
    file: 'deploy/nginx.conf',
    source: NGINX,
    buffersRequests: true,
    dropsRoot: false,
    configure({ folder, port, gatewayPort, certificate }) {
      const servers = rewrite(this.file, {
        'listen 443 ssl': `listen 127.0.0.1:${port} ssl`,
        '/etc/nginx/tls/gateway.crt': certificate.path,
        '/etc/nginx/tls/gateway.key': join(folder, 'key.pem'),
        [GATEWAY]: `127.0.0.1:${gatewayPort}`,
      });
      writeFileSync(join(folder, 'key.pem'), certificate.key);
      writeFileSync(join(folder, 'nginx.conf'), aroundServers(folder, servers));
      return { check: ['-t', ...nginxArguments(folder)], run: nginxArguments(folder) };
    },
  },
  {
    name: 'caddy',
    file: 'deploy/Caddyfile',
    source: debian('usr/bin/caddy', ['caddy']),
    buffersRequests: false,
    dropsRoot: false,
    configure({ folder, port, gatewayPort, certificate }) {
      const keyPath = join(folder, 'key.pem');
      const site = rewrite(this.file, {
        [`${SITE} {`]: `https://127.0.0.1:${port} {\n\ttls ${certificate.path} ${keyPath}`,
        [GATEWAY]: `127.0.0.1:${gatewayPort}`,
      });
      // An address cannot get a certificate, and ports 80 and 2019 may be in use.
      const own = '{\n\tadmin off\n\tauto_https off\n}\n';
      writeFileSync(keyPath, certificate.key);
      writeFileSync(join(folder, 'Caddyfile'), own + site);
      const file = ['--adapter', 'caddyfile', '--config', join(folder, 'Caddyfile')];
      return { check: ['validate', ...file], run: ['run', ...file] };
    },
  },
  {
    name: 'haproxy',
    file: 'deploy/haproxy.cfg',
    source: debian('usr/sbin/haproxy', [
      'haproxy',
      'liblua5.3-0',
      'libopentracing-c-wrapper0',
      'libopentracing1',
    ]),
    buffersRequests: false,
    dropsRoot: true,
    configure({ folder, port, gatewayPort, certificate }) {
      const pem = join(folder, 'gateway.pem');
      const jail = join(folder, 'empty');
      mkdirSync(jail);
      const file = rewrite(this.file, {
        'bind :443': `bind 127.0.0.1:${port}`,
        '/etc/haproxy/tls/gateway.pem': pem,
        [GATEWAY]: `127.0.0.1:${gatewayPort}`,
        // The package creates these. Without root, there is nothing to drop.
        '  user haproxy\n': IS_ROOT ? '  user nobody\n' : '',
        '  group haproxy\n': IS_ROOT ? '  group nogroup\n' : '',
        '  chroot /var/lib/haproxy\n': IS_ROOT ? `  chroot ${jail}\n` : '',
      });
      writeFileSync(pem, Buffer.concat([certificate.cert, certificate.key]));
      const path = join(folder, 'haproxy.cfg');
      writeFileSync(path, file);
      return { check: ['-c', '-f', path], run: ['-db', '-f', path] };
    },
  },
];
