/** Debian's Prometheus as a process. It scrapes one target until the test ends. */

import { spawn, spawnSync } from 'node:child_process';
import { get } from 'node:http';
import type { TestContext } from 'node:test';

import { idle } from './clock.ts';
import { emptyFolder, freePort } from './process.ts';

type Labels = Readonly<Record<string, string>>;

/** Skips the test, with a message, and returns true if Prometheus is not installed. */
export function isPrometheusMissing(t: TestContext): boolean {
  const missing = ['prometheus', 'promtool'].filter(
    (name) => spawnSync(name, ['--version']).error !== undefined,
  );
  if (missing.length === 0) return false;
  const text = `NOT TESTED: ${missing.join(' and ')} not found; apt-get install prometheus`;
  console.error(text);
  t.skip(text);
  return true;
}

/** Returns the complaints of `promtool check metrics`; empty if there are none. */
export function checkMetrics(exposition: string): string {
  const { status, stdout, stderr } = spawnSync('promtool', ['check', 'metrics'], {
    input: exposition,
    encoding: 'utf8',
  });
  return `${stdout}${stderr}${status === 0 ? '' : `exit code ${status}`}`;
}

/**
 * Starts Prometheus. `target` is `host:port`, `key` the Bearer token for its `/metrics`, and
 * `rules` the text of a rules file.
 */
export async function startPrometheus(
  t: TestContext,
  {
    target,
    key,
    rules = '',
  }: { readonly target: string; readonly key: string; readonly rules?: string },
) {
  const config = {
    global: { scrape_interval: '500ms', scrape_timeout: '500ms', evaluation_interval: '500ms' },
    ...(rules && { rule_files: ['rules.yml'] }),
    scrape_configs: [
      {
        job_name: 'inference-gateway',
        authorization: { credentials: key },
        static_configs: [{ targets: [target] }],
      },
    ],
  };
  // Every JSON text is valid YAML.
  const folder = emptyFolder(t, {
    'prometheus.yml': JSON.stringify(config),
    'rules.yml': rules,
  });
  const port = await freePort();
  const args = [
    `--config.file=${folder}/prometheus.yml`,
    `--storage.tsdb.path=${folder}/data`,
    `--web.listen-address=127.0.0.1:${port}`,
    '--log.level=error',
  ];
  const child = spawn('prometheus', args, { cwd: folder, stdio: 'inherit' });
  const ended = new Promise<void>((resolve) => child.once('exit', () => resolve()));
  t.after(async () => {
    child.kill('SIGKILL');
    await ended;
  });
  while ((await fetchText(port, '/-/ready')) === undefined) {
    if (child.exitCode !== null) throw new Error(`prometheus ended with ${child.exitCode}`);
    await idle(50);
  }
  return {
    /** Runs an instant query. Returns each value by its labels, as JSON with sorted names. */
    query: async (expression: string): Promise<Map<string, number>> => {
      const path = `/api/v1/query?query=${encodeURIComponent(expression)}`;
      const text = await fetchText(port, path);
      if (text === undefined) throw new Error(`prometheus refused ${expression}`);
      const { data } = JSON.parse(text) as {
        data: { result: { metric: Record<string, string>; value: [number, string] }[] };
      };
      const entries = data.result.map(({ metric, value }) => {
        const sorted = Object.entries(metric).toSorted(([a], [b]) => (a < b ? -1 : 1));
        return [JSON.stringify(Object.fromEntries(sorted)), Number(value[1])] as const;
      });
      return new Map(entries);
    },
    /** The names of the firing alerts with their summaries. */
    alerts: async (): Promise<Map<string, string>> => {
      const text = await fetchText(port, '/api/v1/alerts');
      const { data } = JSON.parse(text ?? '{"data":{"alerts":[]}}') as {
        data: { alerts: { state: string; labels: Labels; annotations: Labels }[] };
      };
      const firing = data.alerts.filter(({ state }) => state === 'firing');
      const told = firing.map(({ labels, annotations }) => {
        return [labels['alertname']!, annotations['summary']!] as const;
      });
      return new Map(told);
    },
  };
}

/** Returns the body of a 200; undefined for any other result. */
async function fetchText(port: number, path: string): Promise<string | undefined> {
  return new Promise((resolve) => {
    const request = get({ host: '127.0.0.1', port, path, agent: false }, (response) => {
      let text = '';
      response.setEncoding('utf8').on('data', (chunk: string) => (text += chunk));
      response.on('end', () => resolve(response.statusCode === 200 ? text : undefined));
    });
    request.on('error', () => resolve(undefined));
  });
}
