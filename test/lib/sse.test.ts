import assert from 'node:assert/strict';
import { test } from 'node:test';

import { encodeEvent, EventSplitter, parseEvents } from '../../src/lib/sse.ts';
import { cutUp } from '../support/mutate.ts';
import { withRandom } from '../support/random.ts';

const EMOJI = '\u{1F600}';

/** Returns the end of the last event, or of the last comment before an event, line by line. */
function lastBoundary(text: string): number {
  let boundary = 0;
  let start = 0;
  let hasFields = false;
  for (const { 0: end, index } of text.matchAll(/\r\n|\n|\r/g)) {
    const line = text.slice(start, index);
    start = index + end.length;
    if (line === '') hasFields = false;
    else if (!line.startsWith(':')) hasFields = true;
    if (!hasFields) boundary = start;
  }
  return boundary;
}

/** Pushes the pieces, and after each expects exactly the whole events. */
function checkSplit(pieces: readonly Buffer[]): void {
  const splitter = new EventSplitter();
  let received = Buffer.alloc(0);
  let passed = Buffer.alloc(0);
  for (const piece of pieces) {
    received = Buffer.concat([received, piece]);
    passed = Buffer.concat([passed, splitter.push(piece)]);
    assert.deepEqual(passed, received.subarray(0, passed.length));
    const where = JSON.stringify(pieces.map((bytes) => bytes.toString('latin1')));
    assert.equal(passed.length, lastBoundary(received.toString('latin1')), where);
    assert.equal(splitter.unfinished.size, received.length - passed.length, where);
  }
  assert.deepEqual(Buffer.concat([passed, splitter.unfinished.take()]), received);
  assert.equal(splitter.unfinished.size, 0);
}

const STREAMS = [
  'data: a\r\n\ndata: b\n\r\ndata: c\r\r\ndata: d\n\r',
  ': one\n: two\n\ndata: a\n: inside\n\n:\r\ndata: b\r\n\r\n: end\r',
  'event: error\nid: 1\ndata: a\ndata:b\ndata\nretry: 1\n\nid: 2\n\n',
  `\n\r\n\rdata: ${EMOJI}\u00e9\u2028\n\n\n\r\n\r\r`,
  'data: a\n\nevent: x\ndata: b',
  '\ufeffdata: a\r\rdata: b\r\r: b',
];

test('a stream comes out event by event, whichever two places it is cut at', () => {
  for (const text of STREAMS) {
    const bytes = Buffer.from(text);
    checkSplit(Array.from(bytes, (_, at) => bytes.subarray(at, at + 1)));
    for (const first of bytes.keys()) {
      for (let second = first; second < bytes.length; second += 1) {
        const ends = [0, first, second, bytes.length];
        checkSplit(ends.slice(1).map((end, at) => bytes.subarray(ends[at], end)));
      }
    }
  }
});

test('random streams come out event by event, however they are cut', () =>
  withRandom((random) => {
    const parts = ['\n', '\r', '\r\n', 'data: x', ':c', 'id', '\n\n', 'a', EMOJI, 'a'.repeat(1030)];
    for (let round = 0; round < 2000; round += 1) {
      const text = Array.from({ length: random.integer(1, 14) }, () => random.pick(parts)).join('');
      checkSplit(cutUp(random, Buffer.from(text)));
    }
  }));

test('a stream is taken up to the end of each event, however it is cut', () =>
  withRandom((random) => {
    const parts = ['\n', '\r', '\r\n', 'data: x', ':c', 'id', '\n\n', 'a'.repeat(1030)];
    for (let round = 0; round < 2000; round += 1) {
      const text = Array.from({ length: random.integer(1, 14) }, () => random.pick(parts)).join('');
      const splitter = new EventSplitter();
      let passed = '';
      for (const piece of cutUp(random, Buffer.from(text))) {
        for (let rest = piece; rest.length > 0;) {
          const end = splitter.pushToEnd(rest);
          if (end === 0) break;
          const taken = splitter.unfinished.take().toString();
          // Only `\r\n` may end before the last byte.
          assert.ok([0, taken.length - 1].includes(lastBoundary(taken.slice(0, -1))), taken);
          passed += taken;
          rest = rest.subarray(end);
        }
      }
      assert.equal(passed, text.slice(0, lastBoundary(text)), JSON.stringify(text));
    }
  }));

test('an event is taken with its last line end, and without the line feed behind it', () => {
  const table: [text: string, end: number][] = [
    ['data: a\n\ndata: b\n\n', 9],
    ['data: a\n\n\n', 9],
    ['data: a\r\rdata: b\r\r', 9],
    ['data: a\r\r\ndata: b\n\n', 10],
    ['data: a\r\n\r\n\r\n', 11],
    ['data: a\n', 0],
  ];
  for (const [text, end] of table) {
    assert.equal(new EventSplitter().pushToEnd(Buffer.from(text)), end, JSON.stringify(text));
  }
});

test('a line end is open after the carriage return of an event, but not of a line', () => {
  const isOpenAfter = (text: string) => {
    const splitter = new EventSplitter();
    splitter.push(Buffer.from(text));
    return splitter.isLineEndOpen;
  };
  const texts = ['data: a\r\r', ': c\r', 'data: a\r', 'data: a\n\n', 'data: a\r\r\n', ''];
  assert.deepEqual(texts.filter(isOpenAfter), ['data: a\r\r', ': c\r']);
});

test('a chunk of whole events is passed on without a copy', () => {
  const chunk = Buffer.from('data: a\n\ndata: b\n\n');
  assert.equal(new EventSplitter().push(chunk), chunk);
});

test('a chunk counts as progress only if it has part of an event', () => {
  const isProgress = (chunks: readonly string[]) => {
    const splitter = new EventSplitter();
    for (const chunk of chunks) splitter.push(Buffer.from(chunk));
    return splitter.sawData;
  };
  const progress = [
    ['data: a\n\n'],
    ['data: a\n'],
    ['d'],
    ['d', 'a'],
    ['d', '\n'],
    ['data: a\n', '\n'],
  ];
  const none = [[': c\n\n'], [': c'], [': c', 'd'], ['\n'], [''], ['d', ''], ['data: a\n\n', '\n']];
  assert.deepEqual([...progress, ...none].filter(isProgress), progress);
});

test('events are read as browsers read them, each with the place of its first byte', () => {
  const table: [text: string, ...events: [start: number, data: string, name?: string][]][] = [
    ['data: a\n\n', [0, 'a']],
    ['data:a\n\n', [0, 'a']],
    ['data:  a\r\n\r\n', [0, ' a']],
    ['data\ndata: b\n\n', [0, '\nb']],
    ['event: error\ndata: {\rdata: }\r\r', [0, '{\n}', 'error']],
    [': c\nid: 1\nfoo: 2\n data: no\ndata: y\n\n', [4, 'y']],
    ['event: a\n\ndata: b\n\n', [0, '', 'a'], [10, 'b']],
    [`: c\ndata: ${EMOJI}\n\n: d\r\ndata: b\r\n\r\n`, [4, EMOJI], [21, 'b']],
    [encodeEvent(`{"a":"${EMOJI}"}`).toString(), [0, `{"a":"${EMOJI}"}`]],
    ['\n: c\n\n'],
    ['data: a'],
  ];
  for (const [text, ...expected] of table) {
    const events = [...parseEvents(Buffer.from(text))].map(({ start, data, name }) =>
      name === '' ? [start, data] : [start, data, name],
    );
    assert.deepEqual(events, expected, text);
  }
});

test('a byte order mark is skipped at the start of a stream alone', () => {
  const bytes = Buffer.from('\ufeffdata: a\n\n');
  const dataOf = (isAtStart?: boolean) =>
    [...parseEvents(bytes, isAtStart)].map(({ start, data }) => [start, data]);
  assert.deepEqual(dataOf(true), [[3, 'a']]);
  assert.deepEqual(dataOf(false), [[0, '']]);
  assert.deepEqual(dataOf(), [[0, '']]);
  const endsWithMark = Buffer.from('data: a\n\n\ufeff');
  assert.deepEqual(
    [...parseEvents(endsWithMark, true)].map(({ start }) => start),
    [0],
  );
});

test('the lines of a field `error` become the data of an event `error`', () => {
  const table: [text: string, name: string, data: string][] = [
    ['error: {"a":1}\n\n', 'error', '{"a":1}'],
    ['event: b\ndata: c\nerror: d\nerror:e\n\n', 'error', 'd\ne'],
    ['errors: a\n\n', '', ''],
    ['data: error:\n\n', '', 'error:'],
  ];
  for (const [text, name, data] of table) {
    const [event, next] = parseEvents(Buffer.from(`${text}data: z\n\n`));
    assert.deepEqual([event?.name, event?.data], [name, data], text);
    assert.deepEqual([next?.name, next?.data], ['', 'z'], text);
  }
});

test('JSON lines without fields are kept: the last object, or an array with its lines', () => {
  const table: [text: string, bareJson: string][] = [
    ['data: a', ''],
    ['{"a":1}', '{"a":1}'],
    ['{"a":1}\n{"b":2}', '{"b":2}'],
    ['{\n  "a": 1\n}', '{\n  "a": 1\n}'],
    ['[{"a":1}]', '[{"a":1}]'],
    ['[\n{"a":1},\n{"b":2}\n]', '[\n{"a":1},\n{"b":2}\n]'],
    ['{"a":1}\n[2]', '[2]'],
    ['[1\n,2]', '[1\n,2]'],
    ['{"a":\ndata: b', '{"a":'],
    ['{"a":\nb: }', '{"a":'],
    ['  }', ''],
    ['}\n"a"', ''],
  ];
  for (const [text, bareJson] of table) {
    const [event, next] = parseEvents(Buffer.from(`${text}\n\ndata: z\n\n`));
    assert.equal(event?.bareJson, bareJson, text);
    assert.equal(next?.bareJson, '', text);
  }
});
