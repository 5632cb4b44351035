/** The cards with the figures and charts of the last 15 minutes. */

import { fill, formatNumber, h } from './dom.js';

const CHART_HEIGHT = 32;
const sum = (values) => values.reduce((total, value) => total + value, 0);

/** Returns bars, or a line through the values: null is a gap, and a value alone between two gaps a dot. */
function pathOf(kind, values, max) {
  const steps = values.map((value, x) => {
    const y = (CHART_HEIGHT - 2 - (value / max) * (CHART_HEIGHT - 4)).toFixed(1);
    if (kind === 'bars') return value > 0 ? `M${x} ${CHART_HEIGHT}V${y}` : '';
    if (value === null) return '';
    return (values[x - 1] ?? null) === null ? `M${x} ${y}h.01` : `L${x} ${y}`;
  });
  return steps.join('') + (kind === 'area' ? `V${CHART_HEIGHT}H0Z` : '');
}

const lastOf = (values) => values.findLast((value) => value !== null) ?? null;
const formatRate = (rate) => (rate < 100 ? rate.toFixed(1) : formatNumber(rate));

/** Returns the requests per second over the last minute; the newest step may have just begun. */
function latestRate({ stepSeconds, endsAt, requests }, now) {
  const steps = requests.slice(-Math.ceil(60 / stepSeconds));
  const notYetSeconds = Math.max(0, (Date.parse(endsAt) - Date.parse(now)) / 1000);
  return sum(steps) / Math.max(1, steps.length * stepSeconds - notYetSeconds);
}

function formatShare(part, whole) {
  const percent = whole > 0 ? (100 * part) / whole : 0;
  if (percent > 0 && percent < 0.1) return '<0.1';
  return percent === 0 || percent === 100 ? String(percent) : percent.toFixed(1);
}

/**
 * Id, title, and a function that reads the state: the figure and its unit, the note below it, the value at the top of the
 * chart, and what the chart shows.
 * @type {[id: string, title: string, (state: any) => { value: string, unit?: string, note: string, max: number, lines: object }][]}
 */
const CARDS = [
  [
    'rate',
    'Requests/s',
    ({ now, history }) => {
      // The newest step has not ended: its rate would always seem to fall.
      const rates = history.requests.slice(0, -1).map((count) => count / history.stepSeconds);
      const peak = Math.max(...rates);
      const note = 'last minute · highest ' + formatRate(peak);
      const lines = { area: rates, first: rates };
      return { value: formatRate(latestRate(history, now)), note, max: Math.max(peak, 0.1), lines };
    },
  ],
  [
    'streams',
    'Open streams',
    ({ history: { openStreams }, figures }) => {
      const open = figures.gateway_open_streams;
      const max = Math.max(1, open, ...openStreams);
      const inFlight = formatNumber(figures.gateway_requests_in_flight);
      const note =
        inFlight + ' in flight · highest ' + formatNumber(Math.max(open, ...openStreams));
      return {
        value: formatNumber(open),
        note,
        max,
        lines: { area: openStreams, first: openStreams },
      };
    },
  ],
  [
    'latency',
    'First token, p50',
    ({ history: { firstTokenP50Ms: first, firstTokenP95Ms: second } }) => {
      const p50 = lastOf(first);
      const max = Math.max(1, ...second);
      if (p50 === null) return { value: '–', note: 'none yet', max, lines: {} };
      const p95 = formatNumber(lastOf(second));
      const note = 'p95 ' + p95 + ' ms (dashed) · highest ' + formatNumber(max);
      return { value: formatNumber(p50), unit: 'ms', note, max, lines: { second, first } };
    },
  ],
  [
    'failed',
    'Failed requests',
    ({ history: { requests, failed } }) => {
      const bars = failed.map((count, step) => count / Math.max(1, requests[step]));
      const max = Math.max(...bars);
      const counts = formatNumber(sum(failed)) + ' of ' + formatNumber(sum(requests));
      const note = counts + ' · highest ' + formatShare(max, 1) + ' %';
      return {
        value: formatShare(sum(failed), sum(requests)),
        unit: '%',
        note,
        max,
        lines: { bars },
      };
    },
  ],
];

/** Draws the cards. The chart's text alternative repeats its figure and note. */
export function drawCards(state) {
  const cards = CARDS.map(([id, title, read]) => {
    const { value, unit = '', note, max, lines } = read(state);
    const chart = {
      id: id + '-chart',
      role: 'img',
      'aria-label': title + ' over 15 minutes: ' + value + ' ' + unit + ', ' + note,
      viewBox: '0 0 89 ' + CHART_HEIGHT,
      preserveAspectRatio: 'none',
    };
    const paths = Object.entries(lines).map(([kind, values]) => {
      return h('path', { class: kind, d: pathOf(kind, values, max) });
    });
    return h(
      'div.box.card',
      h('dt', title),
      h('dd.value', { id }, value, unit && h('small.off', unit)),
      h('dd.note', { id: id + '-note' }, note),
      h('dd.chart', h('svg', chart, paths)),
    );
  });
  fill('cards', cards);
}
