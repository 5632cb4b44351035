/** Gateways and servers outside npm, with their versions and their registries. */

import { debian, type Source } from '../test/deploy/tools.ts';

/** The newest versions that can be installed as `SOURCES` says, on 2026-11-28. */
export const VERSIONS = { onwards: '1.2.0', litellm: '1.108.5', llms: '1.0.53' };

const pinned = (name: keyof typeof VERSIONS, separator: string) =>
  `${name}${separator}${VERSIONS[name]}`;

export const SOURCES = {
  nginx: debian('usr/sbin/nginx', ['nginx']),
  onwards: {
    folder: pinned('onwards', '@'),
    program: 'bin/onwards',
    commands: [['cargo', 'install', '--quiet', '--locked', '--root=.', pinned('onwards', '@')]],
  },
  // Installed from wheels only, so no package's own code runs. Some parts of later versions' proxy
  // have no wheels.
  litellm: {
    folder: pinned('litellm', '@'),
    program: 'bin/litellm',
    commands: [
      ['python3', '-m', 'venv', '.'],
      `bin/python -m pip install --quiet --only-binary=:all: ${pinned('litellm', '[proxy]==')}`.split(
        ' ',
      ),
    ],
  },
  llms: {
    folder: pinned('llms', '@'),
    program: 'node_modules/@musistudio/llms/dist/cjs/server.cjs',
    commands: [
      `npm install --silent --ignore-scripts --prefix=. @musistudio/${pinned('llms', '@')}`.split(
        ' ',
      ),
    ],
  },
} satisfies Record<string, Source>;

export type ToolName = keyof typeof SOURCES;
