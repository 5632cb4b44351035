/**
 * Measures the gateway beside others, each alone on a core. Prints progress to stderr, and Markdown
 * at the end.
 *
 *   npm run bench -- [--node MAJOR] [--rounds N] [--only NAME,...]
 *                    [--contenders NAME,...] [--quick]
 *   npm run bench -- --profile [--contenders NAME,...]
 *
 * --node        24: runs everything on this Node; by default, on the Node that runs the bench
 * --rounds      5; contenders alternate within a round, the tables have median (least–greatest)
 * --only        requests, allocations, events, latency, memory, prompts, start, bodies, connections
 *               (by default all of these); also minutes (--minutes 10) and processes (Node 22.12 or
 *               newer); `flat` is connections and minutes
 * --contenders  gateway, access-log-off, admin, fetch-transport, lean-relay, bare-relay,
 *               bare-fetch, onwards, nginx, portkey, litellm; onwards (by cargo), nginx (from
 *               Debian's packages) and LiteLLM (by pip) are downloaded once into
 *               ~/.cache/inference-gateway, and named as absent if the download fails
 * --quick       a round in a sixth of the time, to show that it works; its figures are worth little
 * --profile     prints where the time of gateway, access-log-off, fetch-transport, bare-relay,
 *               lean-relay or bare-fetch goes, and measures nothing
 *
 * Use a machine with two cores or more and nothing else running. A disturbed measurement is
 * repeated up to four times. If every try is disturbed, the measure's table is left out, and the
 * exit code is 1.
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
/** Contenders that end on SIGTERM, as --cpu-prof needs. */
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
/**
 * Leaves a disturbed measure out, because figures beside a warning have been taken for results.
 */
function leaveOut(error: Error): undefined {
  if (!(error instanceof DisturbedError)) throw error;
  console.error('NOT a quiet machine: no figures. Nothing else may run meanwhile.');
  process.exitCode = 1;
}

/** Returns why a contender cannot be measured. */
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
    const taken = await take(measure, contenders, rounds).catch(leaveOut);
    if (taken === undefined) continue;
    report.push(taken.text);
    medians.set(name, taken.value);
  }
  if (medians.size > 0) console.log([...report, summarize(contenders, medians)].join('\n'));
}
process.exit();
