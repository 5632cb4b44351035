/** The cards with the figures and charts of the last 15 minutes. */

import { fill, formatNumber, h } from './dom.js';

const CHART_HEIGHT = 32;
const sum = (values) => values.reduce((total, value) => total + value, 0);

function heightOf(value, max) {
  return (CHART_HEIGHT - 2 - (value / max) * (CHART_HEIGHT - 4)).toFixed(1);
}

/** Returns a line through the values; null is a gap, and a value alone between two gaps a dot. */
function linePath(values, max) {
  const steps = values.map((value, x) => {
    if (value === null) return '';
    const y = heightOf(value, max);
    const isFirst = (values[x - 1] ?? null) === null;
    return isFirst ? 'M' + x + ' ' + y + 'h.01' : 'L' + x + ' ' + y;
  });
  return steps.join('');
}

function areaPaths(values, max) {
  const line = linePath(values, max);
  return { area: line + 'V' + CHART_HEIGHT + 'H0Z', first: line };
}

function barPath(values, max) {
  const bars = values.map((value, x) =>
    value > 0 ? 'M' + x + ' ' + CHART_HEIGHT + 'V' + heightOf(value, max) : '',
  );
  return bars.join('');
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

function rateCard({ now, history }) {
  // The newest step has not ended: its rate would always seem to fall.
  const rates = history.requests.slice(0, -1).map((count) => count / history.stepSeconds);
  const peak = Math.max(...rates);
  return {
    value: formatRate(latestRate(history, now)),
    note: 'last minute · highest ' + formatRate(peak),
    paths: areaPaths(rates, Math.max(peak, 0.1)),
  };
}

function streamsCard({ history, figures }) {
  const { gateway_open_streams: openStreams, gateway_requests_in_flight: inFlight } = figures;
  const peak = Math.max(openStreams, ...history.openStreams);
  return {
    value: formatNumber(openStreams),
    note: formatNumber(inFlight) + ' in flight · highest ' + formatNumber(peak),
    paths: areaPaths(history.openStreams, Math.max(peak, 1)),
  };
}

function firstTokenCard({ history: { firstTokenP50Ms, firstTokenP95Ms } }) {
  const p50 = lastOf(firstTokenP50Ms);
  if (p50 === null) return { value: '–', note: 'none yet', paths: {} };
  const slowest = Math.max(1, ...firstTokenP95Ms);
  const p95 = formatNumber(lastOf(firstTokenP95Ms));
  return {
    value: formatNumber(p50),
    unit: 'ms',
    note: 'p95 ' + p95 + ' ms (dashed) · highest ' + formatNumber(slowest),
    paths: {
      second: linePath(firstTokenP95Ms, slowest),
      first: linePath(firstTokenP50Ms, slowest),
    },
  };
}

function failedCard({ history: { requests, failed } }) {
  const shares = failed.map((count, step) => count / Math.max(1, requests[step]));
  const highest = Math.max(...shares);
  const counts = formatNumber(sum(failed)) + ' of ' + formatNumber(sum(requests));
  return {
    value: formatShare(sum(failed), sum(requests)),
    unit: '%',
    note: counts + ' · highest ' + formatShare(highest, 1) + ' %',
    paths: { bars: barPath(shares, highest) },
  };
}

/** @type {[id: string, title: string, (state: any) => { value: string, unit?: string, note: string, paths: object }][]} */
const CARDS = [
  ['rate', 'Requests/s', rateCard],
  ['streams', 'Open streams', streamsCard],
  ['latency', 'First token, p50', firstTokenCard],
  ['failed', 'Failed requests', failedCard],
];

/** Draws the cards: a figure with its unit, a note below it, and the chart, whose text alternative repeats both. */
export function drawCards(state) {
  const cards = CARDS.map(([id, title, read]) => {
    const { value, unit = '', note, paths } = read(state);
    const chart = {
      id: id + '-chart',
      role: 'img',
      'aria-label': title + ' over 15 minutes: ' + value + ' ' + unit + ', ' + note,
      viewBox: '0 0 89 ' + CHART_HEIGHT,
      preserveAspectRatio: 'none',
    };
    const lines = Object.entries(paths).map(([name, d]) => h('path', { class: name, d }));
    return h(
      'div.box.card',
      h('dt', title),
      h('dd.value', { id }, value, unit && h('small.off', unit)),
      h('dd.note', { id: id + '-note' }, note),
      h('dd.chart', h('svg', chart, lines)),
    );
  });
  fill('cards', cards);
}
