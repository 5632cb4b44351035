/** What is wrong, and what has been, in a sentence for each incident: the facts of the log's lines. */

import { byId, fill, h, withIcon } from './dom.js';
import { clip, formatDay, formatDuration, formatNumber } from './format.js';

/** What is so, and what was so. The sentence begins with the provider or its model, if there is one. */
const WORDS = {
  unreachable: ['cannot be reached', 'could not be reached'],
  key_refused: ['refuses our key', 'refused our key'],
  rate_limited: ['limits our requests', 'limited our requests'],
  errors: ['answers with errors', 'answered with errors'],
  timeout: ['does not answer in time', 'did not answer in time'],
  stall: ['stops in the middle of its streams', 'stopped in the middle of its streams'],
  cut: ['breaks off its answers', 'broke off its answers'],
  nonsense: ['sends answers that are no completions', 'sent answers that were no completions'],
  slow: ['is slow', 'was slow'],
  model_list: ['does not list its models', 'did not list its models'],
  descriptors: ['The gateway has no descriptors left', 'The gateway had no descriptors left'],
  memory: ['The gateway is short of memory', 'The gateway was short of memory'],
  log_lines: ['The gateway loses lines of its log', 'The gateway lost lines of its log'],
  store: ['The store of rate limits is away', 'The store of rate limits was away'],
  reload: ['The gateway refuses its new settings', 'The gateway refused new settings'],
};

const nameOf = ({ provider, model }) => clip([provider, model].filter(Boolean).join('/'));
const wordsOf = ({ kind, ended }) => Object(WORDS[kind])[ended ? 1 : 0] ?? kind;

/** Requests fail, or nothing can be asked: a provider whose work others do is a warning only. */
export function iconOf({ kind, hit = [], ended }) {
  if (ended) return 'off';
  const isBad = ['descriptors', 'memory'].includes(kind) || hit.some(({ failed }) => failed > 0);
  return isBad ? 'bad' : 'warn';
}

const countOf = (requests) => formatNumber(requests) + (requests === 1 ? ' request' : ' requests');
const inBrackets = (...parts) => {
  const told = parts.filter(Boolean).join(', ');
  return told && ' (' + told + ')';
};

function describeHit({ name, failed, good, answered, by, clients }, { ended, provider }) {
  const who = clients && clip(clients);
  if (!provider) return clip(name) + ': ' + countOf(failed) + ' failed' + inBrackets(who) + '.';
  const total = failed + good + answered;
  const count = failed === total ? '' : ' of ' + formatNumber(total);
  const every = ended ? 'every request failed' : 'every request fails';
  const some = formatNumber(failed) + count + (ended ? ' failed' : ' fail');
  const fails =
    failed === total ? every + inBrackets(who, countOf(failed)) : some + inBrackets(who);
  const others = 'answered by ' + clip(by) + inBrackets(failed === 0 && who, countOf(answered));
  const told = [failed > 0 && fails, answered > 0 && others];
  return clip(name) + ': ' + told.filter(Boolean).join(', ') + '.';
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
  const first = [nameOf(incident), wordsOf(incident)].filter(Boolean).join(' ') + when;
  const hits = hit.map((one) => describeHit(one, incident));
  const former =
    incident.kind === 'reload' && 'The former ' + (ended ? 'were' : 'are') + ' in use.';
  const others = more > 0 && 'And ' + more + ' more names.';
  return [first + why + '.', former, ...hits, others].filter(Boolean);
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
      words: [one.model && nameOf(one), wordsOf(one)].filter(Boolean).join(' '),
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
