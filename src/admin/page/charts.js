/** Three charts on a common time axis: requests, failures, and first tokens. */

import { clip, fill, formatNumber, formatShare, formatTime, h, isNarrow } from './dom.js';
import { iconOf, lastingOf, subjectOf } from './incidents.js';
import { judge, servedOf } from './verdict.js';

export const STEPS = 90;
const STEP_MS = 10_000;
const LABELLED_MS = 300_000;
/** The heights of a chart's row and its plot. */
const ROW = 76;
const PLOT = 54;
/** More lanes would push the charts away. */
const MAX_LANES = 6;

const HATCH = {
  width: 6,
  height: 6,
  patternUnits: 'userSpaceOnUse',
  patternTransform: 'rotate(45)',
};

/** The step chosen by pointer or keyboard. @type {number | undefined} */
let cursor;
/** @type {any} */
let latest;

/** Rounds a value up to one of 1, 1.5, 2, 3, 5, 10, 15, ... */
export function roundTop(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 1.5, 2, 3, 5].find((one) => one * power >= value) ?? 10);
}

/**
 * Returns when each step of the axis began. A step with requests keeps the time noted with its
 * first request, so that setting the clock does not move the past.
 */
export function timesOf({ now, step, steps }, first) {
  const times = Array.from({ length: STEPS }, () => 0);
  const nowMs = Math.floor(Date.parse(now) / STEP_MS) * STEP_MS;
  for (let at = STEPS - 1; at >= 0; at -= 1) {
    const next = at === STEPS - 1 ? nowMs + STEP_MS * (first + STEPS - step) : times[at + 1];
    times[at] = steps[first + at]?.time ?? next - STEP_MS;
  }
  return times;
}

/** Returns a time's place on the axis, from 0 to 1. */
export function placeOf(time, times) {
  const ms = Date.parse(time);
  const at = times.findLastIndex((begin) => begin <= ms && ms < begin + STEP_MS);
  if (at >= 0) return (at + (ms - times[at]) / STEP_MS) / STEPS;
  return ms < times[0] ? 0 : 1;
}

const percent = (share) => (100 * share).toFixed(2) + '%';

/** Returns the axis's points: one for each step, or for two steps on a narrow page. */
function pointsOf({ steps }, first) {
  const size = isNarrow() ? 2 : 1;
  return Array.from({ length: STEPS / size }, (_, at) => {
    const own = Array.from({ length: size }, (__, i) => steps[first + at * size + i] ?? {});
    const sum = (name) => own.reduce((all, one) => all + (one[name] ?? 0), 0);
    const served = sum('requests') - sum('limited');
    const { p50, p95 } = own.findLast((one) => one.p50 !== undefined) ?? {};
    const failed = served > 0 ? (100 * sum('failed')) / served : 0;
    return { requests: (sum('requests') * 60_000) / (size * STEP_MS), failed, p50, p95 };
  });
}

/** Describes a chart in a box that is stretched to the width, so that its gaps scale too. */
const stretched = (y, count, paths) => {
  const box = { y, width: '100%', height: PLOT, viewBox: '0 0 ' + count + ' 100' };
  return h('svg', { ...box, preserveAspectRatio: 'none' }, paths);
};

function bars(name, values, top) {
  const d = values.map((value, x) => {
    const height = ((100 * value) / top).toFixed(1);
    return value > 0 && `M${x + 0.12} 100v-${height}h.76v${height}z`;
  });
  return h('path.bars.' + name, { id: 'chart-' + name, d: d.filter(Boolean).join('') });
}

/** Describes a line. Missing values leave a gap, and a single point is a dot. */
function line(name, values, top) {
  const d = values.map((value, x) => {
    if (value === undefined) return '';
    const place = x + 0.5 + ' ' + (100 - (100 * value) / top).toFixed(1);
    return values[x - 1] === undefined ? 'M' + place + 'h.01' : 'L' + place;
  });
  return h('path.line.' + name, { id: 'chart-' + name, d: d.join('') });
}

/** Returns the incidents within the axis, lasting incidents first. They end with the data. */
function lanesOf(state, times, known) {
  const isSeen = ({ ended }) => ended && Date.parse(ended) > times[0];
  return [...lastingOf(state), ...state.incidents.filter(isSeen)].slice(0, MAX_LANES).map((one) => {
    const from = placeOf(one.since, times);
    const to = Math.max(from, Math.min(known, one.ended ? placeOf(one.ended, times) : 1));
    return { kind: iconOf(one), text: subjectOf(one) + (one.ended ? ', ended' : ''), from, to };
  });
}

/** Returns the three figures for the last minute, or for the cursor's step. */
function readoutsOf(state, time) {
  const { minute, figures, asOf } = state;
  const isMinute = time === undefined;
  const one = isMinute ? minute : (state.steps[Number(cursor)] ?? {});
  const { requests = 0, failed = 0, limited = 0, p50, p95, connect, gateway } = one;
  const served = servedOf(one);
  const when = h('span.wide', ', ' + (time ?? (asOf ? 'minute to ' + asOf : 'last minute')));
  const share = failed > 0 ? formatShare(failed, served).split(' ')[0] : served > 0 ? '0' : '–';
  const isBad = lastingOf(state).some((incident) => iconOf(incident) === 'bad');
  const parts = [
    ' · connect ' + formatNumber(connect),
    gateway !== undefined && ' · gateway ' + formatNumber(gateway),
  ];
  return [
    {
      id: 'requests',
      title: ['Requests', when],
      value: formatNumber(isMinute ? requests : (requests * 60_000) / STEP_MS),
      unit: '/min',
      note: isMinute
        ? formatNumber(figures.gateway_requests_in_flight) + ' in flight'
        : formatNumber(requests) + ' in 10 s',
    },
    {
      id: 'failed',
      title: ['Failed', when],
      value: share,
      unit: '%',
      note: [
        formatNumber(failed) + ' of ' + formatNumber(served),
        limited > 0 && h('span.wide', ' · ' + formatNumber(limited) + ' refused'),
      ],
      kind: judge(one).end !== 'failed' ? '' : isBad ? 'bad' : 'warn',
    },
    {
      id: 'p50',
      title: [h('span.key.p50'), 'First token', isMinute ? h('span.wide', ', median') : when],
      value: formatNumber(p50),
      unit: 'ms',
      note: [h('span.key.p95'), 'p95 ' + formatNumber(p95), h('span.wide', parts)],
    },
  ];
}

const readout = ({ id, title, value, unit, note, kind = '' }) =>
  h(
    'div',
    h('dt', title),
    h('dd.value.' + kind, { id: 'tile-' + id }, value, value !== '–' && h('small', ' ' + unit)),
    h('dd.note', { id: 'tile-' + id + '-note' }, note),
  );

/** Moves the cursor to a step. Undefined removes it. */
function moveTo(step) {
  cursor = step;
  drawCharts(latest);
}

/** Returns the handlers that move the cursor by pointer and keyboard, from `first` to `last`. */
function cursorEvents(first, last) {
  const within = (step) => Math.min(last, Math.max(first, step));
  const at = cursor ?? last + 1;
  const keys = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: first, End: last };
  return {
    onpointermove({ currentTarget, clientX }) {
      const { left, width } = currentTarget.getBoundingClientRect();
      moveTo(within(first + Math.floor(((clientX - left) / width) * STEPS)));
    },
    onpointerleave: () => moveTo(undefined),
    onfocus: ({ target }) => target.matches(':focus-visible') && moveTo(last),
    onblur: () => moveTo(undefined),
    onkeydown(event) {
      if (event.key === 'Escape') moveTo(undefined);
      if (keys[event.key] === undefined) return;
      event.preventDefault();
      moveTo(within(keys[event.key]));
    },
  };
}

/** Returns each chart's paths and top label. */
function chartsOf(points) {
  const of = (name) => points.map((one) => one[name]);
  const topOf = (least, name) => roundTop(Math.max(least, ...of(name).map((value) => value ?? 0)));
  const [most, share, slowest] = [topOf(10, 'requests'), topOf(5, 'failed'), topOf(10, 'p95')];
  const lines = ['p95', 'p50'].map((name) => line(name, of(name), slowest));
  return [
    { paths: bars('requests', of('requests'), most), top: formatNumber(most) },
    { paths: bars('failed', of('failed'), share), top: share + ' %' },
    { paths: lines, top: slowest < 1000 ? slowest + ' ms' : slowest / 1000 + ' s' },
  ];
}

const vertical = (name, x, height) => h('line.' + name, { x1: x, x2: x, y2: height });

/** Describes the incidents' bands behind the charts and their strips above. */
function describeLanes(lanes, height, laneHeight) {
  const bands = lanes.map(({ kind, from, to }) =>
    h('rect.band.' + kind, { x: percent(from), width: percent(to - from), height }),
  );
  const strips = lanes.map(({ kind, from, to }, i) => {
    const y = laneHeight * (i + 1) - (isNarrow() ? 3 : 9);
    return h('line.lane.' + kind, { x1: percent(from), x2: percent(to), y1: y, y2: y });
  });
  return [bands, strips];
}

/** Describes a line and a label for each five minutes. */
function describeHours(times, height) {
  // A label at the right edge would be cut off.
  const labelled = [...times.keys()].filter(
    (at) => at > 0 && at < STEPS - 2 && times[at] % LABELLED_MS < STEP_MS,
  );
  return labelled.map((at) => {
    const x = percent(at / STEPS);
    const text = h('text.hour', { x, y: height + 14 }, formatTime(times[at]).slice(0, 5));
    return [vertical('grid', x, height), text];
  });
}

/** Describes the hatched gap since the connection was lost. */
function describeGap(known, height) {
  if (known === 1) return [];
  const lines = h('pattern', { id: 'hatch', ...HATCH }, h('line', { y2: 6 }));
  const place = { x: percent(known), width: percent(1 - known), height, fill: 'url(#hatch)' };
  return [lines, h('rect', place), vertical('end', percent(known), height)];
}

/** Describes the cursor's line through all charts, and its time. */
function describeCursor(at, time, height) {
  const x = percent((at + 0.5) / STEPS);
  const box = h('rect', { x: -31, width: 62, height: 18, rx: 3 });
  const tip = h('svg.tip', { x, y: height, overflow: 'visible' }, box, h('text', { y: 13 }, time));
  return [vertical('cursor', x, height), tip];
}

/** Draws the figures and charts for the last 15 minutes. */
export function drawCharts(state) {
  latest = state;
  const silentSteps = Math.min(STEPS, Math.floor((state.silentMs ?? 0) / STEP_MS));
  const end = state.step + silentSteps;
  // A narrow page draws two steps as a point, so its axis ends with such a pair.
  const [first, last] = [(isNarrow() ? end | 1 : end) - STEPS + 1, state.step];
  if (cursor !== undefined) cursor = Math.min(last, Math.max(first, cursor));
  const times = timesOf(state, first);
  const known = silentSteps === 0 ? 1 : (last - first + 1) / STEPS;
  const lanes = lanesOf(state, times, known);
  const laneHeight = isNarrow() ? 24 : 18;
  const yOf = (row) => lanes.length * laneHeight + row * ROW + 8;
  const height = yOf(3) - 8;
  const points = pointsOf(state, first);
  const charts = chartsOf(points);
  const at = cursor === undefined ? undefined : cursor - first;
  const time = at === undefined ? undefined : formatTime(times[at]);
  const readouts = readoutsOf(state, time);
  const said = readouts.map(({ id, value, unit }) => [id, value, unit].join(' '));
  const slider = {
    role: 'slider',
    tabindex: '0',
    'aria-label': 'Step of the charts',
    'aria-valuemin': 0,
    'aria-valuemax': STEPS - 1,
    'aria-valuenow': at ?? last - first,
    'aria-valuetext': time === undefined ? 'the last minute' : [time, ...said].join(', '),
  };
  const size = { 'aria-hidden': 'true', height: height + 20 };
  const labels = charts.map(({ top }, row) => [
    h('text', { x: '100%', y: yOf(row) + 4 }, top),
    h('text', { x: '100%', y: yOf(row) + PLOT + 4 }, '0'),
  ]);
  const plots = charts.map(({ paths }, row) => {
    const y = yOf(row) + PLOT;
    return [
      stretched(yOf(row), points.length, paths),
      h('line.base', { x2: '100%', y1: y, y2: y }),
    ];
  });
  const [bands, strips] = describeLanes(lanes, height, laneHeight);
  const drawn = [
    bands,
    describeHours(times, height),
    strips,
    plots,
    describeGap(known, height),
    at !== undefined && describeCursor(at, time, height),
  ];
  const names = lanes.map(({ kind, text }) => h('li.icon.' + kind, clip(text)));
  const plot = h('svg', { ...size, width: '100%' }, drawn);
  fill(
    'charts',
    h('ul.lanes', names),
    h('dl.figures', readouts.map(readout)),
    h('svg.labels', size, labels),
    h('div.plot', { ...slider, ...cursorEvents(first, last) }, plot),
  );
}
