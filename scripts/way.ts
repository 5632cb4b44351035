/**
 * Prints a request's way (`npm run way`): the functions in `src` run by a plain streamed
 * completion, after three others, with default settings and one provider. It lists them by file,
 * and then by their first run. V8's coverage gives the functions, and a breakpoint in each gives
 * the order. Field initializers, which V8 counts beside their constructors, are left out. At the
 * end it prints the minified bytes of `src`.
 */

import { fork } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { Session, type Profiler } from 'node:inspector/promises';
import type { AddressInfo } from 'node:net';
import { join, relative } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import { minifiedBytes } from './size.ts';

const ROOT = join(import.meta.dirname, '..');
const WARM_UPS = 3;
const MOST_WALKS = 4;
/** Longer than any period of the gateway's timers. */
const TIMERS_MS = 1500;
/** Longer than the breakpoints take on a busy machine, so that no walk needs a new connection. */
const KEEP_ALIVE_MS = 60_000;
/** Functions made by esbuild and V8. */
const MADE_BY_TOOLS = /^(?:__name|<(?:instance_members|static)_initializer>)$/;

interface RunFunction {
  /** The path below `src`. */
  readonly file: string;
  readonly name: string;
}

/** The functions in order, and the number of functions in the coverage. */
interface Taken {
  readonly order: readonly RunFunction[];
  readonly covered: number;
}

function isOnTheWay({ url }: Profiler.ScriptCoverage): boolean {
  if (!url.startsWith('file://')) return false;
  const file = relative(join(ROOT, 'src'), fileURLToPath(url));
  // V8 calls the observer of a collection, which may come in any request.
  return !file.startsWith('..') && file !== 'lib/memory/garbage-collector.ts';
}

/** Returns the functions in `src` by script, with their calls since the last time. */
async function takeCoverage(session: Session): Promise<Profiler.ScriptCoverage[]> {
  const { result } = await session.post('Profiler.takePreciseCoverage');
  return result.filter(isOnTheWay).map((script) => ({
    ...script,
    functions: script.functions.filter(({ functionName }) => !MADE_BY_TOOLS.test(functionName)),
  }));
}

/** Sets a breakpoint in each function, and returns the functions by breakpoint. */
async function breakAtFunctions(session: Session): Promise<Map<string, RunFunction>> {
  const functionOf = new Map<string, RunFunction>();
  for (const { scriptId, url, functions } of await takeCoverage(session)) {
    const file = relative(join(ROOT, 'src'), fileURLToPath(url));
    const { scriptSource } = await session.post('Debugger.getScriptSource', { scriptId });
    for (const { functionName, ranges } of functions) {
      const before = scriptSource.slice(0, ranges[0]!.startOffset).split('\n');
      const { locations } = await session.post('Debugger.getPossibleBreakpoints', {
        start: { scriptId, lineNumber: before.length - 1, columnNumber: before.at(-1)!.length },
        restrictToFunction: true,
      });
      if (!locations[0]) continue;
      const set = await session.post('Debugger.setBreakpoint', { location: locations[0] });
      functionOf.set(set.breakpointId, { file, name: functionName || '(anonymous)' });
    }
  }
  return functionOf;
}

/**
 * Runs in the gateway's process. The first message sets the breakpoints, and the second is answered
 * with the functions run since then. At a breakpoint V8 calls the listener without a pause, because
 * a session in the same thread could not resume it.
 */
async function trace(): Promise<void> {
  const session = new Session();
  session.connect();
  await session.post('Debugger.enable');
  await session.post('Profiler.enable');
  await session.post('Profiler.startPreciseCoverage', { callCount: true, detailed: false });
  // A gateway that drains would outlive a killed parent.
  process.once('disconnect', () => process.exit(1));
  const reached = new Set<string>();
  session.on('Debugger.paused', ({ params }) => {
    for (const id of params.hitBreakpoints ?? []) reached.add(id);
  });
  await once(process, 'message');
  const functionOf = await breakAtFunctions(session);
  process.send!({});
  await once(process, 'message');
  const covered = (await takeCoverage(session)).flatMap(({ functions }) =>
    functions.filter(({ ranges }) => ranges[0]!.count > 0),
  );
  const order = [...reached].map((id) => functionOf.get(id));
  process.send!({ order, covered: covered.length });
}

/**
 * Runs the gateway, and returns a streamed request's functions in order; undefined if V8 has missed
 * a breakpoint.
 */
async function walk(): Promise<readonly RunFunction[] | undefined> {
  const chunk = { id: '1', model: 'm', choices: [{ index: 0, delta: { content: 'a' } }] };
  const last = { ...chunk, choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] };
  // Each part follows once the client has the part before, so that no two arrive as one.
  const parts = [chunk, chunk, last].map((json) => `data: ${JSON.stringify(json)}\n\n`);
  let sendNext = () => {};
  const provider = createServer({ keepAliveTimeout: KEEP_ALIVE_MS }, (request, response) => {
    request.resume().on('end', () => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      const unsent = [...parts];
      sendNext = () => {
        const part = unsent.shift();
        if (unsent.length > 0) response.write(part);
        else if (part) response.end(`${part}data: [DONE]\n\n`);
      };
      sendNext();
    });
  }).listen(0, '127.0.0.1');
  await once(provider, 'listening');
  const { port } = provider.address() as AddressInfo;
  const server = '[server]\nport = 0\nhost = "127.0.0.1"\n';
  const section = `api_key = "k-0123456789"\nbase_url = "http://127.0.0.1:${port}/v1"\nmodels = ["m"]\n`;
  const toml = `${server}[providers.p]\n${section}`;
  const gateway = fork(join(ROOT, 'src/server.ts'), {
    // V8 misses some breakpoints in code compiled by Sparkplug.
    execArgv: ['--no-sparkplug', '--import', 'tsx', '--import', import.meta.url],
    env: { PATH: process.env['PATH'], GATEWAY_CONFIG_TOML: toml },
    stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
  });
  try {
    let started = '';
    for await (const text of gateway.stderr!) {
      started += String(text);
      if (started.includes('upstream')) break;
    }
    const url = `${/http:\S+/.exec(started)![0]}/chat/completions`;
    const body = JSON.stringify({
      model: 'p/m',
      stream: true,
      messages: [{ role: 'user', content: 'a' }],
    });
    const headers = { authorization: 'Bearer t', 'content-type': 'application/json' };
    const take = async () => {
      gateway.send('take');
      const [taken] = (await once(gateway, 'message')) as [Taken];
      return taken;
    };
    for (let request = 0; request <= WARM_UPS; request += 1) {
      // Wait for the last request's rest.
      await sleep(300);
      if (request === WARM_UPS) {
        // Each second timers run, and V8 knows no function that has never run.
        await sleep(TIMERS_MS);
        await take();
      }
      const { body: events } = await fetch(url, { method: 'POST', headers, body });
      for await (const _ of events!) sendNext();
    }
    await sleep(300);
    const { covered, order } = await take();
    return order.length === covered ? order : undefined;
  } finally {
    gateway.kill();
    provider.close();
    provider.closeAllConnections();
  }
}

/** Splits the order at each change of the file. */
function toStays(order: readonly RunFunction[]): RunFunction[][] {
  const stays: RunFunction[][] = [];
  for (const each of order) {
    const last = stays.at(-1);
    if (last?.[0]!.file === each.file) last.push(each);
    else stays.push([each]);
  }
  return stays;
}

if (process.send) void trace();
else if (process.argv[1] === import.meta.filename) {
  let functions: readonly RunFunction[] | undefined;
  // On a busy machine, V8 misses breakpoints now and then.
  for (let walks = 0; walks < MOST_WALKS && !functions; walks += 1) functions = await walk();
  if (!functions) throw new Error(`${MOST_WALKS} times the order had not all functions`);
  const files = [...new Set(functions.map(({ file }) => file))];
  const namesOf = (some: readonly RunFunction[]) => some.map(({ name }) => name).join(', ');
  let total = 0;
  for (const file of files) {
    const lines = readFileSync(join(ROOT, 'src', file), 'utf8').split('\n').length - 1;
    const own = functions.filter((each) => each.file === file);
    console.log(`${file} (${lines} lines): ${namesOf(own)}`);
    total += lines;
  }
  console.log(`\n${functions.length} functions in ${files.length} files of ${total} lines`);
  console.log('\nIn the order of their first run:\n');
  const stays = toStays(functions);
  for (const stay of stays) console.log(`${stay[0]!.file}: ${namesOf(stay)}`);
  console.log(`\n${stays.length - files.length} returns to a file that was left`);
  console.log('\nMinified bytes by folder, each file alone:\n');
  const sizes = minifiedBytes(join(ROOT, 'src'));
  for (const [folder, bytes] of sizes) console.log(`${folder.padEnd(12)} ${bytes}`);
  console.log(`${'all'.padEnd(12)} ${[...sizes.values()].reduce((sum, bytes) => sum + bytes, 0)}`);
}
