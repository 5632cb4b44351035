/** The cards with the figures, and the charts of the last 15 minutes. */

import { fill, h } from './dom.js';
import { formatNumber, formatTime } from './format.js';

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
 * By their ids. A function takes the present, the columns of the charts and the sums of the chosen window. It returns the
 * figure and its unit, the note below it (from the highest of the values, which are those of the lines if none are given),
 * the lines of the chart, the least that its top stands for, and the text of a step.
 * @type {Record<string, (state: any, steps: any, sums: any) => any>}
 */
const CARDS = {
  rate({ now }, { requests, known }) {
    const rates = requests.map((count) => count / STEP_SECONDS);
    // The newest step has not ended: its rate would always seem to fall.
    const ended = rates.with(LAST, null);
    return {
      title: 'Requests/s',
      value: formatRate(latestRate(requests, known, now)),
      noteOf: (max) => 'last minute · highest ' + formatRate(max),
      lines: { area: ended, first: ended, dots: ended },
      values: rates,
      least: 0.1,
      textOf: (at) => formatRate(rates[at]) + ' /s',
    };
  },
  streams({ figures }, { openStreams }) {
    const inFlight = formatNumber(figures.gateway_requests_in_flight);
    const open = figures.gateway_open_streams;
    return {
      title: 'Open streams',
      value: formatNumber(open),
      noteOf: (max) => inFlight + ' in flight · highest ' + formatNumber(max),
      lines: { area: openStreams, first: openStreams },
      values: [...openStreams, open],
      least: 1,
      textOf: (at) => formatNumber(openStreams[at]) + ' open',
    };
  },
  latency(_, { p50, p95 }, sums) {
    const textOf = (at) =>
      'p50 ' + formatNumber(p50[at]) + ' ms, p95 ' + formatNumber(p95[at]) + ' ms';
    return {
      title: 'First token, p50',
      value: formatNumber(sums.p50),
      unit: 'ms',
      noteOf: () => (sums.p50 ? 'p95 ' + formatNumber(sums.p95) + ' ms (dashed)' : 'none yet'),
      lines: { second: p95, first: p50, dots: p50 },
      least: 1,
      textOf: (at) => (p50[at] === null ? 'no stream' : textOf(at)),
    };
  },
  failed(_, steps, { failed = 0, requests = 0 }) {
    const share = formatNumber(failed) + ' of ' + formatNumber(requests);
    const of = (at) => formatNumber(steps.failed[at]) + ' of ' + formatNumber(steps.requests[at]);
    return {
      title: 'Failed requests',
      value: formatShare(failed, requests),
      unit: '%',
      noteOf: (max) => share + ' · highest ' + formatShare(max, 1) + ' %',
      lines: { bars: steps.failed.map((count, at) => count / Math.max(1, steps.requests[at])) },
      least: 0,
      textOf: (at) => of(at) + ' failed',
    };
  },
};

/** Returns the values of the steps by their names, and the number of the last one. Before the start there are none. */
function columnsOf(steps) {
  const numbers = Object.keys(steps).map(Number);
  const last = Math.max(...numbers);
  const column = (name, missing) =>
    Array.from({ length: STEPS }, (_, at) => steps[last - LAST + at]?.[name] ?? missing);
  const [requests, failed, openStreams] = ['requests', 'failed', 'openStreams'].map((name) =>
    column(name, 0),
  );
  const [p50, p95] = ['p50', 'p95'].map((name) => column(name, null));
  return { requests, failed, openStreams, p50, p95, known: numbers.length, last };
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
  const cards = Object.entries(CARDS).map(([id, read]) => {
    const { title, value, unit = '', ...card } = read(state, steps, state.all[sumsOf]);
    const highest = Math.max(0, ...(card.values ?? Object.values(card.lines).flat()));
    const max = Math.max(card.least, highest);
    const note = card.noteOf(highest);
    // The bars of the first and the last step are whole.
    const size = { viewBox: `-1 0 ${STEPS + 1} ${CHART_HEIGHT}`, preserveAspectRatio: 'none' };
    const paths = Object.entries(card.lines).map(([kind, values]) =>
      h('path', { class: kind, d: pathOf(kind, values, max) }),
    );
    const cursor = pointed !== null && h('path.cursor', { d: `M${pointed} 0V${CHART_HEIGHT}` });
    const pointedText = pointed !== null && timeOf(pointed) + ' · ' + card.textOf(pointed);
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
