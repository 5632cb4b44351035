/** docs/log.md names exactly the log's fields, outcomes and messages. */

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import { factsOf } from '../src/request/facts.ts';
import { Attempt, RequestHistory } from '../src/request/history.ts';
import { LIMITS } from '../src/lib/limits.ts';
import { LOG_LEVELS } from '../src/lib/log.ts';
import { ROOT } from './support/process.ts';

const docs = readFileSync(join(ROOT, 'docs/log.md'), 'utf8');
const sources = readdirSync(join(ROOT, 'src'), { recursive: true, encoding: 'utf8' })
  .filter((name) => name.endsWith('.ts'))
  .map((name) => readFileSync(join(ROOT, 'src', name), 'utf8'))
  .join('\n');

/** Returns the names in the first column of the table under this header. */
function documented(header: string): string[] {
  const [, table = ''] = docs.split(`| ${header} |`);
  const rows = table.split('\n\n')[0]!.split('\n').slice(2);
  return rows.flatMap((row) =>
    [...row.split('|')[1]!.matchAll(/`([^`]+)`/g)].map(([, name]) => name!),
  );
}

const provider = { id: 'provider', subject: {} };
const attempt = new Attempt({ provider, model: 'model', isStream: false }, '');

/** Returns the names of an access line's fields. */
function requestFields(): string[] {
  const reply = { status: undefined, firstByteAtMs: undefined, sentBytes: 0 };
  const head = { id: '', method: '', path: '', headers: {} };
  const call = { ...head, history: new RequestHistory(), receivedAtMs: 0, reply };
  const ofEnd = { endedAtMs: 0, phase: undefined, remote: undefined, limitState: undefined };
  return Object.keys(factsOf(call, { outcome: 'ok', ...ofEnd }, undefined));
}

function unionOf(type: string): string[] {
  const [, text = ''] = sources.split(`export type ${type} =`);
  return [...text.split(';')[0]!.matchAll(/'(\w+)'/g)].map(([, name]) => name!);
}

test('docs/log.md has exactly the fields of an access line', () => {
  const fields = ['time', 'level', ...requestFields()];
  const added = ['request_bytes', 'user_agent', 'headers'];
  const named = documented('field | type').filter((name) => !name.includes(' '));
  assert.ok(fields.length > 20, String(fields));
  assert.deepEqual(named.toSorted(), [...fields, ...added].toSorted());
});

test('docs/log.md has exactly the fields of a try', () => {
  assert.deepEqual(
    documented('field of a try | type').toSorted(),
    Object.keys(attempt.toFacts()).toSorted(),
  );
});

test('docs/log.md has every outcome, every level and every limit', () => {
  assert.deepEqual(documented('`outcome` | level').toSorted(), unionOf('Outcome').toSorted());
  assert.deepEqual(documented('level | lines'), [...LOG_LEVELS]);
  for (const limit of Object.keys(LIMITS))
    assert.match(docs, new RegExp(`\\| \`reason\` .*\`${limit}\``));
});

test('docs/log.md has every other line of the log, with its level', () => {
  const other = docs.split('## Other lines')[1]!;
  const logged = [...sources.matchAll(/\.log\(\s*'(\w+)',\s*'([^']+)'/g)];
  assert.ok(logged.length > 10);
  for (const [, level = '', message = ''] of logged) {
    const row = other.split('\n').find((line) => line.split('|')[1]?.includes(`\`${message}\``));
    assert.ok(row, `docs/log.md does not have "${message}"`);
    assert.match(row.split('|')[2]!, new RegExp(`\`${level}\``), row);
  }
});
