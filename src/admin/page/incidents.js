/** The list with incidents and clients at their own limits. */

import {
  clip,
  fill,
  formatDay,
  formatDuration,
  formatNumber,
  formatTime,
  h,
  isNarrow,
  shareBar,
  timeText,
} from './dom.js';
import { showRequests } from './requests.js';

const WORDS = {
  unreachable: 'no connection',
  key_refused: 'our key refused',
  rate_limited: 'our requests limited',
  errors: 'errors',
  timeout: 'no answer in time',
  stall: 'streams fall silent',
  cut: 'answers break off',
  nonsense: 'unusable answers',
  slow: 'slow',
  model_list: 'no list of models',
  descriptors: 'no descriptors left',
  memory: 'short of memory',
  log_lines: 'log lines lost',
  store: 'store of rate limits away',
  reload: 'new settings refused, former ones in use',
  clock: 'clock set, times before are of the old clock',
};
/** A phone shows more incidents only by their titles. */
const MAX_UNFOLDED = 3;

const kindOf = ({ kind }) => (Object.hasOwn(WORDS, kind) ? WORDS[kind] : kind);
/** Returns the failing models; none if all the provider's models fail. */
function modelsOf({ model, models = [], all_models: isAll, more_models: more = 0 }) {
  if (isAll) return [];
  const names = model === undefined ? models.map((one) => one.model) : [model];
  return more > 0 ? [...names, formatNumber(more) + ' more'] : names;
}

/** Returns an incident's subject: `acme`, `acme/small`, `acme (small, big)` or `gateway`. */
export function subjectOf(incident) {
  const { provider = 'gateway' } = incident;
  const models = modelsOf(incident);
  if (models.length < 2) return clip([provider, ...models].join('/'));
  return clip(provider + ' (' + models.join(', ') + ')');
}

const sumOf = ({ affected = [] }, name) => affected.reduce((sum, one) => sum + one[name], 0);

/** Returns whether other providers answer, and no request has failed. */
export const isAnswered = (incident) =>
  sumOf(incident, 'failed') === 0 && sumOf(incident, 'answered') > 0;

/** Returns the kind and its effect in words: `errors, other providers answer`. */
export function wordsOf(incident, now) {
  const { ended, kind, quiet_since: quietSince, until } = incident;
  const effect = !ended && kind === 'store' && 'each gateway limits by itself';
  const wait = !ended && until > now && 'until ' + formatDay(until, now);
  const others = !ended && isAnswered(incident) && 'other providers answer';
  const quiet = quietSince && 'no failure since ' + formatDay(quietSince, now);
  return [kindOf(incident), effect, wait, others, quiet].filter(Boolean).join(', ');
}

/** Returns an incident's icon: `bad` while requests fail, `warn` while others answer them. */
export function iconOf(incident) {
  const { ended, kind, quiet_since: quietSince } = incident;
  if (ended) return 'off';
  const isFailing = sumOf(incident, 'failed') > 0 && !quietSince;
  return isFailing || ['descriptors', 'memory'].includes(kind) ? 'bad' : 'warn';
}

/** Returns the causes, each once. A model's name or a state's words stand before its cause. */
export function causesOf({ key, cause, models = [], states = [] }) {
  const parts = [
    [key && 'key ' + key, cause],
    ...models.filter((one) => one.cause !== cause).map((one) => [one.model, one.cause]),
    ...states.map((one) => [kindOf(one), one.cause]),
  ];
  return parts.map((part) => part.filter(Boolean).join(': ')).filter(Boolean);
}

/** Returns how the requests for a model ended, in words. An ended incident has no `good`. */
export function affectedText({ failed, good, answered, by }) {
  const total = good === undefined ? '' : ' of ' + formatNumber(failed + good + answered);
  const others = answered > 0 && 'answered by ' + clip(by);
  if (failed === 0) return [formatNumber(answered) + total, ' ' + others];
  const rest = others && ', ' + formatNumber(answered) + ' ' + others;
  return [formatNumber(failed) + total + ' failed', rest];
}

/** Returns the lasting incidents, the worst first. */
export const lastingOf = ({ incidents }) =>
  incidents
    .filter(({ ended }) => !ended)
    .toSorted(
      (a, b) =>
        iconOf(a).localeCompare(iconOf(b)) ||
        sumOf(b, 'failed') + sumOf(b, 'answered') - sumOf(a, 'failed') - sumOf(a, 'answered'),
    );

/** Returns the worst incident's icon, among those that affect a model or a client. */
export function iconOfAffected(state, model, client) {
  const isAffected = ({ affected = [] }) =>
    affected.some(
      ({ name, clients = '' }) => name === model || clients.split(', ').includes(client),
    );
  const worst = lastingOf(state).find(isAffected);
  return worst && iconOf(worst);
}

/** Returns icon and words for each of a provider's lasting incidents, and the cause of `slow`. */
export const statesOf = (id, state) =>
  lastingOf(state)
    .filter(({ provider }) => provider === id)
    .map((one) => [
      iconOf(one),
      clip([modelsOf(one).join(', '), kindOf(one)].filter(Boolean).join(': ')),
      one.kind === 'slow' && one.cause,
    ]);

/** Returns an open circuit in words: `streams of small kept away until 10:15:49`. */
export function awayText({ model, stream, until }) {
  const kind = stream ? 'streams of ' : 'complete answers of ';
  return (model ? kind + clip(model) + ' ' : '') + 'kept away until ' + formatTime(until);
}

/** Returns a lasting incident's title. Screen readers read out changes. */
export const phraseOf = (one) => subjectOf(one) + ': ' + kindOf(one);

/** Returns whether the incident goes on in `next`, perhaps with another kind or other models. */
export const goesOn = ({ provider, kind }, next) =>
  next.some((one) => one.provider === provider && (provider || one.kind === kind));

/** Describes a row of affected requests: a bar, their number, and a button that lists them. */
function affectedRow({ name, bar, text, clients, words }) {
  const onclick = () => showRequests('All', words);
  const named = { type: 'button', onclick, 'aria-label': 'requests of ' + clip(words) };
  return h(
    'li',
    h('span.name', { title: name }, clip(name)),
    bar,
    h('span', h('strong', text[0]), text[1], clients && h('span.note', ' · ' + clip(clients))),
    h('button.link', named, h('span', 'requests '), '›'),
  );
}

function affectedName(affected, { provider = '' }) {
  const { name, failed, good = 0, answered, clients } = affected;
  const all = failed + good + answered;
  const bar = shareBar(['bad', failed / all], ['warn', answered / all]);
  // Without a body that was read, the model is unknown.
  const words = [name.startsWith('(') ? 'failed' : name, provider].join(' ').trim();
  return affectedRow({ name, bar, text: affectedText(affected), clients, words });
}

/** Describes an incident, or a client at its limit: a title, causes, and the affected requests. */
function item({ key, kind, subject, words, since, now, causes, rows, isFolded }) {
  const title = [
    h('span', h('span.icon.' + kind, h('strong', subject)), ': ' + words),
    ' ',
    timeText(since, 'for ' + formatDuration(Date.parse(now) - Date.parse(since), true)),
  ];
  const texts = causes.map((text) => h('span', clip(text)));
  const more = [texts.length > 0 && h('p.cause', texts), h('ul.affected', rows)];
  const head = isFolded ? undefined : h('p.title', title);
  const folded = isFolded && h('details', h('summary', title), more);
  return h('li.incident.' + kind, { key }, folded || [head, more]);
}

function incidentItem(one, now, isFolded) {
  const { affected = [], more = 0, since } = one;
  const rest = more > 0 && h('li.note', 'and ' + formatNumber(more) + ' more names');
  const rows = [...affected.map((each) => affectedName(each, one)), rest];
  const title = { subject: subjectOf(one), words: wordsOf(one, now), since, now };
  const key = [since, one.provider, one.model, one.kind].join(' ');
  return item({ key, kind: iconOf(one), ...title, causes: causesOf(one), rows, isFolded });
}

/** Describes a client with refusals by its own limit in the last minute, which is no incident. */
function overLimitItem([name, { overLimit }], now, isFolded) {
  const { limit, limited, requests, since } = overLimit;
  const share = formatNumber(limited) + ' of ' + formatNumber(requests) + ' refused';
  const text = [share, ' by the gateway, no provider asked'];
  const bar = shareBar(['warn', limited / requests]);
  const words = name + ' rate_limited';
  const rows = [affectedRow({ name: 'last minute', bar, text, clients: '', words })];
  const title = { subject: clip(name), words: 'at its own limit', since, now };
  return item({ key: name, kind: 'warn', ...title, causes: [limit], rows, isFolded });
}

/** Returns the fields for an ended incident's line. */
function endedIncident(one) {
  const failed = sumOf(one, 'failed');
  const count = failed > 0 && formatNumber(failed) + ' failed';
  return { ...one, subject: subjectOf(one), words: wordsOf(one), count, cause: causesOf(one)[0] };
}

/** Returns the fields for a line about a client's former refusals. */
function endedRefusals([name, { overLimit }]) {
  const { limit: cause, refused } = overLimit;
  const count = formatNumber(refused) + ' refused';
  return { ...overLimit, subject: clip(name), words: 'at its own limit', count, cause };
}

/** Describes an ended incident or a client's former refusals in one line. */
function endedItem({ since, ended, subject, words, count, cause = '' }, now) {
  // In whole seconds, because the two times are shown in whole seconds.
  const secondOf = (time) => Math.floor(Date.parse(time) / 1000);
  const seconds = secondOf(ended) - secondOf(since);
  const times =
    seconds === 0
      ? formatDay(since, now)
      : [
          formatDay(since, now),
          '–',
          formatDay(ended, now),
          '·',
          formatDuration(1000 * seconds),
        ].join(' ');
  return h(
    'li.ended',
    { key: [since, ended, subject].join(' ') },
    h('span.icon.off', 'Ended: ', h('strong', subject), ': ' + words),
    h('span', times + (count ? ' · ' + count : '')),
    h('span.cause', clip(cause)),
  );
}

const refusedOf = ({ clients }) => Object.entries(clients).filter(([, one]) => one.overLimit);

/** Returns the clients with refusals by their own limits in the last minute, with their names. */
export const overLimitOf = (state) =>
  refusedOf(state)
    .filter(([, { overLimit }]) => !overLimit.ended)
    .toSorted(([, a], [, b]) => b.overLimit.limited - a.overLimit.limited);

/** Returns the lines for ended incidents and former refusals, the latest first. */
export function endedOf(state) {
  const refused = refusedOf(state).filter(([, { overLimit }]) => overLimit.ended);
  const ended = state.incidents.filter((one) => one.ended);
  return [...ended.map(endedIncident), ...refused.map(endedRefusals)].toSorted((a, b) =>
    b.ended.localeCompare(a.ended),
  );
}

/** Draws lasting incidents, clients at their own limits, and ended incidents. */
export function drawIncidents(state) {
  const { now } = state;
  const [lasting, limited] = [lastingOf(state), overLimitOf(state)];
  const isFolded = isNarrow() && lasting.length + limited.length > MAX_UNFOLDED;
  fill(
    'incidents',
    lasting.map((one) => incidentItem(one, now, isFolded)),
    limited.map((one) => overLimitItem(one, now, isFolded)),
    endedOf(state).map((one) => endedItem(one, now)),
  );
}
