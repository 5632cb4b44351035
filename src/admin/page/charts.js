/** The tiles with the figures, and the charts of the last 15 minutes. */

import { fill, h } from './dom.js';
import { formatNumber, formatTime } from './format.js';

const CHART_HEIGHT = 32;
const STEPS = 90;
const STEP_SECONDS = 10;
const LAST = STEPS - 1;
const MINUTE_STEPS = 6;

/** Returns bars, or a line with the area below it if that is wanted. null is a gap; a value alone between two is a dash. */
function pathOf(kind, values, max) {
  const first = values.findIndex((value) => value !== null);
  const steps = values.map((value, x) => {
    const y = (CHART_HEIGHT - 2 - (value / max) * (CHART_HEIGHT - 4)).toFixed(1);
    if (kind === 'bars') return value > 0 ? `M${x} ${CHART_HEIGHT}V${y}` : '';
    if (value === null) return '';
    if ((values[x - 1] ?? null) !== null) return `L${x} ${y}`;
    return (values[x + 1] ?? null) === null ? `M${x - 0.5} ${y}h1` : `M${x} ${y}`;
  });
  return steps.join('') + (kind === 'area' && first >= 0 ? `V${CHART_HEIGHT}H${first}Z` : '');
}

const formatRate = (rate) => (rate < 100 ? rate.toFixed(1) : formatNumber(rate));

function formatShare(part = 0, whole = 0) {
  const percent = whole > 0 ? (100 * part) / whole : 0;
  if (percent > 0 && percent < 0.1) return '<0.1';
  return percent === 0 || percent === 100 ? String(percent) : percent.toFixed(1);
}

const sumOf = (steps, name) =>
  steps.slice(-MINUTE_STEPS).reduce((sum, one) => sum + (one[name] ?? 0), 0);

/** Returns the requests per second over the last minute; the newest step may have just begun, and the gateway too. */
function latestRate(steps, { now, settings }) {
  const notYetSeconds = STEP_SECONDS - ((Date.parse(now) / 1000) % STEP_SECONDS);
  const upSeconds = (Date.parse(now) - Date.parse(settings.startedAt)) / 1000;
  return sumOf(steps, 'requests') / Math.max(1, Math.min(60 - notYetSeconds, upSeconds));
}

/**
 * By their ids. A function takes the present and the steps of the charts, undefined before the first. It returns the
 * figure and its unit, the note below it, the lines of the chart, and the text of a value.
 * @type {Record<string, (state: any, steps: any[], known: any[]) => any>}
 */
const CARDS = {
  rate(state, steps, known) {
    const rates = steps.map((one) => (one ? (one.requests ?? 0) / STEP_SECONDS : null));
    // The newest step has not ended: its rate would always seem to fall.
    const ended = [...rates.slice(0, LAST), null];
    return {
      title: 'Requests/s',
      value: formatRate(latestRate(known, state)),
      note: 'last minute',
      lines: { area: ended, first: ended },
      textOf: formatRate,
    };
  },
  failed(_, steps, known) {
    const [failed, requests] = [sumOf(known, 'failed'), sumOf(known, 'requests')];
    return {
      title: 'Failing now',
      value: formatShare(failed, requests),
      unit: '%',
      note: formatNumber(failed) + ' of ' + formatNumber(requests) + ' in the last minute',
      lines: {
        bars: steps.map((one) => one && (one.failed ?? 0) / Math.max(1, one.requests ?? 0)),
      },
      textOf: (share) => formatShare(share, 1) + ' %',
    };
  },
  latency({ all: { p50, p95 } }, steps) {
    return {
      title: 'First token, p50',
      value: formatNumber(p50),
      unit: p50 ? 'ms' : '',
      note: p50 ? 'p95 ' + formatNumber(p95) + ' ms (dashed), 15 minutes' : 'none yet',
      lines: {
        second: steps.map((one) => one?.p95 ?? null),
        first: steps.map((one) => one?.p50 ?? null),
      },
      textOf: (ms) => formatNumber(ms) + ' ms',
    };
  },
  streams({ figures }, steps) {
    const values = steps.map((one) => one && (one.openStreams ?? 0));
    return {
      title: 'Open streams',
      value: formatNumber(figures.gateway_open_streams),
      note: formatNumber(figures.gateway_requests_in_flight) + ' in flight',
      lines: { area: values, first: values },
      textOf: formatNumber,
    };
  },
};

/** Draws the tiles. */
export function drawCards(state) {
  const last = Math.max(...Object.keys(state.steps).map(Number));
  const steps = Array.from({ length: STEPS }, (_, at) => state.steps[last - LAST + at] ?? null);
  const known = steps.filter((one) => one !== null);
  const timeOf = (at) => formatTime(1000 * STEP_SECONDS * (last - LAST + at)).slice(0, 5);
  const cards = Object.entries(CARDS).map(([id, read]) => {
    const { title, value, unit = '', note, lines, textOf } = read(state, steps, known);
    const highest = Math.max(0, ...Object.values(lines).flat());
    // The bars of the first and the last step are whole.
    const size = { viewBox: `-1 0 ${STEPS + 1} ${CHART_HEIGHT}`, preserveAspectRatio: 'none' };
    const paths = Object.entries(lines).map(([kind, values]) =>
      h('path', { class: kind, d: pathOf(kind, values, highest || 1) }),
    );
    const scale = 'highest ' + textOf(highest);
    const times = [0, LAST].map((at) => h('span', timeOf(at)));
    return h(
      'div.box.card',
      h('dt', title),
      h('dd.value', { id }, value, unit && h('small.off', unit)),
      h('dd.note', { id: id + '-note' }, note),
      h(
        'dd.chart',
        h('div.scale', { id: id + '-scale' }, scale),
        h('svg', { id: id + '-chart', 'aria-hidden': 'true', ...size }, paths),
        h('div.axis', { 'aria-hidden': 'true' }, times),
      ),
    );
  });
  fill('cards', cards);
}
