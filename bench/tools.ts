/**
 * Contenders outside npm, downloaded once from their registries into the cache of
 * test/deploy/tools.ts.
 */

import { debian, findTool, type Source, type Tool } from '../test/deploy/tools.ts';
import { onAllCores } from './processes.ts';

/** A limit for downloads, mostly for compiling and for a slow network. */
const FETCH_MS = 1_800_000;

export const VERSIONS = { onwards: '1.2.0', litellm: '1.106.2' };

const pinned = (name: keyof typeof VERSIONS, separator: string) =>
  `${name}${separator}${VERSIONS[name]}`;

const SOURCES = {
  nginx: debian('usr/sbin/nginx', ['nginx']),
  onwards: {
    folder: pinned('onwards', '@'),
    program: 'bin/onwards',
    commands: [
      onAllCores(['cargo', 'install', '--quiet', '--locked', '--root=.', pinned('onwards', '@')]),
    ],
  },
  // Installed from wheels only, so no package's own code runs.
  litellm: {
    folder: pinned('litellm', '@'),
    program: 'bin/litellm',
    commands: [
      ['python3', '-m', 'venv', '.'],
      onAllCores(
        `bin/python -m pip install --quiet --only-binary=:all: ${pinned('litellm', '[proxy]==')}`.split(
          ' ',
        ),
      ),
    ],
  },
} satisfies Record<string, Source>;

export type ToolName = keyof typeof SOURCES;

const found = new Map<ToolName, Tool | string>();

/** Returns the program, downloaded if it is missing, or the reason why there is none. */
export function toolOf(name: ToolName): Tool | string {
  const known = found.get(name);
  if (known !== undefined) return known;
  process.stderr.write(`looking for ${name}\n`);
  const tool = findTool(name, SOURCES[name], { cache: 'bench', timeout: FETCH_MS });
  found.set(name, tool);
  return tool;
}
