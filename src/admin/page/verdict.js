/**
 * What the last minute was like. Without an incident, failed requests get figures and no verdict.
 */

import { clip, fill, formatNumber, h } from './dom.js';
import { iconOf, lastingOf, overLimitOf } from './incidents.js';

/** All is well below this share of failed requests. */
const FAILED_SHARE = 0.01;
const MAX_NAMED = 5;

const plural = (count, noun) => formatNumber(count) + ' ' + noun + (count === 1 ? '' : 's');

/** Returns the requests that no limit of their own clients has refused. */
export const servedOf = ({ requests = 0, limited = 0 }) => requests - limited;

const verdict = (kind, count = 0, total = 0, end = '') => ({ kind, count, total, end });

/**
 * Judges the counts of a minute: `off` without requests, `good` if under a hundredth has failed and
 * something was answered, else `warn` with the figures that say why.
 */
export function judge(counts) {
  const { requests = 0, failed = 0, rejected = 0, limited = 0, client_closed: left = 0 } = counts;
  const served = servedOf(counts);
  if (requests === 0) return verdict('off');
  if (failed > 0 && failed >= FAILED_SHARE * served) {
    return verdict('warn', failed, served, 'failed');
  }
  if (failed + rejected + left < served) return verdict('good');
  const most = Math.max(rejected, limited, left);
  const end = most === rejected ? 'rejected' : most === limited ? 'refused' : 'left by clients';
  return verdict('warn', most, requests, end);
}

/** Returns figures as text: `7 of 389 requests failed`. */
export const figuresOf = ({ count, total, end }, noun = '') =>
  [formatNumber(count), 'of', formatNumber(total), noun, end].filter(Boolean).join(' ');

/** Returns the providers whose tries failed in the last minute, with their number. */
function failingOf({ providers }) {
  const failing = Object.entries(providers)
    .map(([id, { minute }]) => ({ id, failed: minute?.failed ?? 0 }))
    .filter(({ failed }) => failed > 0)
    .toSorted((a, b) => b.failed - a.failed)
    .map(({ id, failed }) => clip(id) + ' ' + formatNumber(failed));
  return failing.length > 0 && 'Failed tries: ' + failing.slice(0, MAX_NAMED).join(', ') + '.';
}

/** Returns whether a provider was asked in the last minute, and each try failed. */
const hasOnlyFailed = ({ minute: { requests = 0, failed = 0 } = {} }) =>
  requests > 0 && failed === requests;

/** Returns the icon, the title and the sentences behind it, some of which may be absent. */
export function verdictOf(state) {
  const { all, asOf, minute } = state;
  if (asOf) {
    const note = 'Everything below is as of ' + asOf + '. Trying again every 2 s.';
    return ['off', 'Connection lost', note];
  }
  const served = servedOf(minute);
  const judged = judge(minute);
  const lasting = lastingOf(state);
  const incidents = lasting.length > 0 && plural(lasting.length, 'incident') + '.';
  const limited = overLimitOf(state).length;
  const clients = limited > 0 && plural(limited, 'client') + ' refused by a limit of its own.';
  const ofMinute =
    formatNumber(minute.failed ?? 0) +
    ' of ' +
    plural(served, 'request') +
    ' of the last minute failed.';
  if (lasting.some((one) => iconOf(one) === 'bad')) {
    return ['bad', 'Requests fail', ofMinute, incidents, clients];
  }
  if (judged.kind === 'warn') {
    const percent = formatNumber((100 * judged.count) / judged.total) + ' % of the last minute.';
    return ['warn', figuresOf(judged, 'requests'), percent, failingOf(state), incidents, clients];
  }
  if (lasting.length > 0) {
    const isAnswered = lasting.some(({ hit = [] }) => hit.some(({ answered }) => answered > 0));
    const title = isAnswered ? 'Other providers answer' : plural(lasting.length, 'incident');
    return ['warn', title, ofMinute, isAnswered && incidents, clients];
  }
  if (judged.kind === 'off') {
    const former = { count: all.failed, total: servedOf(all), end: 'failed' };
    const note = all.failed > 0 && 'Of the last 15 minutes ' + figuresOf(former) + '.';
    return ['off', 'No traffic', 'No request has ended in the last minute.', note];
  }
  if (minute.failed > 0 && Object.values(state.providers).some(hasOnlyFailed)) {
    const failed = { count: minute.failed, total: served, end: 'failed' };
    return ['warn', figuresOf(failed, 'requests'), failingOf(state), clients];
  }
  return ['good', 'All well', ofMinute, clients];
}

/** Draws the verdict. */
export function drawVerdict(state) {
  const [kind, title, ...sentences] = verdictOf(state);
  const text = sentences.filter(Boolean).join(' ');
  fill(
    'verdict',
    h('p.box.verdict.' + kind, h('strong.icon.' + kind, title), ' ', h('span', text)),
  );
}
