/**
 * Judges the last minute. Too many failed requests without an incident get figures, not a verdict.
 */

import {
  clip,
  fill,
  formatDuration,
  formatNumber,
  formatShare,
  formatTime,
  h,
  plural,
} from './dom.js';
import { iconOf, isAnswered, lastingOf, overLimitOf } from './incidents.js';
import { showRequests } from './requests.js';

/** "All well" needs a share of failed requests below this. */
export const FAILED_SHARE = 0.01;
const MAX_NAMED = 5;
/** From this number on, tries that clients gave up say more than a user who stops an answer. */
const MIN_GIVEN_UP = 3;

/** Returns the number of requests, without refusals by a client's own limits. */
export const servedOf = ({ requests = 0, limited = 0 }) => requests - limited;

const verdict = (kind, count = 0, total = 0, end = '') => ({ kind, count, total, end });

/**
 * Judges a minute's counts: `off` without requests, `good` if under a hundredth failed and some
 * requests were answered, else `warn` with the figures.
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

/** Returns each provider with tries that failed in the last minute, and their number. */
function failingOf({ providers }) {
  const failing = Object.entries(providers)
    .map(([id, { minute }]) => ({ id, failed: minute?.failed ?? 0 }))
    .filter(({ failed }) => failed > 0)
    .toSorted((a, b) => b.failed - a.failed)
    .map(({ id, failed }) => clip(id) + ' ' + formatNumber(failed));
  return failing.slice(0, MAX_NAMED).join(', ');
}

/** Returns whether a provider had tries in the last minute, and all failed. */
const hasOnlyFailed = ({ minute: { requests = 0, failed = 0 } = {} }) =>
  requests > 0 && failed === requests;

/** Returns whether clients gave up so many tries at a provider, and it answered none. */
const isGivenUp = ({ minute: { requests = 0, failed = 0, client_closed: left = 0 } = {} }) =>
  left >= MIN_GIVEN_UP && failed + left === requests;

/** Returns a sentence about the latest request. */
function quietSince({ now, requests }) {
  const times = Object.values(requests).map(({ time }) => time);
  if (times.length === 0) return 'None has ended since the start.';
  const last = times.reduce((latest, time) => (time > latest ? time : latest));
  const ago = formatDuration(Date.parse(now) - Date.parse(last), true);
  return 'The last one ended at ' + formatTime(last) + ', ' + ago + ' ago.';
}

/** Returns the last minute's sentence: `397 requests in the last minute, none failed.` */
function minuteText({ failed = 0, ...minute }) {
  const served = servedOf(minute);
  if (served === 0) return 'No request in the last minute.';
  if (failed === 0) return plural(served, 'request') + ' in the last minute, none failed.';
  const share = formatNumber(failed) + ' of ' + formatNumber(served);
  return share + ' in the last minute, ' + formatShare(failed, served) + '.';
}

/**
 * Returns the icon, the title and the sentences behind it. Absent sentences are false or empty.
 * @returns {any[]}
 */
export function verdictOf(state) {
  const { all, asOf, minute, silentMs } = state;
  if (asOf) {
    const ago = formatDuration(silentMs, true);
    const note = 'Everything below is as of ' + asOf + ', ' + ago + ' ago. Trying again every 2 s.';
    return ['off', 'Connection lost', note];
  }
  const judged = judge(minute);
  const lasting = lastingOf(state);
  const limited = overLimitOf(state).length;
  const counts = [
    lasting.length > 0 && plural(lasting.length, 'incident'),
    limited > 0 && plural(limited, 'client') + ' at its limit',
  ].filter(Boolean);
  const more = counts.length > 0 && counts.join(', ') + '.';
  const ofMinute = minuteText(minute);
  if (lasting.some((one) => iconOf(one) === 'bad')) return ['bad', 'Requests fail', ofMinute, more];
  const names = failingOf(state);
  const tooFew = names && lasting.length === 0 && 'Too few for an incident: ' + names + '.';
  if (judged.kind === 'warn') {
    const share = formatShare(judged.count, judged.total) + ' of the last minute.';
    return ['warn', figuresOf(judged, 'requests'), share, tooFew, more];
  }
  if (lasting.length > 0) {
    const hasOthers = lasting.some(isAnswered);
    const title = hasOthers ? 'Other providers answer' : plural(lasting.length, 'incident');
    return ['warn', title, ofMinute, hasOthers || limited > 0 ? more : ''];
  }
  if (judged.kind === 'off') {
    const former = { count: all.failed, total: servedOf(all), end: 'failed' };
    const note = all.failed > 0 && 'Of the last 15 minutes ' + figuresOf(former) + '.';
    return ['off', 'No traffic', 'No request in the last minute. ' + quietSince(state), note];
  }
  if (minute.failed > 0 && Object.values(state.providers).some(hasOnlyFailed)) {
    const failed = { count: minute.failed, total: servedOf(minute), end: 'failed' };
    return ['warn', figuresOf(failed, 'requests'), tooFew, more];
  }
  if (Object.values(state.providers).some(isGivenUp)) {
    const left = { count: minute.client_closed, total: servedOf(minute), end: 'left by clients' };
    return ['warn', figuresOf(left, 'requests'), more];
  }
  return ['good', 'All well', ofMinute, more];
}

/** Describes a sentence. A number at its begin stands out. */
function sentence(text) {
  const [strong = ''] = /^[\d,]+ (?:of [\d,]+|requests?)/.exec(text) ?? [];
  return h('span', strong && h('strong', strong), text.slice(strong.length));
}

/** Draws the verdict. Figures have a ring instead of a disc, and a button that lists requests. */
export function drawVerdict(state) {
  const [kind, title, ...sentences] = verdictOf(state);
  const isFigures = kind === 'warn' && / of /.test(title);
  const list = () => showRequests(title.endsWith('failed') ? 'Failed' : 'All', '');
  fill(
    'verdict',
    h(
      'p.verdict.' + kind + (isFigures ? '.ring' : ''),
      h('strong.icon.' + kind, title),
      sentences.filter(Boolean).map(sentence),
      isFigures && h('button.link', { type: 'button', onclick: list }, 'Show the requests'),
    ),
  );
}
