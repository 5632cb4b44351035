/**
 * `npm run truth`: plays the cases against a gateway, prints a table, and writes the results.
 * README.md explains the options.
 */

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

import { GROUPS, readCases } from './case.ts';
import { startOwnGateway } from './own-gateway.ts';
import { playCases, type Result } from './play.ts';
import { Provider } from './provider.ts';
import type { ResultFile } from './table.ts';

const { values } = parseArgs({
  options: {
    url: { type: 'string' },
    'provider-port': { type: 'string', default: '9100' },
    model: { type: 'string', default: 'm' },
    key: { type: 'string', default: 'truth-client-key' },
    keyless: { type: 'boolean', default: false },
    header: { type: 'string', multiple: true, default: [] },
    name: { type: 'string', default: 'a gateway' },
    'gateway-version': { type: 'string', default: 'unknown' },
    only: { type: 'string', default: '' },
    'at-once': { type: 'string', default: '1' },
    out: { type: 'string', default: 'truth.json' },
  },
});

const folder = import.meta.dirname;
const cases = readCases(join(folder, 'cases')).filter(({ id, group }) =>
  `${group}: ${id}`.includes(values.only),
);
if (cases.length === 0) throw new Error(`no case has ${values.only} in its name`);
const provider = new Provider();
const providerPort = await provider.listen(values.url === undefined ? 0 : portOf());
const own =
  values.url === undefined ? await startOwnGateway(join(folder, '..'), providerPort) : undefined;
const gateway = own?.gateway ?? {
  url: new URL(values.url!),
  model: values.model,
  key: values.key,
  isKeyless: values.keyless,
  headers: values.header,
};
const results = await playCases(
  cases,
  { gateway, provider, providerPort },
  {
    atOnce: own?.atOnce ?? Number(values['at-once']),
    onResult: ({ id }, { result }) => process.stderr.write(`${result} ${id}\n`),
  },
);
await own?.stop();
await provider.close();
print(results);
const file: ResultFile = {
  gateway: own?.name ?? values.name,
  version: own?.version ?? values['gateway-version'],
  date: new Date().toISOString().slice(0, 10),
  cases: Object.fromEntries(results),
};
writeFileSync(values.out, `${JSON.stringify(file, null, 2)}\n`);
process.exit([...results.values()].every(({ result }) => result === 'pass') ? 0 : 1);

function portOf(): number {
  const port = Number(values['provider-port']);
  if (!(Number.isInteger(port) && port > 0 && port < 65_536)) throw new Error('no port');
  return port;
}

/** Prints each case with its result, and the sums. */
function print(all: ReadonlyMap<string, Result>): void {
  for (const group of GROUPS) {
    const members = cases.filter((one) => one.group === group);
    if (members.length === 0) continue;
    const passed = members.filter(({ id }) => all.get(id)!.result === 'pass').length;
    console.log(`\n${group}: ${passed} of ${members.length}`);
    for (const { id, name, otherwise } of members) {
      const { result, seen } = all.get(id)!;
      console.log(`  ${result.padEnd(9)} ${id}: ${name}\n${' '.repeat(12)}${seen}`);
      if (result === 'fail') console.log(`${' '.repeat(12)}→ ${otherwise}`);
    }
  }
  const passed = [...all.values()].filter(({ result }) => result === 'pass').length;
  console.log(`\n${passed} of ${all.size} cases passed`);
}
