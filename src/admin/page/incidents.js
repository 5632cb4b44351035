/** What is wrong, and what has been, in a sentence for each incident: the facts of the log's lines. */

import { byId, clip, fill, formatDay, formatDuration, formatNumber, h, withIcon } from './dom.js';

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
function iconOf({ kind, hit = [], ended }) {
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
const lastingOf = ({ incidents }) =>
  incidents
    .filter(({ ended }) => !ended)
    .toSorted((a, b) => iconOf(a).localeCompare(iconOf(b)) || sumOfHits(b) - sumOfHits(a));

/** Describes those that last at a provider. */
export const statesOf = (id, state) =>
  lastingOf(state)
    .filter(({ provider }) => provider === id)
    .map((one) =>
      withIcon(iconOf(one), clip([one.model, wordsOf(one)].filter(Boolean).join(': '))),
    );

/** Returns a phrase for each that lasts: what a screen reader is told when they change. */
export const phrasesOf = (state) => lastingOf(state).map(phraseOf);

/** Draws them, and counts those that last in the title. */
export function drawIncidents(state) {
  const { now, incidents, settings } = state;
  const item = (one) => {
    const [first, ...rest] = sentencesOf(one, now);
    return h('li', h('strong.icon.' + iconOf(one), first), ' ', rest.join(' '));
  };
  const lasting = lastingOf(state);
  const ended = incidents.filter((one) => one.ended);
  const well = lasting.length === 0 && h('li', withIcon('good', 'Nothing is wrong now.'));
  fill('incidents', well, lasting.map(item));
  fill('ended', ended.map(item));
  byId('over').toggleAttribute('hidden', ended.length === 0);
  const count = lasting.length > 0 ? '(' + lasting.length + ') ' : '';
  const title = count + 'inference-gateway ' + settings.host;
  if (document.title !== title) document.title = title;
}
