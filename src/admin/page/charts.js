/** The cards with the figures, and the charts of the last 15 minutes. */

import { fill, h } from './dom.js';
import { formatNumber, formatTime } from './format.js';

const CHART_HEIGHT = 32;
const STEPS = 90;
const STEP_SECONDS = 10;
const LAST = STEPS - 1;
/** The step whose values are shown, in all charts; null: none is pointed at. @type {number | null} */
let pointed = null;

/** Returns bars, or a line with the area below it if that is wanted. null is a gap; a value alone between two is a dash. */
function pathOf(kind, values, max) {
  const steps = values.map((value, x) => {
    const y = (CHART_HEIGHT - 2 - (value / max) * (CHART_HEIGHT - 4)).toFixed(1);
    if (kind === 'bars') return value > 0 ? `M${x} ${CHART_HEIGHT}V${y}` : '';
    if (value === null) return '';
    if ((values[x - 1] ?? null) !== null) return `L${x} ${y}`;
    return (values[x + 1] ?? null) === null ? `M${x - 0.5} ${y}h1` : `M${x} ${y}`;
  });
  return steps.join('') + (kind === 'area' ? `V${CHART_HEIGHT}H0Z` : '');
}

const formatRate = (rate) => (rate < 100 ? rate.toFixed(1) : formatNumber(rate));

function formatShare(part = 0, whole = 0) {
  const percent = whole > 0 ? (100 * part) / whole : 0;
  if (percent > 0 && percent < 0.1) return '<0.1';
  return percent === 0 || percent === 100 ? String(percent) : percent.toFixed(1);
}

/** Returns the requests per second over the last minute; the newest step may have just begun. */
function latestRate(counts, now) {
  const notYetSeconds = STEP_SECONDS - ((Date.parse(now) / 1000) % STEP_SECONDS);
  return counts.slice(-6).reduce((sum, count) => sum + count, 0) / (60 - notYetSeconds);
}

const textOfFailed = ({ failed = 0, requests = 0 }) =>
  formatNumber(failed) + ' of ' + formatNumber(requests);

/**
 * By their ids. A function takes the present, the steps of the charts and the sums of the chosen window. It returns the
 * figure and its unit, the note below it (from the highest of the values), the lines of the chart, and the text of a step.
 * @type {Record<string, (state: any, steps: any[], sums: any) => any>}
 */
const CARDS = {
  rate({ now }, steps) {
    const counts = steps.map(({ requests = 0 }) => requests);
    const rates = counts.map((count) => count / STEP_SECONDS);
    // The newest step has not ended: its rate would always seem to fall.
    const ended = [...rates.slice(0, LAST), null];
    return {
      title: 'Requests/s',
      value: formatRate(latestRate(counts, now)),
      noteOf: (max) => 'last minute · highest ' + formatRate(max),
      lines: { area: ended, first: ended },
      textOf: (at) => formatRate(rates[at]) + ' /s',
    };
  },
  streams({ figures }, steps) {
    const inFlight = formatNumber(figures.gateway_requests_in_flight);
    const open = figures.gateway_open_streams;
    const values = steps.map(({ openStreams = 0 }) => openStreams);
    return {
      title: 'Open streams',
      value: formatNumber(open),
      noteOf: (max) => inFlight + ' in flight · highest ' + formatNumber(max),
      lines: { area: values, first: values },
      textOf: (at) => formatNumber(values[at]) + ' open',
    };
  },
  latency(_, steps, { p50, p95 }) {
    const textOf = (one) => 'p50 ' + formatNumber(one.p50) + ' ms, p95 ' + formatNumber(one.p95);
    return {
      title: 'First token, p50',
      value: formatNumber(p50),
      unit: 'ms',
      noteOf: () => (p50 ? 'p95 ' + formatNumber(p95) + ' ms (dashed)' : 'none yet'),
      lines: {
        second: steps.map((one) => one.p95 ?? null),
        first: steps.map((one) => one.p50 ?? null),
      },
      textOf: (at) => (steps[at].p50 === undefined ? 'no stream' : textOf(steps[at]) + ' ms'),
    };
  },
  failed(_, steps, sums) {
    return {
      title: 'Failed requests',
      value: formatShare(sums.failed, sums.requests),
      unit: '%',
      noteOf: (max) => textOfFailed(sums) + ' · highest ' + formatShare(max, 1) + ' %',
      lines: { bars: steps.map(({ failed = 0, requests = 0 }) => failed / Math.max(1, requests)) },
      textOf: (at) => textOfFailed(steps[at]) + ' failed',
    };
  },
};

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
  const last = Math.max(...Object.keys(state.steps).map(Number));
  const steps = Array.from({ length: STEPS }, (_, at) => state.steps[last - LAST + at] ?? {});
  const timeOf = (at) => formatTime(1000 * STEP_SECONDS * (last - LAST + at));
  const cards = Object.entries(CARDS).map(([id, read]) => {
    const { title, value, unit = '', ...card } = read(state, steps, state.all[sumsOf]);
    const highest = Math.max(0, ...Object.values(card.lines).flat());
    const note = card.noteOf(highest);
    // The bars of the first and the last step are whole.
    const size = { viewBox: `-1 0 ${STEPS + 1} ${CHART_HEIGHT}`, preserveAspectRatio: 'none' };
    const paths = Object.entries(card.lines).map(([kind, values]) =>
      h('path', { class: kind, d: pathOf(kind, values, highest || 1) }),
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
