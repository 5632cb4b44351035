/**
 * What is wrong, and what has been, in a sentence for each incident: the facts of the log's lines.
 */

import { byId, clip, fill, formatDay, formatDuration, formatNumber, h } from './dom.js';

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
};

const wordsOf = ({ kind }) => (Object.hasOwn(WORDS, kind) ? WORDS[kind] : kind);
/** Whose fault, and what: `openai/gpt-5: errors`. */
const phraseOf = (one) =>
  clip([one.provider ?? 'gateway', one.model].filter(Boolean).join('/')) + ': ' + wordsOf(one);

/** Requests fail, or nothing can be asked: a provider whose work others do is a warning only. */
export function iconOf({ kind, hit = [], ended }) {
  if (ended) return 'off';
  const isBad = ['descriptors', 'memory'].includes(kind) || hit.some(({ failed }) => failed > 0);
  return isBad ? 'bad' : 'warn';
}

const inBrackets = (...parts) => {
  const told = parts.filter(Boolean).join(', ');
  return told && ' (' + told + ')';
};

/** `good` is told of a provider's that lasts. */
function describeHit({ name, failed, good, answered, by, clients }) {
  const total = good !== undefined && ' of ' + formatNumber(failed + good + answered);
  const own = failed > 0 && [formatNumber(failed), total, ' failed'].filter(Boolean).join('');
  const others = answered > 0 && formatNumber(answered) + ' answered by ' + clip(by);
  const told = [own, others].filter(Boolean).join(', ');
  return clip(name) + ': ' + told + inBrackets(clients && clip(clients)) + '.';
}

/** Returns the sentences of an incident; `now` is the feed's present. */
export function sentencesOf(incident, now) {
  const { cause, ended, hit = [], key, more, since, until } = incident;
  const from = formatDay(since, now);
  // As long as the times that are shown are apart.
  const secondOf = (time) => Math.floor(Date.parse(time) / 1000);
  const lasted = ended && formatDuration(1000 * (secondOf(ended) - secondOf(since)));
  const when = ended
    ? ` from ${from} to ${formatDay(ended, now)}, for ${lasted}`
    : ' since ' + from;
  const wait = !ended && until > now && 'it asks us to wait until ' + formatDay(until, now);
  const why = inBrackets(key && 'key ' + key, cause && clip(cause), wait);
  const others = more > 0 && 'And ' + more + ' more names.';
  return [phraseOf(incident) + when + why + '.', ...hit.map(describeHit), others].filter(Boolean);
}

const sumOfHits = ({ hit = [] }) =>
  hit.reduce((sum, { failed, answered }) => sum + failed + answered, 0);

/** Returns those that last, the worst first. */
export const lastingOf = ({ incidents }) =>
  incidents
    .filter(({ ended }) => !ended)
    .toSorted((a, b) => iconOf(a).localeCompare(iconOf(b)) || sumOfHits(b) - sumOfHits(a));

/** Returns the icons and the words of those that last at a provider. */
export const statesOf = (id, state) =>
  lastingOf(state)
    .filter(({ provider }) => provider === id)
    .map((one) => [iconOf(one), clip([one.model, wordsOf(one)].filter(Boolean).join(': '))]);

/** Returns a phrase for each that lasts: what a screen reader is told when they change. */
export const phrasesOf = (state) => lastingOf(state).map(phraseOf);

/** Describes a client that its own limit has refused in the last minute: it is no incident. */
function overLimitItem([name, { overLimit }], now) {
  const { limit, limited, requests, since } = overLimit;
  const share = formatNumber(limited) + ' of ' + formatNumber(requests);
  const first = clip(name) + ': at its own limit since ' + formatDay(since, now);
  const rest = share + ' requests of the last minute refused, and no provider asked.';
  return h('li', h('strong.icon.warn', first + inBrackets(clip(limit)) + '.'), ' ', rest);
}

/** Returns the clients, by their names, that their own limits have refused in the last minute. */
export const overLimitOf = ({ clients }) =>
  Object.entries(clients)
    .filter(([, { overLimit }]) => overLimit)
    .toSorted(([, a], [, b]) => b.overLimit.limited - a.overLimit.limited);

/** Draws them, and below them the clients at their own limits. */
export function drawIncidents(state) {
  const { now, incidents } = state;
  const item = (one) => {
    const [first, ...rest] = sentencesOf(one, now);
    return h('li', h('strong.icon.' + iconOf(one), first), ' ', rest.join(' '));
  };
  const ended = incidents.filter((one) => one.ended);
  const overLimit = overLimitOf(state).map((one) => overLimitItem(one, now));
  fill('incidents', lastingOf(state).map(item), overLimit);
  fill('ended', ended.map(item));
  byId('over').toggleAttribute('hidden', ended.length === 0);
}
