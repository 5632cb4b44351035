/** The cards with the figures, and the charts of the last 15 minutes. */

import { fill, formatNumber, formatTime, h } from './dom.js';

const CHART_HEIGHT = 32;
const STEPS = 90;
const STEP_SECONDS = 10;
const LAST = STEPS - 1;
/** The step whose values are shown, in all charts; null: none is pointed at. @type {number | null} */
let pointed = null;

/** Returns bars, a line, or the dots of values alone between two gaps. null is a gap. */
function pathOf(kind, values, max) {
  const steps = values.map((value, x) => {
    const y = (CHART_HEIGHT - 2 - (value / max) * (CHART_HEIGHT - 4)).toFixed(1);
    if (kind === 'bars') return value > 0 ? `M${x} ${CHART_HEIGHT}V${y}` : '';
    const isFirst = (values[x - 1] ?? null) === null;
    if (value === null) return '';
    if (kind === 'dots') return isFirst && (values[x + 1] ?? null) === null ? `M${x} ${y}h.01` : '';
    return isFirst ? `M${x} ${y}` : `L${x} ${y}`;
  });
  return steps.join('') + (kind === 'area' ? `V${CHART_HEIGHT}H0Z` : '');
}

const formatRate = (rate) => (rate < 100 ? rate.toFixed(1) : formatNumber(rate));

function formatShare(part, whole) {
  const percent = whole > 0 ? (100 * part) / whole : 0;
  if (percent > 0 && percent < 0.1) return '<0.1';
  return percent === 0 || percent === 100 ? String(percent) : percent.toFixed(1);
}

/** Returns the requests per second over the last minute; the newest step may have just begun. */
function latestRate(counts, known, now) {
  const steps = counts.slice(-Math.min(6, known));
  const notYetSeconds = STEP_SECONDS - ((Date.parse(now) / 1000) % STEP_SECONDS);
  const total = steps.reduce((sum, count) => sum + count, 0);
  return total / Math.max(1, steps.length * STEP_SECONDS - notYetSeconds);
}

/**
 * Id, title, and a function that takes the present, the columns of the charts and the sums of the chosen window. It
 * returns the figure and its unit, the note below it, the value at the top of the chart, what the chart shows, and the
 * text of a step.
 * @type {[id: string, title: string, (state: any, steps: any, sums: any) => { value: string, unit?: string, note: string, max: number, lines: object, textOf: (at: number) => string }][]}
 */
const CARDS = [
  [
    'rate',
    'Requests/s',
    ({ now }, { requests, known }) => {
      const rates = requests.map((count) => count / STEP_SECONDS);
      const max = Math.max(...rates);
      // The newest step has not ended: its rate would always seem to fall.
      const ended = rates.with(LAST, null);
      return {
        value: formatRate(latestRate(requests, known, now)),
        note: 'last minute · highest ' + formatRate(max),
        max: Math.max(max, 0.1),
        lines: { area: rates.with(LAST, rates[LAST - 1]), first: ended, dots: ended },
        textOf: (at) => formatRate(rates[at]) + ' /s',
      };
    },
  ],
  [
    'streams',
    'Open streams',
    ({ figures }, { openStreams }) => {
      const open = figures.gateway_open_streams;
      const max = Math.max(open, ...openStreams);
      const inFlight = formatNumber(figures.gateway_requests_in_flight);
      return {
        value: formatNumber(open),
        note: inFlight + ' in flight · highest ' + formatNumber(max),
        max: Math.max(1, max),
        lines: { area: openStreams, first: openStreams },
        textOf: (at) => formatNumber(openStreams[at]) + ' open',
      };
    },
  ],
  [
    'latency',
    'First token, p50',
    (_, { p50: first, p95: second }, sums) => {
      const max = Math.max(1, ...second);
      const note = 'p95 ' + formatNumber(sums.p95) + ' ms (dashed)';
      return {
        value: formatNumber(sums.p50),
        unit: 'ms',
        note: sums.p50 === undefined ? 'none yet' : note,
        max,
        lines: { second, first, dots: first },
        textOf: (at) =>
          first[at] === null
            ? 'no stream'
            : 'p50 ' + formatNumber(first[at]) + ' ms, p95 ' + formatNumber(second[at]) + ' ms',
      };
    },
  ],
  [
    'failed',
    'Failed requests',
    (_, steps, { failed = 0, requests = 0 }) => {
      const bars = steps.failed.map((count, step) => count / Math.max(1, steps.requests[step]));
      const max = Math.max(...bars);
      const highest = formatShare(max, 1) + ' %';
      return {
        value: formatShare(failed, requests),
        unit: '%',
        note: formatNumber(failed) + ' of ' + formatNumber(requests) + ' · highest ' + highest,
        max,
        lines: { bars },
        textOf: (at) =>
          formatNumber(steps.failed[at]) + ' of ' + formatNumber(steps.requests[at]) + ' failed',
      };
    },
  ],
];

/** Returns the values of the steps by their names, and the number of the last one. Before the start there are none. */
function columnsOf(steps) {
  const numbers = Object.keys(steps).map(Number);
  const last = Math.max(...numbers);
  const column = (name, missing) =>
    Array.from({ length: STEPS }, (_, at) => steps[last - LAST + at]?.[name] ?? missing);
  const counts = ['requests', 'failed', 'openStreams'].map((name) => [name, column(name, 0)]);
  const times = ['p50', 'p95'].map((name) => [name, column(name, null)]);
  return { ...Object.fromEntries([...counts, ...times]), known: numbers.length, last };
}

const redraw = (target) => target.dispatchEvent(new Event('input', { bubbles: true }));

function unpoint() {
  pointed = null;
  redraw(document);
}

/** An invisible slider over the chart: pointer, arrow keys and screen readers move along the steps. */
const slider = (title, valueText) =>
  h('input', {
    type: 'range',
    min: 0,
    max: LAST,
    value: LAST,
    'aria-label': title + ' over the last 15 minutes',
    'aria-valuetext': valueText,
    oninput: ({ target }) => (pointed = Number(target.value)),
    onfocus: ({ target }) => redraw(target),
    onpointermove({ target, offsetX }) {
      // Rounded to a step, and kept within the ends, by the slider itself.
      target.value = (offsetX / target.clientWidth) * LAST;
      redraw(target);
    },
    onblur: unpoint,
    onpointerleave: unpoint,
  });

/** Draws the cards. `sumsOf` is the window of the sums: `recent` or `start`. */
export function drawCards(state, sumsOf) {
  const steps = columnsOf(state.steps);
  const timeOf = (at) => formatTime(1000 * STEP_SECONDS * (steps.last - LAST + at));
  const cards = CARDS.map(([id, title, read]) => {
    const { value, unit = '', note, max, lines, textOf } = read(state, steps, state.all[sumsOf]);
    // The bars of the first and the last step are whole.
    const size = { viewBox: `-1 0 ${STEPS + 1} ${CHART_HEIGHT}`, preserveAspectRatio: 'none' };
    const paths = Object.entries(lines).map(([kind, values]) => {
      return h('path', { class: kind, d: pathOf(kind, values, max) });
    });
    const cursor = pointed !== null && h('path.cursor', { d: `M${pointed} 0V${CHART_HEIGHT}` });
    const pointedText = pointed !== null && timeOf(pointed) + ' · ' + textOf(pointed);
    const times = [0, LAST / 2, LAST].map((at) => h('span', timeOf(Math.round(at)).slice(0, 5)));
    return h(
      'div.box.card',
      h('dt', title),
      h('dd.value', { id }, value, unit && h('small.off', unit)),
      h('dd.note', { id: id + '-note' }, pointedText || note),
      h(
        'dd.chart',
        h('svg', { id: id + '-chart', 'aria-hidden': 'true', ...size }, paths, cursor),
        slider(title, pointedText || value + ' ' + unit + ', ' + note),
        h('div.axis', { 'aria-hidden': 'true' }, times),
      ),
    );
  });
  fill('cards', cards);
}
