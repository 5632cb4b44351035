/**
 * Measures the gateway beside others, each alone on a core, and prints Markdown at the end; progress goes to stderr.
 *
 *   npm run bench -- [--node MAJOR] [--rounds N] [--only NAME,...] [--contenders NAME,...] [--quick]
 *   npm run bench -- --profile [--contenders NAME,...]
 *
 * --node        24: everything that is Node runs on that one; without it, on the Node that runs this
 * --rounds      5; contenders alternate within a round, the tables have median (least–greatest)
 * --only        of requests, allocations, events, latency, memory, prompts, start, bodies, connections (all these where nothing is
 *               said); only when named: minutes (--minutes 10 is how many), and processes (Node 22.12 or newer);
 *               `flat` is connections and minutes
 * --contenders  of gateway, access-log-off, admin, fetch-transport, lean-relay, bare-relay, bare-fetch, onwards, nginx, portkey,
 *               litellm; onwards (by cargo), nginx (from Debian's packages) and LiteLLM (by pip) are fetched once into
 *               ~/.cache/inference-gateway, and named as absent if that fails
 * --quick       a round, and a sixth of the time: shows that it works, its numbers are worth little
 * --profile     instead of measuring: where the time of gateway, access-log-off, fetch-transport, bare-relay, lean-relay or
 *               bare-fetch goes
 *
 * On a machine of its own: two cores at least, and nothing else running. What others disturb is measured once more; if they
 * disturb that too, the exit code is 1 and nothing is printed but the reason.
 */

import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { cpus } from 'node:os';
import { join } from 'node:path';

import { bodies } from './bodies.ts';
import { CONTENDERS, RELAYS, type Contender, type ContenderId } from './contenders.ts';
import { connections, events, allocations, minutes, requests } from './cost.ts';
import { latency } from './latency.ts';
import { DisturbedError } from './machine.ts';
import { take, type Measure, type Value } from './measure.ts';
import { memory, prompts } from './memory.ts';
import { namesIn, NODE, options } from './options.ts';
import { processes } from './processes-at-port.ts';
import { isPinned } from './processes.ts';
import { profile } from './profile.ts';
import { start } from './start.ts';
import { summarize } from './summary.ts';
import { toolOf } from './tools.ts';
import { hasWrk } from './wrk.ts';

const MEASURES = {
  requests,
  allocations,
  events,
  latency,
  memory,
  prompts,
  start,
  bodies,
  connections,
  minutes,
  processes,
};
const FLAT = ['connections', 'minutes'];
/** These end on SIGTERM as --cpu-prof needs it. */
const PROFILED = [
  'gateway',
  'access-log-off',
  'fetch-transport',
  'bare-relay',
  'lean-relay',
  'bare-fetch',
];

function circumstances(): string {
  const say = (script: string) => execFileSync(NODE, ['-p', script], { encoding: 'utf8' }).trim();
  const packages = readFileSync(join(import.meta.dirname, 'package.json'), 'utf8');
  const { devDependencies, overrides } = JSON.parse(packages) as Record<string, object>;
  return [
    `Node ${say('process.version')} with undici ${say('process.versions.undici')}`,
    ...Object.entries({ ...devDependencies, ...overrides }).map((entry) => entry.join(' ')),
    `${cpus()[0]!.model}, ${cpus().length} cores`,
    isPinned ? 'contender alone on core 0' : 'cores NOT separated',
    `load from ${hasWrk ? 'wrk' : 'Node'}`,
    new Date().toISOString().slice(0, 10),
  ].join('; ');
}

const all = { ...MEASURES, flat: undefined };
const byDefault = Object.keys(MEASURES).filter((name) => !['minutes', 'processes'].includes(name));
const only = options.only === undefined ? byDefault : namesIn(options.only, Object.keys(all));
const isWanted = (name: string) =>
  only.includes(name) || (FLAT.includes(name) && only.includes('flat'));
/** No figures at all: those beside a warning have been taken for results. */
function refuse(error: Error): never {
  if (!(error instanceof DisturbedError)) throw error;
  console.error('NOT a quiet machine: no figures. Nothing else may run meanwhile.');
  process.exit(1);
}

/** Why it cannot be measured. */
function absenceOf(id: ContenderId): string | undefined {
  const { tool }: Contender = CONTENDERS[id];
  const found = tool && toolOf(tool);
  return typeof found === 'string' ? found : undefined;
}

if (options.isProfile) {
  console.log(`${circumstances()}\n`);
  for (const id of namesIn(options.contenders ?? 'gateway', PROFILED)) {
    console.log(await profile(id as ContenderId));
  }
} else {
  const wanted = namesIn(options.contenders ?? RELAYS.join(','), RELAYS) as ContenderId[];
  const report = [`${circumstances()}\n`];
  const contenders = wanted.filter((id) => {
    const reason = absenceOf(id);
    if (reason !== undefined) report.push(`Absent: ${CONTENDERS[id].label}, ${reason}\n`);
    return reason === undefined;
  });
  const medians = new Map<string, Value>();
  for (const [name, measure] of Object.entries<Measure>(MEASURES)) {
    const rounds = name === 'minutes' ? 1 : options.rounds;
    if (!isWanted(name)) continue;
    const { text, value } = await take(measure, contenders, rounds).catch(refuse);
    report.push(text);
    medians.set(name, value);
  }
  console.log([...report, summarize(contenders, medians)].join('\n'));
}
process.exit(0);
