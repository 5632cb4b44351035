/** The verdict, and the list with incidents and clients at their own limits. */

import { fill, h, isNarrow, shareBar } from './dom.js';
import { formatNumber, formatTime, say } from './text.js';
import { showRequests } from './requests.js';

/** A phone shows the titles of more. */
const MAX_UNFOLDED = 3;

/** Returns the lasting incidents, without clients at their own limits. */
export const lastingOf = ({ incidents }) => Object.values(incidents).filter((one) => !one.client);

/** Describes a row of affected requests: a bar, their number, and a button that lists them. */
function affectedRow({ name, shares, text, rest, clients, words }) {
  const onclick = () => showRequests('All', words);
  const named = { type: 'button', onclick, 'aria-label': 'requests of ' + words };
  const who = clients && h('span.note', ' · ' + clients);
  return h(
    'li',
    h('span.name', { title: name }, name),
    shareBar(['bad', shares[0]], ['warn', shares[1]]),
    h('span', h('strong', text), rest, who),
    h('button.link', named, h('span', 'requests '), '›'),
  );
}

/** Describes what lasts: a title, causes, what to do, and the affected requests. */
function lastingItem(one, isFolded) {
  const { action, affected, age, causes, icon, id, more, since, subject, title } = one;
  const effect = one.effect && ' · ' + say(one.effect);
  const head = [
    h('span', h('span.icon.' + icon, h('strong', subject)), ': ' + title),
    ' ',
    h('time', { datetime: since }, 'since ' + formatTime(since) + ', ' + age),
    effect,
  ];
  const rest = more > 0 && h('li.note', 'and ' + formatNumber(more) + ' more names');
  const body = [
    h('div', h('p.cause', causes.join(' · ')), h('p.action', action)),
    h('ul.affected', affected.map(affectedRow), rest),
  ];
  const folded = isFolded && h('details', h('summary', head), body);
  return h('li.incident.' + icon, { key: id }, folded || [h('p.title', head), body]);
}

/** Describes a line about what has ended, or several lines under one. */
function endedItem({ cause, id, lines, subject, text }) {
  const head = h('span.icon.off', 'Ended: ', h('strong', subject), text && ': ' + say(text));
  const folded = lines && h('details', h('summary', head), h('ul', lines.map(endedItem)));
  return h('li.ended', { key: id }, folded || [head, h('span.cause', cause)]);
}

/** Describes a sentence. A number at its begin stands out. */
function sentence(text) {
  const [strong = ''] = /^[\d,]+ (?:of [\d,]+|requests?)/.exec(text) ?? [];
  return h('span', strong && h('strong', strong), say(text.slice(strong.length)));
}

/** Returns the verdict; without a feed why there is none, and how old everything is. */
function verdictOf({ asOf, reason, silentMs, verdict }) {
  if (!asOf) return verdict;
  const ago = Math.ceil(silentMs / 1000) + ' s ago.';
  const note = 'Everything below is as of ' + asOf + ', ' + ago;
  return { icon: 'off', title: reason ? 'No feed' : 'Connection lost', notes: [reason, note] };
}

/** Draws the verdict, and below it incidents and clients at their limits. */
export function drawStatus(state) {
  const { ended, incidents, order } = state;
  const { icon, title, notes, list } = verdictOf(state);
  const onclick = () => showRequests(list, '');
  const button = list && h('button.link', { type: 'button', onclick }, 'Show the requests');
  const texts = notes.filter(Boolean).map(sentence);
  fill('verdict', h('p.verdict.' + icon, h('strong.icon.' + icon, say(title)), texts, button));
  const isFolded = isNarrow() && order.length > MAX_UNFOLDED;
  const items = order.map((id) => lastingItem(incidents[id], isFolded));
  fill('incidents', items, ended.map(endedItem));
}
