/** nginx as a forwarder: one worker, no log, no buffering, and kept connections to the upstream. */

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';

import type { Launch } from './commands.ts';
import { folder } from './processes.ts';

const ENDLESS = 'keepalive_requests 1000000000; keepalive_timeout 600s;';

export function nginxCommand({ program, port, upstreamPort }: Launch): string[] {
  const path = join(folder, `nginx-${port}`);
  const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(
    (name) => `${name}_temp_path ${path}-${name};`,
  );
  const text = `
    daemon off; master_process off; pid ${path}.pid; error_log stderr crit;
    events { worker_connections 12000; }
    http {
      access_log off; tcp_nodelay on; ${ENDLESS} ${temporary.join(' ')}
      client_max_body_size 0; client_body_buffer_size 11m;
      upstream upstream { server 127.0.0.1:${upstreamPort}; keepalive 512; ${ENDLESS} }
      server {
        listen 127.0.0.1:${port} backlog=4096;
        location = /health { return 200 ok; }
        location / {
          proxy_pass http://upstream; proxy_http_version 1.1; proxy_set_header Connection "";
          proxy_buffering off; proxy_read_timeout 600s;
        }
      }
    }`;
  writeFileSync(`${path}.conf`, text);
  return [program, '-e', 'stderr', '-p', folder, '-c', `${path}.conf`];
}
