/** Suggestions for misspelled names. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Suggestions } from '../../src/config/did-you-mean.ts';

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
    body: 'max_body_bytes',
    byte_max: 'max_body_bytes',
  };
  for (const [name, nearest] of Object.entries(suggestions)) {
    assert.equal(new Suggestions().similarTo(name, KNOWN), `; did you mean "${nearest}"?`, name);
  }
  for (const name of ['p', 'ho', 'xy', 'retries', '', 'x'.repeat(10_000)]) {
    assert.equal(new Suggestions().similarTo(name, KNOWN), '', name.slice(0, 20));
  }
  assert.equal(new Suggestions().similarTo('port', []), '');
  const two = ['first_token_timeout', 'keep_alive_timeout'];
  assert.equal(new Suggestions().similarTo('timeout', two), '');
});

test('without a similar name, all known names are listed', () => {
  assert.equal(new Suggestions().didYouMean('prot', KNOWN), '; did you mean "port"?');
  assert.equal(new Suggestions().didYouMean('retries', ['host', 'port']), '; known: host, port');
  assert.equal(new Suggestions().didYouMean('retries', []), '');
  assert.equal(new Suggestions().didYouMean('retries', ['host'], '; x'), '; x; known: host');
  assert.equal(new Suggestions().didYouMean('prot', KNOWN, '; x'), '; did you mean "port"?');
});

test('only the first ten names of a reading are compared with the known names', () => {
  const suggestions = new Suggestions();
  let compared = 0;
  const known = new Proxy(KNOWN, {
    get(names, key) {
      if (key === 'toSorted') compared += 1;
      return Reflect.get(names, key) as unknown;
    },
  });
  const texts = Array.from({ length: 30 }, (_, at) =>
    at % 2 === 0 ? suggestions.didYouMean('prot', known) : suggestions.similarTo('prot', known),
  );
  assert.equal(compared, 10);
  assert.deepEqual(
    texts.map((text) => text !== ''),
    texts.map((_, at) => at < 10),
  );
  assert.equal(suggestions.didYouMean('retries', known), '');
});
