/**
 * Carries out deploy/Dockerfile without an engine: the build stage in a folder, the last stage as a
 * root.
 */

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { cpSync, mkdirSync, readFileSync, readdirSync, realpathSync, statSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';

import { ROOT } from '../support/process.ts';

/** The path of Node in the base image. */
const NODE_PATH = '/nodejs/bin/node';
const BUILD_MS = 240_000;

export interface Image {
  readonly root: string;
  readonly entrypoint: readonly string[];
  readonly healthcheck: readonly string[];
  readonly workdir: string;
  readonly env: Readonly<Record<string, string>>;
  readonly uid: number;
  readonly gid: number;
}

interface Instruction {
  readonly name: string;
  readonly value: string;
}

/** Returns each stage's instructions, without those before the first FROM. */
function readStages(): Instruction[][] {
  const text = readFileSync(join(ROOT, 'deploy/Dockerfile'), 'utf8');
  const lines = text
    .replace(/^#.*\n/gm, '')
    .replace(/\\\n/g, '')
    .split('\n')
    .filter((line) => line.trim() !== '');
  const stages: Instruction[][] = [];
  for (const line of lines) {
    const [, name = '', value = ''] = /^(\w+)\s+(.*)$/.exec(line) ?? [];
    if (name === 'FROM') stages.push([]);
    stages.at(-1)?.push({ name, value: value.trim() });
  }
  return stages;
}

/** Copies the files let through by .dockerignore. It has only exceptions from "*". */
function copyContext(folder: string): void {
  const [all, ...names] = readFileSync(join(ROOT, '.dockerignore'), 'utf8')
    .split('\n')
    .filter((line) => line !== '' && !line.startsWith('#'));
  assert.equal(all, '*');
  for (const name of names) {
    assert.match(name, /^!/);
    cpSync(join(ROOT, name.slice(1)), join(folder, name.slice(1)), { recursive: true });
  }
}

/** Copies as COPY does: from a folder, its content. */
function copyInto(sources: readonly string[], target: string, isFolder: boolean): void {
  for (const source of sources) {
    const isFile = statSync(source).isFile();
    const path = isFolder && isFile ? join(target, basename(source)) : target;
    mkdirSync(dirname(path), { recursive: true });
    cpSync(source, path, { recursive: true });
  }
}

/** Carries out instructions to create files. `stageRoot` stands for "/". */
function carryOut(stage: readonly Instruction[], stageRoot: string, sources: Sources): string {
  let workdir = '/';
  for (const { name, value } of stage) {
    if (name === 'WORKDIR') {
      workdir = value;
      mkdirSync(join(stageRoot, workdir), { recursive: true });
    } else if (name === 'RUN') {
      const options = { cwd: join(stageRoot, workdir), timeout: BUILD_MS, stdio: 'pipe' } as const;
      execFileSync('sh', ['-c', value], options);
    } else if (name === 'COPY') {
      const isFromBuild = value.startsWith('--from=build ');
      const from = isFromBuild ? sources.build : sources.context;
      const paths = value.replace('--from=build ', '').split(' ');
      const target = paths.pop()!;
      const path = join(stageRoot, target.startsWith('/') ? target : join(workdir, target));
      copyInto(
        paths.map((one) => join(from, one)),
        path,
        target.endsWith('/'),
      );
    }
  }
  return workdir;
}

interface Sources {
  readonly context: string;
  readonly build: string;
}

/** Copies Node and its libraries to the paths where Node looks for them. */
function copyNode(node: string, root: string): void {
  copyInto([realpathSync(node)], join(root, NODE_PATH), false);
  const libraries = execFileSync('ldd', [node], { encoding: 'utf8' }).match(/\/\S+/g) ?? [];
  for (const path of libraries) copyInto([realpathSync(path)], join(root, path), false);
}

/** Creates the image's root below `folder`, with this Node instead of the base image's. */
export function assembleImage(folder: string, node: string): Image {
  const [context, build, root] = ['context', 'build', 'root'].map((name) => join(folder, name));
  for (const path of [context!, build!, root!]) mkdirSync(path);
  const stages = readStages();
  assert.equal(stages.length, 2);
  const [first, last] = stages as [Instruction[], Instruction[]];
  copyContext(context!);
  const sources = { context: context!, build: build! };
  carryOut(first, build!, sources);
  const workdir = carryOut(last, root!, sources);
  copyNode(node, root!);
  const valueOf = (name: string) => last.find((one) => one.name === name)!.value;
  const variables = last
    .filter(({ name }) => name === 'ENV')
    .map(({ value }) => value.split('=') as [string, string]);
  const [uid, gid] = valueOf('USER').split(':').map(Number);
  return {
    root: root!,
    entrypoint: JSON.parse(valueOf('ENTRYPOINT')) as string[],
    healthcheck: JSON.parse(valueOf('HEALTHCHECK').replace(/^.*?CMD /, '')) as string[],
    workdir,
    env: Object.fromEntries(variables),
    uid: uid!,
    gid: gid!,
  };
}

/** Returns every file in the root with its size, sorted by name. */
export function filesOf(root: string): [string, number][] {
  return readdirSync(root, { recursive: true, encoding: 'utf8' })
    .filter((name) => statSync(join(root, name)).isFile())
    .toSorted()
    .map((name) => [`/${name}`, statSync(join(root, name)).size]);
}
