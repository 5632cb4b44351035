/** Random accidents to bytes: lost, doubled, changed, inserted, moved, repeated, cut off. */

import type { Random } from './random.ts';

/** Applies one to four accidents. `tokens` are bytes likely to matter to the reader. */
export function mutate(random: Random, bytes: Buffer, tokens: readonly string[]): Buffer {
  let result = bytes;
  for (let count = random.integer(1, 4); count > 0; count -= 1) {
    result = mutateOnce(random, result, tokens);
  }
  return result;
}

function mutateOnce(random: Random, bytes: Buffer, tokens: readonly string[]): Buffer {
  const place = () => random.integer(0, bytes.length);
  const at = place();
  const end = Math.min(bytes.length, at + random.pick([1, 1, 2, random.integer(0, 40)]));
  const before = bytes.subarray(0, at);
  const range = bytes.subarray(at, end);
  const after = bytes.subarray(end);
  const token = () => Buffer.from(random.pick(tokens), 'latin1');
  const byte = () => Buffer.from([random.integer(0, 255)]);
  const to = place();
  const accidents: (() => Buffer[])[] = [
    () => [before, after],
    () => [before, range, range, after],
    () => [before, token(), after],
    () => [before, token(), range, after],
    () => [before, byte(), after],
    () => [before, byte(), range, after],
    () => [before, ...Array.from({ length: random.integer(2, 300) }, () => range), after],
    () => [bytes.subarray(0, to), range, bytes.subarray(to)],
    () => [before],
  ];
  return Buffer.concat(random.pick(accidents)());
}

/** Cuts bytes into at most 60 pieces, none empty. More pieces take long and find nothing. */
export function cutUp(random: Random, bytes: Buffer): Buffer[] {
  const pieces: Buffer[] = [];
  const longest = random.pick([1, 3, 20, 200, 2000]);
  for (let at = 0; at < bytes.length; at += pieces.at(-1)!.length) {
    const length = pieces.length < 59 ? random.integer(1, longest) : bytes.length;
    pieces.push(bytes.subarray(at, at + length));
  }
  return pieces;
}
