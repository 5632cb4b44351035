/**
 * taplo, a TOML tool for editors, accepts the same settings as the gateway, by gateway.schema.json.
 */

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { copyFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';

const ROOT = join(import.meta.dirname, '../..');
const TAPLO = join(import.meta.dirname, 'node_modules/.bin/taplo');
const SCHEMA_LINE = '#:schema ./gateway.schema.json\n';

const folder = mkdtempSync(join(tmpdir(), 'taplo-'));
after(() => rmSync(folder, { recursive: true }));
copyFileSync(join(ROOT, 'gateway.schema.json'), join(folder, 'gateway.schema.json'));
const example = readFileSync(join(ROOT, 'gateway.toml.example'), 'utf8');

/** Returns taplo's report; undefined if it accepts the file. */
function refusalOf(toml: string): string | undefined {
  const path = join(folder, 'gateway.toml');
  writeFileSync(path, toml);
  const { status, stderr } = spawnSync(TAPLO, ['lint', path], {
    cwd: folder,
    encoding: 'utf8',
    timeout: 60_000,
  });
  assert.ok(status === 0 || status === 1, `${status} ${stderr}`);
  assert.match(stderr, /found files total=1/);
  return status === 0 ? undefined : stderr;
}

test('taplo accepts the example', () => {
  assert.equal(refusalOf(example), undefined);
});

test('taplo accepts the example with every setting turned on', () => {
  const complete = example.replace(/^#(?=[\w["])/gm, '');
  assert.ok(complete.startsWith(SCHEMA_LINE));
  assert.ok(complete.split('\n').filter((line) => /^[a-z_]+ = /.test(line)).length > 40);
  assert.equal(refusalOf(complete), undefined);
});

const ACCEPTED = [
  '[server]\nport = "${PORT}"\ncors = "${file:cors}"\nupstream = "${UPSTREAM}"',
  '[aliases]\n"any name" = "a/b"\nlist = ["a/b", "c/d"]',
  '[aliases]\na = { targets = ["a/b", "c/d"], balance = "weighted", weights = [9, 1] }',
  '[providers]\nfallback_on = [401]',
  '[clients.any-name]\nkeys = ["a", "b"]\nmodels = ["x/*"]',
  '[clients.any-name]\nexpires = 2027-01-31',
  '[clients.any-name]\nexpires = 2027-01-31T18:00:00+01:00',
  '[providers.any-id]\nbase_url = "http://h"\nheaders = { "X-Any" = "b" }\napi_keys = ["a"]',
  '[rate_limit.providers.any-id]\nrequests_per_second = 1',
  '[providers.openai]\nhide_models = ["*embed*"]',
  '[providers.vllm.model_details."a/b-1.5"]\ncontext_length = 131072',
  '[providers.a.model_details.b]\ninput_price_per_million = 2.5\noutput_price_per_million = 10',
];
for (const toml of ACCEPTED) {
  test(`taplo accepts ${JSON.stringify(toml)}`, () => {
    assert.equal(refusalOf(SCHEMA_LINE + toml), undefined);
  });
}

const REFUSED: [toml: string, report: RegExp][] = [
  ['[sever]', /'sever' was unexpected/],
  ['[server]\nprot = 1', /'prot' was unexpected/],
  ['[server.auth]\nkey = "a"', /'key' was unexpected/],
  ['[clients.a]\nmodel = []', /'model' was unexpected/],
  ['[clients.a]\nexpires = 1801440000', /1801440000 is not of type "string"/],
  ['[admin]\nhots = "a"', /'hots' was unexpected/],
  ['[logging]\nlevle = "info"', /'levle' was unexpected/],
  ['[providers]\nfalback = []', /\[\] is not of type "object"/],
  ['[providers.openai]\napikey = "a"', /'apikey' was unexpected/],
  ['[rate_limit]\nburst = 1', /'burst' was unexpected/],
  ['[rate_limit.providers.openai]\nrps = 1', /'rps' was unexpected/],
  ['[server]\nport = "8080"', /"8080" is not valid under any of/],
  ['[server]\nport = 65536', /65536 is not valid under any of/],
  ['[server]\ncors = 1', /1 is not valid under any of/],
  ['[server]\nhost = ""', /"" is shorter than 1 character/],
  ['[server]\ntrusted_proxies = "::1"', /"::1" is not of type "array"/],
  ['[logging]\nformat = "xml"', /"xml" is not valid under any of/],
  ['[aliases]\na = []', /\[\] is not valid under any of/],
  ['[providers.openai.model_details.a]\nmax_tokens = 1', /'max_tokens' was unexpected/],
  [
    '[providers.openai.model_details.a]\ninput_price_per_million = -1',
    /-1 is less than the minimum of 0/,
  ],
  ['[providers.openai]\nheaders = { a = 1 }', /1 is not of type "string"/],
];
for (const [toml, report] of REFUSED) {
  test(`taplo refuses ${JSON.stringify(toml)}`, () => {
    assert.match(refusalOf(SCHEMA_LINE + toml) ?? 'accepted', report);
  });
}
