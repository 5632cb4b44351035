/** The list of the last requests, with a filter and details. */

import { byId, drawFew, fill, h, isUnfolded, withIcon } from './dom.js';
import { formatNumber, formatTime, valueText } from './text.js';

const KINDS = ['All', 'Failed', 'Retried'];
const REFRESH_MS = 2000;

/** The listed requests, newest first. They stand still while a row is open. */
let listed = [];
/** Open requests' fields by their numbers. */
const open = new Map();
let kind = 'All';
/** Stands for the answer before the first question. @type {any} */
const NO_ANSWER = { question: '', requests: [] };
/** The gateway's answer to a question for a kind, words or all requests. */
let answer = NO_ANSWER;
let askedAtMs = -Infinity;

/** Describes providers in their order, each with its icon. */
export const chainText = (chain) =>
  chain.map(([icon, text], at) => [at > 0 && ' → ', icon ? withIcon(icon, text) : text]);

/** Describes a try: its outcome, its times and its cause. */
function tryItem(one) {
  const { cause, key, model, outcome, provider, status = '', url } = one;
  const icon = outcome === 'ok' ? 'good' : one.duration_ms === undefined ? 'off' : 'bad';
  const times = ['duration', 'connect', 'lookup']
    .filter((name) => one[name + '_ms'] !== undefined)
    .map((name) => name + ' ' + formatNumber(one[name + '_ms']) + ' ms');
  return h(
    'li',
    h('span', provider + '/' + model, key && h('small', ' key ' + key)),
    h('span', withIcon(icon, outcome), h('small', ' ' + status)),
    h('span', times.join(', ')),
    h('span.mono', cause, url && h('small', ' ' + url)),
  );
}

function details({ tries = [], ...fields }) {
  const facts = Object.entries(fields).map(([name, value]) =>
    h('div', h('dt', name), h('dd', valueText(value))),
  );
  const list = tries.length > 0 && h('ol.tries', { 'aria-label': 'Tries' }, tries.map(tryItem));
  return h('div.details', list, h('dl.facts', facts));
}

/** Lets a narrow cell break an outcome at its `_`. */
const breakable = (text) => text.split('_').map((part, at) => [at > 0 && ['_', h('wbr')], part]);

/** The heads of the cells, their classes, and their contents. @type {any[]} */
const CELLS = [
  ['Time', '', ({ time }) => formatTime(time)],
  [
    'Outcome',
    '',
    (one) => [withIcon(one.icon, breakable(one.outcome)), h('small', ' ' + (one.status ?? ''))],
  ],
  ['Model', 'name', ({ model }) => model],
  ['Tried', 'name tried', ({ tried }) => chainText(tried)],
  ['Client', 'name client', ({ client = '–' }) => client],
  ['First token', 'number token', ({ first_ms: ms }) => formatNumber(ms)],
  ['Duration, ms', 'number duration', ({ duration_ms: ms }) => formatNumber(ms)],
  ['Cause', 'cause', ({ cause }) => cause],
];
const heads = CELLS.map(([title, name]) => h('span', { class: name }, title));

/** Asks for a request's fields. A request that is gone meanwhile has none. */
async function openRow(number) {
  open.set(number, {});
  const found = await ask('number=' + number);
  if (found && open.has(number)) open.set(number, found);
  redraw();
}

/** Describes a request. Screen readers read a head before each cell. */
function describe(request) {
  const { number } = request;
  const ontoggle = ({ target }) => {
    if (!target.open) open.delete(number);
    else if (!open.has(number)) void openRow(number);
    redraw();
  };
  const cells = CELLS.map(([title, name, of]) =>
    h('span', { class: name }, h('span.hidden-text', title + ' '), h('span', of(request))),
  );
  const fields = open.get(number);
  const attributes = { ontoggle, open: fields && '' };
  const row = h('details', attributes, h('summary', cells), fields && details(fields));
  return h('li', { key: number }, row);
}

/** Each closed request's description, because a request never changes. */
const described = new WeakMap();

function describeOnce(request) {
  if (open.has(request.number)) return describe(request);
  const item = described.get(request) ?? describe(request);
  described.set(request, item);
  return item;
}

/** Lists the requests of a kind that have these words, and moves the focus to the list. */
export function showRequests(name, words) {
  kind = name;
  byId('filter').value = words;
  byId('requests-title').focus();
  byId('requests-title').scrollIntoView();
}

const redraw = () => document.dispatchEvent(new Event('input'));

/** Asks for requests. A lost connection, which gives undefined, is shown elsewhere. */
async function ask(question) {
  const response = await fetch('requests?' + question).catch(() => undefined);
  return response?.ok ? response.json() : undefined;
}

/** Asks for the requests of the question, unless it was done a moment ago or none is new. */
async function refresh(question, newest) {
  const isSame = answer.question === question;
  const isNew = answer.newest !== newest && performance.now() - askedAtMs >= REFRESH_MS;
  if (isSame && !isNew) return;
  askedAtMs = performance.now();
  answer = { question, newest, requests: isSame ? answer.requests : listed };
  const requests = await ask(question);
  if (requests && answer.question === question) answer = { question, newest, requests };
  redraw();
}

/** Draws the list: the feed's requests, or those of a kind, with words, or all. */
export function drawRequests({ requests, kept }) {
  const latest = Object.values(requests).toReversed();
  const words = byId('filter').value.trim();
  const isChosen = kind !== 'All' || words !== '';
  const isAsked = isChosen || isUnfolded('requests');
  const question = String(new URLSearchParams({ kind, words }));
  if (isAsked && (open.size === 0 || answer.question !== question)) {
    void refresh(question, latest[0]?.number);
  }
  const now = isAsked ? answer.requests : latest;
  // A hidden row is closed, because it would hold the list unseen.
  const isHidden = (number) => isAsked && !now.some((one) => one.number === number);
  for (const number of open.keys()) if (isHidden(number)) open.delete(number);
  if (open.size === 0) listed = now;
  const newer = open.size > 0 && latest[0].number - listed[0].number;
  const held = newer !== false && 'held while a row is open, ' + newer + ' new, ';
  const total = isChosen ? listed.length : Math.max(kept, listed.length);
  fill('requests-note', held, formatNumber(total) + ', newest first');
  const buttons = KINDS.map((name) => {
    const onclick = () => (kind = name);
    return h('button', { type: 'button', 'aria-pressed': String(name === kind), onclick }, name);
  });
  fill('kinds', buttons);
  byId('requests-empty').toggleAttribute('hidden', listed.length > 0);
  drawFew({ id: 'requests', total }, listed, (shown) => [
    h('p.heads', { 'aria-hidden': 'true' }, heads),
    h('ul', { id: 'requests' }, shown.map(describeOnce)),
  ]);
}

/** Forgets all requests, because another process counts its requests from 1 again. */
export function forgetRequests() {
  listed = [];
  answer = NO_ANSWER;
  open.clear();
}

/** Keeps the filter in the address, such as `#failed ci`, and focuses it at `/`. */
export function connectFilter() {
  const filter = byId('filter');
  const read = () => (filter.value = decodeURIComponent(location.hash.slice(1)));
  read();
  addEventListener('hashchange', () => [read(), redraw()]);
  filter.addEventListener('input', () => {
    history.replaceState(null, '', '#' + encodeURIComponent(filter.value));
  });
  addEventListener('keydown', (event) => {
    if (event.key !== '/' || event.target === filter) return;
    event.preventDefault();
    filter.focus();
  });
}
