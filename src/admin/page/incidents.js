/** What is wrong, and what has been, in a sentence for each incident: the facts of the log's lines. */

import { byId, fill, h, withIcon } from './dom.js';
import { clip, formatDay, formatDuration, formatNumber } from './format.js';

/** What is so, and what was so. The sentence begins with the provider or its model, if there is one. */
const WORDS = {
  unreachable: ['cannot be reached', 'could not be reached'],
  key_refused: ['refuses the key', 'refused the key'],
  rate_limited: ['limits our requests', 'limited our requests'],
  errors: ['answers with errors', 'answered with errors'],
  timeout: ['does not begin its answers in time', 'did not begin its answers in time'],
  stall: ['stalls in its streams', 'stalled in its streams'],
  cut: ['breaks off its answers', 'broke off its answers'],
  nonsense: ['answers nonsense', 'answered nonsense'],
  slow: ['is slow', 'was slow'],
  model_list: ['does not list its models', 'did not list its models'],
  descriptors: ['The gateway has no descriptors left', 'The gateway had no descriptors left'],
  memory: ['The gateway is short of memory', 'The gateway was short of memory'],
  log_lines: ['The gateway loses lines of its log', 'The gateway lost lines of its log'],
  store: ['The store of rate limits is away', 'The store of rate limits was away'],
  reload: ['The reload failed, former settings are in use', 'The reload failed'],
};

const nameOf = ({ provider, model }) => clip([provider, model].filter(Boolean).join('/'));
const wordsOf = ({ kind, ended }) => Object(WORDS[kind])[ended ? 1 : 0] ?? kind;

/** Requests fail, or nothing can be asked: a provider whose work others do is a warning only. */
export function iconOf({ kind, hit = [], ended }) {
  if (ended) return 'good';
  const isBad = ['descriptors', 'memory'].includes(kind) || hit.some(({ failed }) => failed > 0);
  return isBad ? 'bad' : 'warn';
}

function describeHit({ name, failed, good, answered, by, clients }, isOver) {
  const total = failed + good + answered;
  const count = failed === total ? '' : ' of ' + formatNumber(total);
  const every = isOver ? 'every request failed' : 'every request fails';
  const some = formatNumber(failed) + count + (isOver ? ' failed' : ' fail');
  const fails = failed === total ? every : some;
  const who = [clients && clip(clients), failed === total && formatNumber(failed)]
    .filter(Boolean)
    .join(', ');
  const others = 'answered by ' + clip(by) + ' (' + formatNumber(answered) + ')';
  const told = [failed > 0 && fails + (who && ' (' + who + ')'), answered > 0 && others];
  return clip(name) + ': ' + told.filter(Boolean).join(', ') + '.';
}

/** Returns the sentences of an incident; `now` is the feed's present. */
export function sentencesOf(incident, now) {
  const { cause, ended, hit = [], key, more, since, until } = incident;
  const from = formatDay(since, now);
  const lasted = ended && formatDuration(Date.parse(ended) - Date.parse(since));
  const when = ended
    ? ` from ${from} to ${formatDay(ended, now)}, for ${lasted}`
    : ' since ' + from;
  const left = !ended && until > now && formatDuration(Date.parse(until) - Date.parse(now));
  const details = [key && 'key ' + key, cause && clip(cause), left && left + ' left'];
  const why = details.filter(Boolean).join(', ');
  const first = [nameOf(incident), wordsOf(incident)].filter(Boolean).join(' ') + when;
  const hits = hit.map((one) => describeHit(one, Boolean(ended)));
  const others = more > 0 && 'And ' + more + ' more names.';
  return [first + (why && ' (' + why + ')') + '.', ...hits, others].filter(Boolean);
}

const sumOfHits = ({ hit = [] }) =>
  hit.reduce((sum, { failed, answered }) => sum + failed + answered, 0);

/** Returns those that last, the worst first. */
function lastingOf({ incidents }) {
  const lasting = incidents.filter(({ ended }) => !ended);
  return lasting.toSorted(
    (a, b) => iconOf(a).localeCompare(iconOf(b)) || sumOfHits(b) - sumOfHits(a),
  );
}

/** Returns what a provider's row says of those that last: its own and its models'. Without a list it may work well. */
export function stateOf(id, { incidents }) {
  return incidents
    .filter(({ kind, provider, ended }) => provider === id && !ended && kind !== 'model_list')
    .map((one) => ({
      icon: iconOf(one),
      words: [one.model, wordsOf(one)].filter(Boolean).join(' '),
    }));
}

/** Returns a phrase for each that lasts: what a screen reader is told when they change. */
export const phrasesOf = (state) =>
  lastingOf(state).map((one) => [nameOf(one), wordsOf(one)].filter(Boolean).join(' '));

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
