/** The published package: its files, and that it runs with nothing else installed. */

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  copyFileSync,
  cpSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  realpathSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { before, test, type TestContext } from 'node:test';

import {
  buildOnce,
  emptyFolder,
  ROOT,
  SERVER,
  startCommand,
  untilServing,
} from './support/process.ts';

before(buildOnce);

const read = (path: string) => readFileSync(join(ROOT, path), 'utf8');

/** An environment in which npm has no cached package and cannot download any. */
function npmEnv(t: TestContext): Record<string, string> {
  const home = emptyFolder(t);
  return {
    PATH: process.env['PATH'] ?? '',
    HOME: home,
    npm_config_cache: join(home, 'cache'),
    npm_config_registry: 'http://127.0.0.1:9',
  };
}

interface Packed {
  readonly filename: string;
  readonly files: readonly { readonly path: string; readonly mode: number }[];
}

function pack(t: TestContext): { path: string; files: Packed['files'] } {
  const folder = realpathSync(emptyFolder(t));
  const { stdout, stderr, status } = spawnSync(
    'npm',
    ['pack', '--json', '--pack-destination', folder],
    { cwd: ROOT, env: npmEnv(t), encoding: 'utf8' },
  );
  assert.equal(status, 0, stderr);
  const [{ filename, files } = assert.fail()] = JSON.parse(stdout) as Packed[];
  return { path: join(folder, filename), files };
}

test('the package holds the built program, its documents and deploy/, and no source', (t) => {
  const { files } = pack(t);
  const packed = files.map(({ path }) => path);
  const isFile = (name: string) => statSync(join(ROOT, 'deploy', name)).isFile();
  const deployed = readdirSync(join(ROOT, 'deploy')).filter(isFile);
  const inDeploy = packed.filter((path) => path.startsWith('deploy/'));
  assert.deepEqual(inDeploy.toSorted(), deployed.map((name) => `deploy/${name}`).toSorted());
  const paths = packed.filter((path) => !inDeploy.includes(path));
  const documents = paths.filter((path) => /^docs\/(?:[\w-]+\.md|page\.png)$/.test(path));
  const examples = paths.filter((path) => /^gateway\.(?:schema\.json|toml\.example)$/.test(path));
  assert.deepEqual(
    paths.filter((path) => !documents.includes(path) && !examples.includes(path)).toSorted(),
    [
      'ARCHITECTURE.md',
      'CHANGELOG.md',
      'LICENSE',
      'README.md',
      'SECURITY.md',
      'dist/server.js',
      'package.json',
    ],
  );
  assert.ok(documents.length > 0 && examples.includes('gateway.toml.example'));
  // oxlint-disable-next-line no-bitwise
  assert.equal((files.find(({ path }) => path === 'dist/server.js')?.mode ?? 0) & 0o111, 0o111);
});

test('every file that a packed document links to is packed', (t) => {
  const { files } = pack(t);
  const paths = files.map(({ path }) => path);
  const isPacked = (path: string) => paths.some((one) => `${one}/`.startsWith(`${path}/`));
  const documents = paths.filter((path) => path.endsWith('.md'));
  const links = documents.flatMap((document) =>
    [...read(document).matchAll(/\]\(([^)#:\s]+)(?:#[^)]*)?\)/g)].map(([, link = '']) =>
      join(dirname(document), link),
    ),
  );
  assert.ok(links.includes('docs/page.png') && links.length > 30);
  assert.deepEqual(
    links.filter((link) => !isPacked(link)),
    [],
  );
});

test('a key beside the files of deploy/ is not packed', (t) => {
  const folder = emptyFolder(t);
  for (const name of ['package.json', 'README.md', 'deploy']) {
    cpSync(join(ROOT, name), join(folder, name), { recursive: true });
  }
  for (const name of ['secrets', 'settings']) {
    mkdirSync(join(folder, 'deploy', name), { recursive: true });
    writeFileSync(join(folder, 'deploy', name, 'openai'), 'key');
  }
  const args = ['pack', '--dry-run', '--json'];
  const packed = spawnSync('npm', args, { cwd: folder, env: npmEnv(t), encoding: 'utf8' });
  assert.match(packed.stdout, /"deploy\/compose\.yaml"/);
  assert.doesNotMatch(packed.stdout, /openai/);
});

test('the bill of materials has one component: smol-toml as package-lock.json pins it', () => {
  const readJson = (path: string) => JSON.parse(read(path)) as unknown;
  const lock = readJson('package-lock.json') as { packages: Record<string, { integrity: string }> };
  const installed = readJson('node_modules/smol-toml/package.json') as Record<string, string>;
  const { status, stdout, stderr } = spawnSync(
    process.execPath,
    ['--import', 'tsx', 'scripts/sbom.ts'],
    { cwd: ROOT, encoding: 'utf8' },
  );
  assert.equal(status, 0, stderr);
  const { bomFormat, specVersion, metadata, components } = JSON.parse(stdout) as {
    bomFormat: string;
    specVersion: string;
    metadata: { component: { hashes: unknown } };
    components: unknown;
  };
  assert.deepEqual([bomFormat, specVersion], ['CycloneDX', '1.5']);
  const { version, license: id } = installed;
  const [, base64 = ''] = lock.packages['node_modules/smol-toml']!.integrity.split('sha512-');
  const purl = `pkg:npm/smol-toml@${version}`;
  assert.deepEqual(components, [
    {
      type: 'library',
      'bom-ref': purl,
      name: 'smol-toml',
      version,
      purl,
      licenses: [{ license: { id } }],
      hashes: [{ alg: 'SHA-512', content: Buffer.from(base64, 'base64').toString('hex') }],
    },
  ]);
  const content = createHash('sha256').update(readFileSync(SERVER)).digest('hex');
  assert.deepEqual(metadata.component.hashes, [{ alg: 'SHA-256', content }]);
});

test('the package needs no other, and the program contains the licence of smol-toml', () => {
  const { dependencies, bundleDependencies, optionalDependencies, peerDependencies } = JSON.parse(
    read('package.json'),
  ) as Record<string, unknown>;
  assert.deepEqual(
    [dependencies, bundleDependencies, optionalDependencies, peerDependencies],
    [undefined, undefined, undefined, undefined],
  );
  const program = readFileSync(SERVER, 'utf8');
  const licence = read('node_modules/smol-toml/LICENSE');
  const words = (text: string) => text.replace(/[\s*]+/g, ' ');
  const conditions = licence.slice(licence.indexOf('Redistribution and use')).trim();
  assert.ok(conditions.length > 1000);
  assert.ok(words(program).includes(words(conditions)), 'the licence text is not in the program');
  assert.match(program, /Copyright \(c\) Squirrel Chat et al\./);
});

test('the documents name the version of package.json', () => {
  const { version } = JSON.parse(read('package.json')) as { version: string };
  const versions = [...read('README.md').matchAll(/inference-gateway-(\d\S*)\.tgz/g)];
  assert.ok(versions.length > 0);
  for (const [text, named] of versions) assert.equal(named, version, text);
  const [, minor = '', patch = '', dev] = /^(\d+\.\d+)(\.\d+)(-dev)?$/.exec(version)!;
  // A version in work is neither in the changelog nor supported.
  const isListed = read('SECURITY.md').includes(`\n| ${minor} | yes`);
  const isReleased = read('CHANGELOG.md').includes(`\n## ${minor}${patch} (`);
  assert.deepEqual([isListed, isReleased], dev ? [patch !== '.0', false] : [true, true], version);
});

test('every file of the package that names commands holds without a clone', (t) => {
  const { files } = pack(t);
  const packed = new Set(files.map(({ path }) => path));
  const dockerfile = read('deploy/Dockerfile');
  const [, source = ''] = /^COPY --from=build \/package\/(\S+)/m.exec(dockerfile)!;
  assert.ok(packed.has(source), 'the folder of the package stands for the build stage');
  assert.match(dockerfile, /^#.* --build-context build=\. package$/m);
  const help = spawnSync(process.execPath, [SERVER, '--help'], { encoding: 'utf8' }).stdout;
  assert.match(help, /^Usage: inference-gateway \[options\]/m);
});

test('npm pack alone fails and names the right script, because it leaves the program out', (t) => {
  const folder = emptyFolder(t);
  for (const name of ['package.json', '.npmrc', 'README.md']) {
    copyFileSync(join(ROOT, name), join(folder, name));
  }
  const packed = spawnSync('npm', ['pack'], { cwd: folder, env: npmEnv(t), encoding: 'utf8' });
  assert.notEqual(packed.status, 0);
  assert.match(packed.stderr, /use-npm-run-package/);
  assert.ok(readdirSync(folder).every((name) => !name.endsWith('.tgz')));
});

test('npx runs the package from an empty folder, without a cache and a registry', async (t) => {
  const { path } = pack(t);
  const cwd = emptyFolder(t);
  copyFileSync(path, join(cwd, 'gateway.tgz'));
  const args = ['--offline', '--yes', './gateway.tgz', '--demo', '--port', '0'];
  const command = ['npx', ...args];
  const { port } = await untilServing(startCommand(t, command, { cwd, env: npmEnv(t) }));
  const reply = await fetch(`http://127.0.0.1:${port}/v1/chat/completions`, {
    method: 'POST',
    headers: { authorization: 'Bearer any', 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'demo/echo', messages: [{ role: 'user', content: 'hi' }] }),
  });
  assert.equal(reply.status, 200);
  assert.match(await reply.text(), /"content":"You said: hi"/);
});
