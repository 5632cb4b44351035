/** The unit, installed by the commands at its top and run by systemd. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { totalmem } from 'node:os';
import { join } from 'node:path';
import { test, type TestContext } from 'node:test';

import { chatBody, PROVIDER_KEY } from '../support/gateway.ts';
import { openHeldStream } from '../support/held-stream.ts';
import { buildOnce, freePort, ROOT, SERVER } from '../support/process.ts';
import { eventually, openChat } from '../support/streams.ts';
import { type FakeUpstream, startUpstream } from '../support/upstream.ts';
import { bootMachine, NO_MACHINE, type Machine } from './machine.ts';

if (NO_MACHINE) console.error(`SKIPPED: ${NO_MACHINE}.`);
const OPTIONS = { skip: NO_MACHINE, timeout: 120_000 };
const UNIT = 'inference-gateway';
const UNIT_PATH = `deploy/${UNIT}.service`;
const SETTINGS = '/etc/inference-gateway/gateway.toml';
const LOG = '/run/gateway.log';
/** In systemd's scale, from 0 (not exposed) to 10. */
const MAX_EXPOSURE = 2;

const unit = readFileSync(join(ROOT, UNIT_PATH), 'utf8');
const template = readFileSync(join(ROOT, `deploy/${UNIT}@.service`), 'utf8');
/** The template's units share one folder for drop-ins. */
const TEMPLATE = `${UNIT}@`;
/** The commands at the unit's top. */
const install = [...unit.matchAll(/^# {3}((?:install|systemctl) .*)$/gm)].map(([, one]) => one!);

async function boot(t: TestContext, settings: string, name = UNIT): Promise<Machine> {
  await buildOnce();
  const machine = await bootMachine(t, {
    'gateway.toml': settings,
    'openai.key': `${PROVIDER_KEY}\n`,
    'server.js': readFileSync(SERVER, 'utf8'),
    [`${UNIT}.service`]: unit,
    [`${TEMPLATE}.service`]: template,
  });
  machine.run(
    `mkdir dist deploy; mv server.js dist; mv ${UNIT}.service ${TEMPLATE}.service deploy`,
  );
  // The machine has no journal, and Node may not be in /usr/bin.
  const log = `[Service]\\nStandardOutput=append:${LOG}\\nStandardError=inherit\\n`;
  machine.run(`mkdir -p /etc/systemd/system/${name}.service.d`);
  machine.run(`printf '${log}' > /etc/systemd/system/${name}.service.d/log.conf`);
  if (process.execPath !== '/usr/bin/node') machine.run(`cp ${process.execPath} /usr/bin/node`);
  return machine;
}

function settingsFor({ baseUrl }: FakeUpstream, port: number): string {
  const key = '${file:${CREDENTIALS_DIRECTORY}/openai}';
  const server = `[server]\nhost = "127.0.0.1"\nport = ${port}\n`;
  return `${server}[providers.openai]\nbase_url = "${baseUrl}"\napi_key = "${key}"\n`;
}

/** Returns a whole answer's status, or the error's code. */
async function statusOf(port: number, model: string): Promise<number | string | undefined> {
  const { ended, response } = openChat(port, chatBody({ model }));
  return ended.then(
    async () => (await response).statusCode,
    ({ code }: NodeJS.ErrnoException) => code,
  );
}

test('systemd-analyze accepts the unit, and finds it little exposed', OPTIONS, async (t) => {
  const { run } = await boot(t, '');
  assert.deepEqual(run(`systemd-analyze verify --man=no ${UNIT_PATH}`), { code: 0, output: '' });
  const threshold = MAX_EXPOSURE * 10;
  const analyze = `systemd-analyze security --offline=yes --no-pager --threshold=${threshold}`;
  const { code, output } = run(`${analyze} ${UNIT_PATH}`);
  assert.equal(code, 0, output);
  t.diagnostic(output.trim().split('\n').at(-1) ?? '');
});

test(
  'under systemd it starts, restarts, reloads, stays down after 78 and drains',
  OPTIONS,
  async (t) => {
    const upstream = await startUpstream(t);
    const port = await freePort();
    const settings = settingsFor(upstream, port);
    const { run } = await boot(t, settings);
    const systemctl = (command: string) => run(`systemctl ${command} ${UNIT}`);
    const show = (property: string) =>
      systemctl(`show --value --property=${property}`).output.trim();
    const write = (text: string) => run(`cat > ${SETTINGS}`, text);
    const ask = (model: string) => statusOf(port, model);
    const logged = async (text: string, count = 1) =>
      eventually(() => run(`cat ${LOG}`).output.split(text).length > count, `${text} is logged`);
    const started = async (count: number) => logged('"message":"started"', count);

    assert.equal(install.length, 5);
    for (const command of install) assert.equal(run(command).code, 0, command);
    await started(1);
    assert.equal(await ask('openai/m'), 200);
    assert.equal(upstream.requests.at(-1)!.headers.authorization, `Bearer ${PROVIDER_KEY}`);

    write(`${settings}[aliases]\nfast = "openai/m"\n`);
    assert.deepEqual(systemctl('reload'), { code: 0, output: '' });
    await logged('"message":"reloaded"');
    assert.equal(await ask('fast'), 200);

    // By hand, because systemd itself starts the unit only once in two seconds.
    for (let round = 0; round < 10; round += 1) {
      const { code, output } = run(`systemctl restart ${UNIT} && systemctl reload ${UNIT}`);
      assert.deepEqual([code, output], [0, ''], `round ${round}`);
      assert.equal(await ask('fast'), 200);
    }
    await logged('"message":"reloaded"', 11);
    assert.equal(show('NRestarts'), '0');

    write('[server]\nprot = 1\n');
    assert.notEqual(systemctl('reload').code, 0);
    await logged('server.prot: unknown key');
    assert.ok(!run(`cat ${LOG}`).output.includes('"message":"reload failed"'));
    assert.equal(show('ActiveState'), 'active');
    assert.equal(await ask('fast'), 200);

    assert.notEqual(systemctl('restart').code, 0);
    assert.equal(show('ExecMainStatus'), '78');
    assert.equal(show('SubState'), 'failed');
    assert.equal(show('NRestarts'), '0');

    write(settings);
    assert.equal(systemctl('start').code, 0);
    assert.equal(await ask('openai/m'), 200);
    run(`kill -KILL ${show('MainPID')}`);
    await started(13);
    assert.equal(show('NRestarts'), '1');
    await eventually(() => show('ActiveState') === 'active', 'it has started again');

    // Before Node has a handler for the signal.
    run(`systemctl restart --no-block ${UNIT}; systemctl kill --signal=HUP ${UNIT}`);
    await eventually(() => show('ActiveState') === 'active', 'it is active all the same');
    assert.equal(await ask('openai/m'), 200);

    const stream = await openHeldStream(port, upstream, 'openai/m');
    assert.equal(systemctl('stop --no-block').code, 0);
    await logged('"message":"draining"');
    await stream.finish();
    await eventually(() => show('ActiveState') === 'inactive', 'it has stopped');
    assert.equal(show('ExecMainStatus'), '0');
  },
);

test(
  "keys rotate in a folder of the unit's group, without credentials and a restart",
  OPTIONS,
  async (t) => {
    const upstream = await startUpstream(t);
    const port = await freePort();
    const settings = settingsFor(upstream, port);
    const { run } = await boot(t, settings);
    for (const command of install) assert.equal(run(command).code, 0, command);
    const keys = settings
      .replace('[server]', '[server]\nwatch = true')
      .replace(/\$\{file:.*(?=")/, '${file:keys/openai}');
    run(`cat > ${SETTINGS}`, keys);
    const guide = readFileSync(join(ROOT, 'docs/deployment.md'), 'utf8');
    const [, commands = ''] = /^```\n(groupadd [^]*?)^```$/m.exec(guide)!;
    const { code, output } = run(commands);
    assert.equal(code, 0, output);
    assert.equal(await statusOf(port, 'openai/m'), 200);
    assert.equal(upstream.requests.at(-1)!.headers.authorization, `Bearer ${PROVIDER_KEY}`);
    const folder = '/etc/inference-gateway/keys';
    run(`umask 027; echo new-key-0123456789 >${folder}/next; mv ${folder}/next ${folder}/openai`);
    await eventually(() => run(`cat ${LOG}`).output.includes('"reloaded"'), 'the reload');
    assert.equal(await statusOf(port, 'openai/m'), 200);
    assert.equal(upstream.requests.at(-1)!.headers.authorization, 'Bearer new-key-0123456789');
    assert.deepEqual(run(`systemctl reload ${UNIT}`), { code: 0, output: '' });
  },
);

const [MAJOR = 0, MINOR = 0] = process.versions.node.split('.').map(Number);
const NO_SHARING =
  !(MAJOR > 22 || (MAJOR === 22 && MINOR >= 12)) &&
  'processes share a port with Node 22.12 or newer';

test(
  'units 1 and 10 of the template serve one port, and restart without a lost request',
  { skip: NO_MACHINE || NO_SHARING, timeout: 120_000 },
  async (t) => {
    const upstream = await startUpstream(t);
    const port = await freePort();
    // The admin listeners have their own address.
    const settings = `${settingsFor(upstream, port)}[admin]\nhost = "127.0.0.2"\n`;
    const { run } = await boot(t, settings, TEMPLATE);
    const path = `deploy/${TEMPLATE}.service`;
    assert.deepEqual(run(`systemd-analyze verify --man=no ${path}`), { code: 0, output: '' });
    for (const [, command = ''] of template.matchAll(/^# {3}((?:install|systemctl) .*)$/gm)) {
      const two = command.replace('@{1..4}', '@1 inference-gateway@10');
      assert.equal(run(two).code, 0, two);
    }
    for (const adminPort of [9091, 9100]) {
      const ready = await fetch(`http://127.0.0.2:${adminPort}/ready`);
      assert.equal(ready.status, 200);
    }
    const limit = Number(run(`systemctl show --value --property=MemoryMax ${TEMPLATE}10`).output);
    assert.ok(limit > 0 && limit <= totalmem() / 4, `MemoryMax=${limit}`);
    const state = { isOver: false, failed: [] as unknown[], count: 0 };
    const load = Array.from({ length: 4 }, async () => {
      while (!state.isOver) {
        const status = await statusOf(port, 'openai/m');
        state.count += 1;
        // Without tcp_migrate_req, the kernel resets connections between the last `accept` and the
        // close.
        if (status !== 200 && status !== 'ECONNRESET') state.failed.push(status);
      }
    });
    assert.deepEqual(run(`systemctl reload '${TEMPLATE}*'`), { code: 0, output: '' });
    for (const unitNumber of [1, 10, 1]) {
      const name = `${TEMPLATE}${unitNumber}`;
      const show = (property: string) =>
        run(`systemctl show --value --property=${property} ${name}`).output.trim();
      const formerPid = show('MainPID');
      // Without blocking, because this process has the clients and the provider.
      assert.equal(run(`systemctl restart --no-block ${name}`).code, 0);
      await eventually(
        () => show('MainPID') !== formerPid && show('ActiveState') === 'active',
        `${name} has started again`,
      );
      const { count } = state;
      await eventually(() => state.count > count + 20, 'the load goes on');
    }
    state.isOver = true;
    await Promise.all(load);
    assert.deepEqual(state.failed, [], `of ${state.count}`);
  },
);
