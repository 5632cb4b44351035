/** `npm run way` agrees with the steps in ARCHITECTURE.md. */

import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { test, type TestContext } from 'node:test';

import { ROOT, startCommand } from './support/process.ts';

/** Without a limit, because the script has its own: it walks four times at most. */
const OPTIONS = { timeout: Infinity };

let way: Promise<string> | undefined;

/** Runs the script, once for all tests. */
async function runWay(t: TestContext): Promise<string> {
  const command = [process.execPath, '--import', 'tsx', 'scripts/way.ts'];
  const { exit, stdout, stderr } = startCommand(t, command, { cwd: ROOT });
  assert.equal(await exit, 0, stderr());
  return stdout();
}

test(
  'the steps of ARCHITECTURE.md name exactly the files of a streamed request',
  OPTIONS,
  async (t) => {
    const [, steps = ''] = readFileSync(join(ROOT, 'ARCHITECTURE.md'), 'utf8').split(
      /^1\. |^Not on this way/m,
    );
    const run = steps.replaceAll(/^ {3}With it: .*(?:\n(?!\d|\n).*)*$/gm, '');
    const named = new Set([...run.matchAll(/`([a-z\d/-]+\.ts)`/g)].map(([, name]) => name));
    const stdout = await (way ??= runWay(t));
    const ran = [...stdout.matchAll(/^(\S+\.ts) \(/gm)].map(([, name]) => name);
    assert.deepEqual(named, new Set(ran));
  },
);

test('the order leads from the listener to the access line', OPTIONS, async (t) => {
  const stdout = await (way ??= runWay(t));
  const order = stdout.replace(/^[^]*^In the order/m, '');
  const landmarks = [
    'downstream/http-server.ts: (anonymous)',
    'downstream/connection.ts: receive, #begin',
    'gateway/gateway.ts: handle',
    'gateway/attempts.ts: askProvider',
    'upstream/answers/stream-opening.ts: openStream',
    'gateway/access-log.ts: logFinished',
    'lib/line-writer.ts: (anonymous)',
  ];
  const places = landmarks.map((landmark) => order.indexOf(`\n${landmark}`));
  assert.deepEqual(
    places,
    places.toSorted((a, b) => a - b),
  );
  assert.ok(!places.includes(-1), order);
});

test('the order has a line for each stay in a file, and counts the returns', OPTIONS, async (t) => {
  const stdout = await (way ??= runWay(t));
  const stays = [...stdout.matchAll(/^(\S+\.ts): /gm)].map(([, file]) => file);
  assert.ok(stays.every((file, index) => file !== stays[index + 1]));
  const returns = /^(\d+) returns to a file that was left$/m.exec(stdout)?.[1];
  assert.equal(Number(returns), stays.length - new Set(stays).size);
});

test(
  'the folders of src add up to between a third and two thirds of its text',
  OPTIONS,
  async (t) => {
    const [, sizes = ''] = (await (way ??= runWay(t))).split('Minified bytes by folder');
    const bytes = new Map(
      [...sizes.matchAll(/^(\S+) +(\d+)$/gm)].map(([, name, size]) => [name, +size!]),
    );
    const all = bytes.get('all')!;
    bytes.delete('all');
    const files = readdirSync(join(ROOT, 'src'), { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .map(({ name, parentPath }) => readFileSync(join(parentPath, name)).length);
    const sum = (some: Iterable<number>) => [...some].reduce((total, size) => total + size, 0);
    assert.equal(sum(bytes.values()), all);
    const share = all / sum(files);
    assert.ok(share > 1 / 3 && share < 2 / 3, `${share}`);
  },
);
