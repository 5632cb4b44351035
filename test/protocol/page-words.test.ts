import assert from 'node:assert/strict';
import { test } from 'node:test';

import { pageWordsOf } from '../../src/protocol/page-words.ts';

test('a page is named by its title, or else by its visible words', () => {
  const cases: readonly [page: string, words: string | undefined][] = [
    ['<!DOCTYPE html>\n<html><head><title>\n Sign  in </title></head><body>x', 'Sign in'],
    ['\ufeff<html><title></title><body><h1>Busy</h1><p>Wait.</p>', 'Busy Wait.'],
    ['<html><script>let a = "<p>";</script ><STYLE>b {}</STYLE><p>c', 'c'],
    ['<!-- a <p>b</p> --><html>c<!-- d', 'c'],
    ['<html><script>let a', ''],
    ['<html>a<b', 'a'],
    [' <?xml version="1.0"?><html><body>a', 'a'],
    ['{"message":"<html>a"}', undefined],
    ['an error at <html>', undefined],
    ["<class 'int'>", undefined],
    ['', undefined],
  ];
  for (const [page, words] of cases) assert.equal(pageWordsOf(page), words, page);
});

test('the words of a page are searched in its first 4,096 characters, in linear time', () => {
  assert.equal(pageWordsOf(`<html>${' '.repeat(4096)}a`), '');
  for (const part of ['<title', '<script', '<!--', '<', '<style>']) {
    const before = process.cpuUsage();
    pageWordsOf(`<html>${part.repeat(100_000)}`);
    const { user, system } = process.cpuUsage(before);
    assert.ok(user + system < 200_000, `${part}: ${user + system} µs`);
  }
});
