/** The command line options. */

import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

function refuse(reason: string): never {
  console.error(reason);
  process.exit(2);
}

function parse() {
  try {
    return parseArgs({
      options: {
        node: { type: 'string' },
        rounds: { type: 'string' },
        minutes: { type: 'string', default: '10' },
        only: { type: 'string' },
        contenders: { type: 'string' },
        quick: { type: 'boolean', default: false },
        profile: { type: 'boolean', default: false },
      },
    });
  } catch (error) {
    return refuse((error as Error).message);
  }
}

/** Splits a list into names, and refuses unknown names. */
export function namesIn(list: string, known: readonly string[]): string[] {
  const names = list.split(',');
  const unknown = names.filter((name) => !known.includes(name));
  if (unknown.length > 0) refuse(`not known: ${unknown.join(', ')}; there are ${known.join(', ')}`);
  return names;
}

const { values } = parse();

export const options = {
  rounds: Number(values.rounds ?? (values.quick ? 1 : 5)),
  minutes: Number(values.minutes),
  only: values.only,
  contenders: values.contenders,
  isProfile: values.profile,
};

for (const [name, value] of Object.entries({ rounds: options.rounds, minutes: options.minutes })) {
  if (!Number.isInteger(value) || value < 1) refuse(`--${name}: a whole number above 0 is wanted`);
}

/** The Node of contenders, upstream and generator. */
export const NODE =
  values.node === undefined
    ? process.execPath
    : execFileSync(
        'sh',
        [join(import.meta.dirname, '..', 'test', 'nodes.sh'), '--path', values.node],
        {
          encoding: 'utf8',
        },
      ).trim();

/** Returns a part's time in milliseconds: a sixth in a quick run. */
export const milliseconds = (seconds: number) =>
  Math.round((seconds * 1000) / (values.quick ? 6 : 1));
