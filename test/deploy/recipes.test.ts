/**
 * The Dockerfile, the compose file and the Kubernetes manifest, checked by tools for these formats.
 */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test, type TestContext } from 'node:test';

import { buildOnce, emptyFolder, ROOT, runProgram } from '../support/process.ts';
import { applyChanges } from './proxies.ts';
import { getTool, runTool, type Source } from './tools.ts';

const LIMITS = { timeout: 300_000 };
/** The gateway's time to stop with its default settings: `shutdown_timeout`, then 2 s. */
const STOP_SECONDS = 25 + 2;
const KEYS_FOLDER = '/run/secrets/inference-gateway';

const DOCKERFILE_UTILS: Source = {
  folder: 'dockerfile-utils@0.16.3',
  program: 'node_modules/.bin/dockerfile-utils',
  commands: [['npm', 'install', '--ignore-scripts', '--prefix', '.', 'dockerfile-utils@0.16.3']],
};
/** The library inside `docker compose`, with a command to print the parsed file. */
const COMPOSE: Source = {
  folder: 'compose-go@v2.16.2',
  program: 'bin/cmd',
  commands: [
    ['sh', '-c', 'GOBIN="$PWD/bin" go install github.com/compose-spec/compose-go/v2/cmd@v2.16.2'],
  ],
};
/** A package with Kubernetes' JSON schemas. */
const KUBERNETES: Source = {
  folder: 'kubernetes-validate@1.37.0',
  program: 'bin/python3',
  commands: [
    ['python3', '-m', 'venv', '.'],
    ['bin/python3', '-m', 'pip', 'install', '--quiet', 'kubernetes-validate==1.37.0'],
  ],
};

test('dockerfile-utils accepts the Dockerfile', LIMITS, (t) => {
  const tool = getTool(t, 'dockerfile-utils', DOCKERFILE_UTILS);
  if (!tool) return;
  const { code, output } = runTool(tool, ['lint', join(ROOT, 'deploy/Dockerfile')]);
  assert.equal(code, 0, output);
});

interface ComposeModel {
  readonly services: Record<string, Record<string, unknown>>;
}

test(
  'compose-go accepts the compose file, which mounts keys as secrets and allows a drain',
  LIMITS,
  (t) => {
    const tool = getTool(t, 'compose-go', COMPOSE);
    if (!tool) return;
    const check = (text: string) => {
      const cwd = emptyFolder(t, { 'compose.yaml': text });
      return runTool(tool, ['-format', 'json', 'compose.yaml'], { cwd });
    };
    const text = readFileSync(join(ROOT, 'deploy/compose.yaml'), 'utf8');
    const { code, output } = check(text);
    assert.equal(code, 0, output);
    const service = (JSON.parse(output) as ComposeModel).services['inference-gateway']!;
    assert.deepEqual(service['secrets'], [{ source: 'openai', target: '/run/secrets/openai' }]);
    assert.equal(service['read_only'], true);
    assert.deepEqual(service['environment'], {
      GATEWAY_CONFIG: '/etc/inference-gateway/gateway.toml',
    });
    const [{ bind, ...volume } = assert.fail()] = service['volumes'] as Record<string, unknown>[];
    assert.deepEqual(bind, { create_host_path: false });
    assert.deepEqual([volume['target'], volume['read_only']], ['/etc/inference-gateway', true]);
    assert.ok(Number.parseInt(String(service['stop_grace_period']), 10) > STOP_SECONDS);
    assert.notEqual(check(applyChanges(text, { 'cap_drop:': 'cap_dorp:' })).code, 0);

    const replicas = text.match(/^# {5}.*\n/gm)!.map((line) => line.slice(2));
    const ports = /^ {4}ports:\n {6}.*\n/m.exec(text)![0];
    const scaled = check(applyChanges(text, { [ports]: replicas.join('') }));
    assert.equal(scaled.code, 0, scaled.output);
    const { deploy, ports: ranges } = (JSON.parse(scaled.output) as ComposeModel).services[
      'inference-gateway'
    ] as { deploy: object; ports: Record<string, unknown>[] };
    assert.deepEqual([deploy, ranges[0]!['published']], [{ replicas: 2 }, '8080-8081']);
  },
);

interface Manifest {
  readonly kind: string;
  readonly metadata: { readonly name: string };
  readonly data: Record<string, string>;
  readonly spec: { readonly template: { readonly spec: PodSpec } };
}

interface PodSpec {
  readonly terminationGracePeriodSeconds: number;
  readonly enableServiceLinks: boolean;
  readonly containers: readonly {
    readonly volumeMounts: readonly { readonly mountPath: string }[];
  }[];
}

/** Converts YAML to JSON. Python has no YAML reader of its own, but this environment has. */
const TO_JSON =
  'import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))';

test(
  'kubernetes-validate accepts the manifest, which allows a drain and sets no GATEWAY_ variable',
  LIMITS,
  async (t) => {
    const python = getTool(t, 'kubernetes-validate', KUBERNETES);
    if (!python) return;
    const path = join(ROOT, 'deploy/kubernetes.yaml');
    const { code, output } = runTool(python, ['-m', 'kubernetes_validate', '--strict', path]);
    assert.equal(code, 0, output);
    t.diagnostic(output.trim());
    const manifests = JSON.parse(runTool(python, ['-c', TO_JSON, path]).output) as Manifest[];
    const find = (kind: string) => manifests.find((one) => one.kind === kind)!;
    const pod = find('Deployment').spec.template.spec;
    const toml = find('ConfigMap').data['gateway.toml']!;
    const secondsOf = (key: string) => Number(new RegExp(`^${key} = (\\d+)$`, 'm').exec(toml)?.[1]);
    const stopSeconds = secondsOf('drain_delay') + secondsOf('shutdown_timeout') + 2;
    assert.ok(pod.terminationGracePeriodSeconds > stopSeconds);
    assert.equal(pod.enableServiceLinks, false);
    assert.notEqual(find('Service').metadata.name, 'gateway');
    assert.ok(pod.containers[0]!.volumeMounts.some(({ mountPath }) => mountPath === KEYS_FOLDER));
    await checkSettings(t, toml);
  },
);

/** Checks the ConfigMap's settings, with the Secret's files. */
async function checkSettings(t: TestContext, toml: string): Promise<void> {
  await buildOnce();
  const keys = emptyFolder(t, {
    openai: 'sk-canary-0123456789\n',
    team: 'team-canary-0123456789\n',
  });
  const cwd = emptyFolder(t, { 'gateway.toml': applyChanges(toml, { [KEYS_FOLDER]: keys }) });
  const { code, stdout, stderr } = await runProgram(t, ['--check=offline'], { cwd });
  assert.equal(code, 0, `${stdout}${stderr}`);
  assert.match(stdout, /openai/);
  assert.doesNotMatch(stdout, /warning/i);
}
