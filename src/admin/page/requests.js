/** The last requests, their filters and details. */

import {
  addTable,
  byId,
  clip,
  formatTime,
  isNew,
  make,
  makeTable,
  setHidden,
  setText,
  visible,
} from './dom.js';
import { valueText } from './overview.js';

const MAX_REQUESTS = 200;
const OUTCOME_ICONS = { ok: 'good', client_closed: 'skip', refused: 'warn', rate_limited: 'bad' };
const FAILED = ['upstream_error', 'timeout', 'rate_limited', 'internal_error'];

/** Newest first. While the list is paused, the page shows the requests of that moment. */
let requests = [];
let shown = [];
let newWhilePaused = 0;
/** Each request's row, and the row of its details if it is open. */
const rowOf = new WeakMap();
const openRows = new Map();
let rowsMade = 0;

const outcomeColumn = [
  'Outcome',
  '',
  ({ outcome }) => ({ icon: OUTCOME_ICONS[outcome] ?? 'bad', text: outcome, lines: [] }),
];
const statusColumn = ['Status', 'number', ({ status }) => status];
const durationColumn = ['Duration, ms', 'number', ({ duration_ms }) => duration_ms];
const requestsTable = addTable('requests', 'The last 200 requests, newest first', [
  // A button.
  ['Time', '', () => ''],
  outcomeColumn,
  statusColumn,
  ['Model', '', ({ model }) => model],
  ['Provider', '', providerPath],
  ['Client', 'client', ({ client }) => client],
  ['First byte, ms', 'number', ({ first_byte_ms }) => first_byte_ms],
  durationColumn,
  ['Input tokens', 'number', ({ prompt_tokens }) => prompt_tokens],
  ['Output tokens', 'number', ({ completion_tokens }) => completion_tokens],
]);
const triesColumns = [
  ['Try', 'number', ({ number }) => number],
  ['Provider', '', ({ provider }) => provider],
  ['Key', 'number', ({ key }) => key],
  ['Model', '', ({ model }) => model],
  outcomeColumn,
  statusColumn,
  durationColumn,
  ['Cause', 'wrap', ({ cause }) => cause],
  ['URL', 'wrap', ({ url }) => url],
];

const isPaused = () => openRows.size > 0 || byId('pause').getAttribute('aria-pressed') === 'true';

export function addRequests(added) {
  requests = [...added.toReversed(), ...requests].slice(0, MAX_REQUESTS);
  newWhilePaused += added.length;
}

/** After a reconnect the feed repeats the last requests: those that are known keep their rows. */
export function replaceRequests(all) {
  const keyOf = (request) => request.time + ' ' + request.request_id;
  const known = new Map([...requests, ...shown].map((request) => [keyOf(request), request]));
  requests = all.toReversed().map((request) => {
    const same = known.get(keyOf(request));
    known.delete(keyOf(request));
    return same ?? request;
  });
}

export function forgetRequests() {
  requests = [];
  openRows.clear();
  byId('pause').setAttribute('aria-pressed', 'false');
}

/** Returns the providers in the order in which they were tried, ended by the one that answered. */
function providerPath({ provider, tries = [] }) {
  const ids = tries.map((entry) => entry.provider);
  if (provider !== undefined && ids.at(-1) !== provider) ids.push(provider);
  return ids.filter((id, index) => id !== ids[index - 1]).join(' → ');
}

function makeRow(request) {
  rowsMade += 1;
  const button = make('button', '', formatTime(request.time));
  button.setAttribute('aria-expanded', 'false');
  button.setAttribute('aria-controls', 'details-' + rowsMade);
  const row = make('tr', '');
  requestsTable.drawRow(row, request);
  row.cells[0].replaceChildren(button);
  return row;
}

/** Returns a row with all fields of the access line by their names, then the tries. */
function makeDetails({ tries = [], ...fields }, columnCount) {
  const list = make('dl', 'facts');
  for (const [name, value] of Object.entries(fields)) {
    if (value === null || value === undefined) continue;
    list.append(make('div', '', make('dt', '', name), make('dd', 'mono', valueText(value))));
  }
  // Stays within the window while the table is scrolled.
  const sheet = make('div', 'sheet', list);
  if (tries.length > 0) {
    const table = makeTable('tries', 'Tries', triesColumns);
    table.draw(tries.map((entry, index) => ({ ...entry, number: index + 1 })));
    sheet.append(table.box);
  }
  const cell = make('td', '', sheet);
  cell.setAttribute('colspan', columnCount);
  return make('tr', 'details', cell);
}

function toggle(request) {
  const { cells } = rowOf.get(request);
  const button = cells[0].firstChild;
  const isOpen = !openRows.delete(request);
  button.setAttribute('aria-expanded', String(isOpen));
  if (isOpen) {
    const details = makeDetails(request, cells.length);
    details.id = button.getAttribute('aria-controls');
    openRows.set(request, details);
  }
  drawRequests();
}

function matchesFilters(request) {
  const { tries = [], request_id, trace_id = '' } = request;
  const [outcome, provider, client, id] = ['outcome', 'provider', 'client', 'id'].map((name) =>
    byId('by-' + name).value.trim(),
  );
  const outcomes = outcome === 'failed' ? FAILED : [outcome];
  const providers = [request.provider, ...tries.map((entry) => entry.provider)];
  return (
    (outcome === '' || outcomes.includes(request.outcome)) &&
    (provider === '' || providers.includes(provider)) &&
    (client === '' || request.client === client) &&
    (request_id + ' ' + trace_id).toLowerCase().includes(id.toLowerCase())
  );
}

/** Makes the table's rows these, in this order, without touching those that stay. */
function placeRows(body, rows) {
  const wanted = new Set(rows);
  for (const row of Array.from(body.rows)) if (!wanted.has(row)) row.remove();
  let next = body.firstChild;
  for (const row of rows) {
    if (row === next) next = row.nextSibling;
    else body.insertBefore(row, next);
  }
}

export function drawRequests() {
  if (!isPaused()) {
    shown = requests;
    newWhilePaused = 0;
  }
  const matching = shown.filter(matchesFilters);
  const rows = matching.flatMap((request) => {
    if (!rowOf.has(request)) rowOf.set(request, makeRow(request));
    const details = openRows.get(request);
    return details ? [rowOf.get(request), details] : [rowOf.get(request)];
  });
  placeRows(requestsTable.body, rows);
  setHidden('requests-empty', shown.length > 0);
  setHidden('requests-section', shown.length === 0);
  const count = matching.length + ' of ' + shown.length;
  const why = openRows.size > 0 ? 'paused while a row is open' : 'paused';
  setText('count', isPaused() ? count + ' · ' + why + ', ' + newWhilePaused + ' new' : count);
}

/** Offers these values, and keeps the choice. */
function drawOptions(id, values) {
  const select = byId(id);
  if (!isNew(select, values)) return;
  const chosen = select.value;
  const options = values.map((value) => new Option(visible(clip(value)), value));
  select.replaceChildren(new Option('All', ''), ...options);
  select.value = values.includes(chosen) ? chosen : '';
}

export function drawFilters({ providers, clients }) {
  drawOptions(
    'by-provider',
    providers.map(({ id }) => id),
  );
  drawOptions(
    'by-client',
    clients.map(({ name }) => name),
  );
  setHidden('by-client-field', clients.length === 0);
  requestsTable.body.parentElement.classList.toggle('with-clients', clients.length > 0);
}

/** A row that the filters hide is closed: it would pause the list unseen. */
function applyFilters() {
  for (const request of openRows.keys()) if (!matchesFilters(request)) toggle(request);
  drawRequests();
}

for (const name of ['outcome', 'provider', 'client', 'id']) {
  byId('by-' + name).addEventListener('input', applyFilters);
}
byId('pause').addEventListener('click', ({ currentTarget }) => {
  const isPressed = currentTarget.getAttribute('aria-pressed') === 'true';
  currentTarget.setAttribute('aria-pressed', String(!isPressed));
  drawRequests();
});
requestsTable.body.addEventListener('click', ({ target }) => {
  const row = target.closest('tr');
  const request = shown.find((one) => rowOf.get(one) === row);
  // A click that ends a selection of text selects, and does not open.
  if (request && (target.closest('button') || String(getSelection()) === '')) toggle(request);
});
