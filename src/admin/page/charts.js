/** The cards with the figures and charts of the last 15 minutes. */

import { byId, formatNumber, isNew, make, setText } from './dom.js';

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
  return { first: line, area: line + 'V' + CHART_HEIGHT + 'H0Z' };
}

function barPath(values, max) {
  const bars = values.map((value, x) =>
    value > 0 ? 'M' + x + ' ' + CHART_HEIGHT + 'V' + heightOf(value, max) : '',
  );
  return bars.join('');
}

/** Draws a figure with its unit, the note below it, both as the chart's text alternative, and the paths by their classes. */
function drawCard(id, { value, unit = '', note, paths }) {
  const place = byId(id);
  if (isNew(place, [value, unit])) {
    place.replaceChildren(value, ...(unit ? [make('small', 'off', unit)] : []));
  }
  setText(id + '-note', note);
  const name = place.previousElementSibling.textContent;
  const alternative = name + ' over 15 minutes: ' + value + ' ' + unit + ', ' + note;
  const chart = byId(id + '-chart');
  if (isNew(chart, alternative)) chart.setAttribute('aria-label', alternative);
  for (const [className, path] of Object.entries(paths)) {
    const node = chart.querySelector('.' + className);
    if (isNew(node, path)) node.setAttribute('d', path);
  }
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

export function drawCards({ now, history, openStreams, inFlight }) {
  // The newest step has not ended: its rate would always seem to fall.
  const rates = history.requests.slice(0, -1).map((count) => count / history.stepSeconds);
  const peakRate = Math.max(...rates);
  drawCard('rate', {
    value: formatRate(latestRate(history, now)),
    note: 'last minute · highest ' + formatRate(peakRate),
    paths: areaPaths(rates, Math.max(peakRate, 0.1)),
  });

  const peakStreams = Math.max(openStreams, ...history.openStreams);
  drawCard('streams', {
    value: formatNumber(openStreams),
    note: formatNumber(inFlight) + ' in flight · highest ' + formatNumber(peakStreams),
    paths: areaPaths(history.openStreams, Math.max(peakStreams, 1)),
  });

  const [p50, p95] = [lastOf(history.firstTokenP50Ms), lastOf(history.firstTokenP95Ms)];
  const slowest = Math.max(1, ...history.firstTokenP95Ms);
  const isNone = p50 === null;
  drawCard('latency', {
    value: isNone ? '–' : formatNumber(p50),
    unit: isNone ? '' : 'ms',
    note: isNone
      ? 'none yet'
      : 'p95 ' + formatNumber(p95) + ' ms (dashed) · highest ' + formatNumber(slowest),
    paths: {
      first: linePath(history.firstTokenP50Ms, slowest),
      second: linePath(history.firstTokenP95Ms, slowest),
    },
  });

  const [total, failed] = [sum(history.requests), sum(history.failed)];
  const shares = history.failed.map((count, step) => count / Math.max(1, history.requests[step]));
  const highest = Math.max(...shares);
  const counts = formatNumber(failed) + ' of ' + formatNumber(total);
  drawCard('failed', {
    value: formatShare(failed, total),
    unit: '%',
    note: counts + ' · highest ' + formatShare(highest, 1) + ' %',
    paths: { bars: barPath(shares, highest) },
  });
}
