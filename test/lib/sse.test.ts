import assert from 'node:assert/strict';
import { test } from 'node:test';

import { encodeEvent, EventSplitter, parseEvents } from '../../src/lib/sse.ts';
import { withRandom } from '../support/random.ts';

const EMOJI = '\u{1F600}';
const STREAMS: Record<string, string> = {
  'line feeds': 'data: a\n\ndata: b\n\n',
  'carriage returns with line feeds': 'data: a\r\n\r\ndata: b\r\n\r\n',
  'carriage returns': 'data: a\r\rdata: b\r\r',
  'mixed line ends': 'data: a\r\n\ndata: b\n\r\ndata: c\r\r\ndata: d\n\r',
  comments: ': one\n: two\n\ndata: a\n: inside\n\n:\r\ndata: b\r\n\r\n: end\r',
  'several fields': 'event: error\nid: 1\ndata: a\ndata:b\ndata\nretry: 1\n\nid: 2\n\n',
  'blank lines': '\n\r\n\rdata: a\n\n\n\r\n\r\r',
  'characters of several bytes': `data: ${EMOJI}\u00e9\u2028\n\ndata:${EMOJI}\r\n\r\n`,
  'an unfinished end': 'data: a\n\nevent: x\ndata: b',
  'an unfinished comment': 'data: a\n\n: b',
  'a byte order mark': '\ufeffdata: a\n\n',
};

/** Where events, and comments before events, end: read line by line from text that is all there. */
function lastBoundary(text: string): number {
  let boundary = 0;
  let hasFields = false;
  for (const { 0: end, index } of text.matchAll(/\r\n|\n|\r/g)) {
    const line = text
      .slice(0, index)
      .split(/\r\n|\n|\r/)
      .at(-1)!;
    if (line === '') hasFields = false;
    else if (!line.startsWith(':')) hasFields = true;
    if (line === '' || !hasFields) boundary = index + end.length;
  }
  return boundary;
}

function cut(bytes: Buffer, places: readonly number[]): Buffer[] {
  const ends = [...places, bytes.length];
  return ends.map((end, index) => bytes.subarray(ends[index - 1] ?? 0, end));
}

/** Pushes the pieces and checks after each that exactly the whole events are out. */
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

for (const [name, text] of Object.entries(STREAMS)) {
  const bytes = Buffer.from(text);
  const offsets = Array.from(bytes.keys());

  test(`a stream with ${name} comes out event by event, whichever two places it is cut at`, () => {
    checkSplit([bytes]);
    checkSplit(cut(bytes, offsets.slice(1)));
    for (const first of offsets) {
      for (const second of offsets.slice(first)) checkSplit(cut(bytes, [first, second]));
    }
  });
}

test('random streams come out event by event, however they are cut', () =>
  withRandom((random) => {
    for (let round = 0; round < 2000; round += 1) {
      const parts = ['\n', '\r', '\r\n', 'data: x', ':c', 'id', '\n\n', 'a', EMOJI];
      const length = random.integer(1, 14);
      const text = Array.from({ length }, () => random.pick(parts)).join('');
      const bytes = Buffer.from(text);
      checkSplit(
        cut(
          bytes,
          Array.from(bytes.keys()).filter(() => random.oneIn(4)),
        ),
      );
    }
  }));

test('a chunk counts as progress if it has a part of an event, and not for comments and blank lines', () => {
  const seen = (chunk: string) => {
    const splitter = new EventSplitter();
    splitter.push(Buffer.from(chunk));
    return splitter.sawData;
  };
  const table = {
    'data: a\n\n': true,
    'data: a\n': true,
    d: true,
    ': c\n\n': false,
    ': c': false,
    '\n': false,
    '': false,
  };
  for (const [chunk, expected] of Object.entries(table)) assert.equal(seen(chunk), expected, chunk);
});

test('events are read as browsers read them', () => {
  const table: [text: string, events: { name: string; data: string }[]][] = [
    ['data: a\n\n', [{ name: '', data: 'a' }]],
    ['data:a\n\n', [{ name: '', data: 'a' }]],
    ['data:  a\r\n\r\n', [{ name: '', data: ' a' }]],
    ['data\ndata: b\n\n', [{ name: '', data: '\nb' }]],
    ['event: error\ndata: {\rdata: }\r\r', [{ name: 'error', data: '{\n}' }]],
    [': c\nid: 1\nfoo: 2\n data: no\ndata: y\n\n', [{ name: '', data: 'y' }]],
    [
      'event: a\n\ndata: b\n\n',
      [
        { name: 'a', data: '' },
        { name: '', data: 'b' },
      ],
    ],
    [`data: ${EMOJI}\u00e9\n\n`, [{ name: '', data: `${EMOJI}\u00e9` }]],
    ['data: a', []],
  ];
  for (const [text, expected] of table) {
    const events = [...parseEvents(Buffer.from(text))].map(({ name, data }) => ({ name, data }));
    assert.deepEqual(events, expected, text);
  }
});

test('each event says where its bytes begin, after comments', () => {
  const text = `: c\ndata: ${EMOJI}\n\n: d\r\ndata: b\r\n\r\n`;
  const starts = [...parseEvents(Buffer.from(text))].map(({ start }) => start);
  assert.deepEqual(starts, [4, 21]);
});

test('an event that is written reads back as it was', () => {
  const data = JSON.stringify({ error: { message: `${EMOJI} "quoted"` } });
  const events = [...parseEvents(encodeEvent(data))];
  assert.deepEqual(
    events.map((event) => event.data),
    [data],
  );
});
