/** Three charts on a common time axis: requests, failures, and first tokens. */

import { byId, fill, h } from './dom.js';
import { formatNumber, formatTime } from './text.js';

const STEPS = 90;
const STEP_MS = 10_000;
const LABELLED_MS = 300_000;

/** The step chosen by pointer or keyboard. @type {number | undefined} */
let cursor;
/** @type {any} */
let latest;

/** Rounds a value up to one of 1, 1.5, 2, 3, 5, 10, 15, ... */
export function roundTop(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 1.5, 2, 3, 5].find((one) => one * power >= value) ?? 10);
}

const servedOf = ({ requests = 0, limited = 0 }) => requests - limited;
const rateOf = ({ requests = 0 }) => (requests * 60_000) / STEP_MS;
const shareOf = (one) => (servedOf(one) > 0 ? (100 * (one.failed ?? 0)) / servedOf(one) : 0);

/** Describes bars. Their box is stretched to the width, so that the gaps scale too. */
function bars(name, values, top) {
  const d = values.map((value, x) => {
    const height = ((100 * value) / top).toFixed(1);
    return value > 0 && `M${x + 0.12} 100v-${height}h.76v${height}z`;
  });
  return h('path.bars.' + name, { id: 'chart-' + name, d: d.filter(Boolean).join('') });
}

/** Describes a line. Missing values leave a gap, and a lone point is a dash. */
function line(name, values, top) {
  const d = values.map((value, x) => {
    if (value === undefined) return '';
    const y = ' ' + (100 - (100 * value) / top).toFixed(1);
    const isFirst = values[x - 1] === undefined;
    if (isFirst && values[x + 1] === undefined) return 'M' + (x + 0.1) + y + 'h.8';
    return (isFirst ? 'M' : 'L') + (x + 0.5) + y;
  });
  return h('path.line.' + name, { id: 'chart-' + name, d: d.join('') });
}

/** Describes the figure beside a chart. @param {any[]} figure */
const tile = ([id, title, value, unit, note, icon]) =>
  h(
    'dl.figure',
    h('dt', title),
    h('dd.value.' + icon, { id: 'tile-' + id }, value, value !== '–' && h('small', ' ' + unit)),
    h('dd.note', { id: 'tile-' + id + '-note' }, note),
  );

/** Returns the three figures for the last minute, or for the cursor's step. */
function figuresOf({ asOf, figures, minute, steps, verdict }, time) {
  const one = time === undefined ? minute : (steps[Number(cursor)] ?? {});
  const { requests = 0, failed = 0, limited = 0, p50, p95, connect, lookup, gateway, tokens } = one;
  const wide = (...parts) => h('span.wide', parts.map((text) => ' · ' + text).join(''));
  const when = h('span.wide', ', ' + (time ?? (asOf ? 'minute to ' + asOf : 'last minute')));
  const share =
    servedOf(one) > 0
      ? shareOf(one)
          .toFixed(1)
          .replace(/^0\.0$/, '0')
      : '–';
  const icon = shareOf(one) < 1 ? '' : verdict.icon === 'bad' ? 'bad' : 'warn';
  const flight = formatNumber(figures.in_flight) + ' in flight';
  const note = time === undefined ? flight : formatNumber(requests) + ' in 10 s';
  const used = tokens > 0 && wide(formatNumber(tokens) + ' tokens');
  const ofServed = formatNumber(failed) + ' of ' + formatNumber(servedOf(one));
  const refused = limited > 0 && wide(formatNumber(limited) + ' refused');
  const parts = wide('connect ' + formatNumber(connect), 'gateway ' + formatNumber(gateway));
  const resolved = lookup > 0 && wide('lookup ' + formatNumber(lookup));
  const rate = formatNumber(time === undefined ? requests : rateOf(one));
  const median = time === undefined ? h('span.wide', ', median') : when;
  const times = [h('span.key'), 'p95 ' + formatNumber(p95), parts, resolved];
  return [
    ['requests', ['Requests', when], rate, '/min', [note, used], ''],
    ['failed', ['Failed', when], share, '%', [ofServed, refused], icon],
    ['p50', ['First token', median], formatNumber(p50), 'ms', times, ''],
  ];
}

/** Returns each chart's paths and top label. */
function chartsOf(values) {
  const topOf = (least, all) => roundTop(Math.max(least, ...all.map((value) => value ?? 0)));
  const [rates, shares, p95s] = [rateOf, shareOf, ({ p95 }) => p95].map((of) => values.map(of));
  const p50s = values.map(({ p50 }) => p50);
  const [most, share, slowest] = [topOf(10, rates), topOf(5, shares), topOf(10, p95s)];
  return [
    { paths: bars('requests', rates, most), top: formatNumber(most) },
    { paths: bars('failed', shares, share), top: share + ' %' },
    {
      paths: [line('p95', p95s, slowest), line('p50', p50s, slowest)],
      top: slowest < 1000 ? slowest + ' ms' : slowest / 1000 + ' s',
    },
  ];
}

/** Moves the cursor to a step. Undefined removes it. */
function moveTo(step) {
  cursor = step;
  drawCharts(latest);
}

/** Describes the slider over the charts that moves the cursor. */
const slider = (first, known, text) =>
  h('input', {
    id: 'cursor',
    type: 'range',
    max: STEPS - 1,
    'aria-label': 'Step of the charts',
    'aria-valuetext': text,
    oninput: ({ target }) => moveTo(first + Math.min(known - 1, Number(target.value))),
    onblur: () => moveTo(undefined),
    onkeydown({ key }) {
      if (key === 'Escape') moveTo(undefined);
    },
    onpointerleave: () => moveTo(undefined),
    onpointermove({ clientX, target }) {
      const { left, width } = target.getBoundingClientRect();
      moveTo(first + Math.min(known - 1, Math.floor((STEPS * (clientX - left)) / width)));
    },
  });

/** Draws the figures and charts for the last 15 minutes. Without a feed they end before. */
export function drawCharts(state) {
  latest = state;
  const { lanes, step, steps, silentMs = 0 } = state;
  const known = Math.max(1, STEPS - Math.floor(silentMs / STEP_MS));
  const first = step - known + 1;
  if (cursor !== undefined) cursor = Math.min(step, Math.max(first, cursor));
  const values = Array.from({ length: known }, (_, at) => steps[first + at] ?? {});
  const placeOf = (at) => ((100 * at) / STEPS).toFixed(2) + '%';
  const place = ({ from, to = step + 1 }) => {
    const x = Math.max(0, from - first);
    return { x: placeOf(x), width: placeOf(Math.max(0.3, to - first - x)), height: '100%' };
  };
  const vertical = (name, at) =>
    h('line.' + name, { x1: placeOf(at), x2: placeOf(at), y2: '100%' });
  // A label at the edge would be cut off.
  const hours = values
    .map(({ time }, at) => ({ at, time }))
    .filter(({ at, time }) => at > 2 && at < STEPS - 2 && time % LABELLED_MS < STEP_MS);
  const behind = [
    lanes.map((one) => h('rect.band.' + one.icon, place(one))),
    hours.map(({ at }) => vertical('grid', at)),
  ];
  const time = cursor === undefined ? undefined : formatTime(steps[cursor]?.time);
  const figures = figuresOf(state, time);
  const said = figures.map(([id, , value, unit]) => [id, value, unit].join(' '));
  const box = { viewBox: '0 0 ' + STEPS + ' 100', preserveAspectRatio: 'none' };
  const hidden = { 'aria-hidden': 'true' };
  const charts = chartsOf(values).map(({ paths, top }, row) => {
    const at = cursor !== undefined && vertical('cursor', cursor - first + 0.5);
    const plot = [behind, h('svg', box, paths), at, h('text', { y: 10 }, top)];
    return [tile(figures[row]), h('svg.plot', hidden, plot)];
  });
  fill(
    'charts',
    lanes.map((one) => [
      h('span.lane.icon.' + one.icon, one.text),
      h('svg.strip', hidden, h('rect.' + one.icon, place(one))),
    ]),
    charts,
    h(
      'svg.hours',
      hidden,
      hours.map(({ at, time: begin }) =>
        h('text', { x: placeOf(at), y: 13 }, formatTime(begin).slice(-8, -3)),
      ),
    ),
    slider(first, known, time === undefined ? 'the last minute' : [time, ...said].join(', ')),
  );
  byId('cursor').value = (cursor ?? step) - first;
}
