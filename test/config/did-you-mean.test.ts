/** Suggestions for misspelled names. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { didYouMean, similarTo } from '../../src/config/did-you-mean.ts';

const KNOWN = ['host', 'port', 'timeout', 'max_body_bytes'];

test('the nearest name is suggested if at most half its letters differ', () => {
  const suggestions: Record<string, string> = {
    prot: 'port',
    ports: 'port',
    hos: 'host',
    timout: 'timeout',
    'time-out': 'timeout',
    max_bdy_byts: 'max_body_bytes',
    maxBodyBytes: 'max_body_bytes',
  };
  for (const [name, nearest] of Object.entries(suggestions)) {
    assert.equal(similarTo(name, KNOWN), `; did you mean "${nearest}"?`, name);
  }
  for (const name of ['p', 'ho', 'xy', 'retries', '', 'x'.repeat(10_000)]) {
    assert.equal(similarTo(name, KNOWN), '', name.slice(0, 20));
  }
  assert.equal(similarTo('port', []), '');
});

test('without a similar name, all known names are listed', () => {
  assert.equal(didYouMean('prot', KNOWN), '; did you mean "port"?');
  assert.equal(didYouMean('retries', ['host', 'port']), '; known: host, port');
  assert.equal(didYouMean('retries', []), '');
});
