/** The last requests, their filters and details. */

import {
  byId,
  clip,
  drawRow,
  drawRows,
  formatTime,
  isNew,
  make,
  schedule,
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
const openRequests = new Set();
/** Request to row, and row to request. */
const rowOf = new WeakMap();
const requestOf = new WeakMap();
let rowsMade = 0;

const isPaused = () =>
  openRequests.size > 0 || byId('pause').getAttribute('aria-pressed') === 'true';

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
  openRequests.clear();
  byId('pause').setAttribute('aria-pressed', 'false');
}

/** The providers in the order in which they were tried, ended by the one that answered. */
function providerPath({ provider, tries }) {
  const ids = (tries ?? []).map((entry) => entry.provider);
  if (provider !== undefined && ids.at(-1) !== provider) ids.push(provider);
  return ids.filter((id, index) => id !== ids[index - 1]).join(' → ');
}

const outcomeCell = (outcome) => ({
  icon: OUTCOME_ICONS[outcome] ?? 'bad',
  text: outcome,
  lines: [],
});

function makeRow(request) {
  const row = document.createElement('tr');
  rowsMade += 1;
  const button = make('button', '', formatTime(request.time));
  button.type = 'button';
  button.setAttribute('aria-expanded', 'false');
  button.setAttribute('aria-controls', 'details-' + rowsMade);
  drawRow(byId('requests'), row, [
    '',
    outcomeCell(request.outcome),
    request.status,
    request.model,
    providerPath(request),
    request.client,
    request.first_byte_ms,
    request.duration_ms,
    request.prompt_tokens,
    request.completion_tokens,
  ]);
  row.cells[0]?.replaceChildren(button);
  requestOf.set(row, request);
  return { row, button, details: null, detailsId: 'details-' + rowsMade };
}

/** All fields of the access line by their names, then the tries. */
function makeDetails(request, { row: { cells }, detailsId }) {
  const { tries, ...fields } = request;
  const facts = make('dl', 'facts');
  for (const [name, value] of Object.entries(fields)) {
    if (value === null || value === undefined) continue;
    facts.append(make('div', '', make('dt', '', name), make('dd', 'mono', valueText(value))));
  }
  // Stays within the window while the table is scrolled.
  const sheet = make('div', 'sheet', facts);
  if (tries?.length > 0) sheet.append(makeTries(tries));
  const cell = make('td', '', sheet);
  cell.setAttribute('colspan', cells.length);
  const row = make('tr', 'details', cell);
  row.id = detailsId;
  return row;
}

function makeTries(tries) {
  const box = byId('tries-template').content.firstElementChild.cloneNode(true);
  const body = box.querySelector('tbody');
  // The tries of several requests may be shown.
  for (const node of [box, body]) node.removeAttribute('id');
  const rows = tries.map((entry, index) => {
    const { provider, key, model, outcome, status, duration_ms, cause, url } = entry;
    const result = [outcomeCell(outcome), status, duration_ms, cause, url];
    return [index + 1, provider, key, model, ...result];
  });
  drawRows(body, rows);
  return box;
}

function toggle(request) {
  const entry = rowOf.get(request);
  const isOpen = !openRequests.delete(request);
  if (isOpen) openRequests.add(request);
  entry.details = isOpen ? makeDetails(request, entry) : null;
  entry.button.setAttribute('aria-expanded', String(isOpen));
  schedule();
}

function matchesFilters(request) {
  const [outcome, provider, client] = ['outcome', 'provider', 'client'].map(
    (name) => byId('by-' + name).value,
  );
  const id = byId('by-id').value.trim().toLowerCase();
  const isOutcome =
    outcome === 'failed' ? FAILED.includes(request.outcome) : request.outcome === outcome;
  if (outcome !== '' && !isOutcome) return false;
  const providers = [request.provider, ...(request.tries ?? []).map((entry) => entry.provider)];
  if (provider !== '' && !providers.includes(provider)) return false;
  if (client !== '' && request.client !== client) return false;
  const ids = [request.request_id, request.trace_id ?? ''];
  return id === '' || ids.some((text) => text.toLowerCase().includes(id));
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
    const { row, details } = rowOf.get(request);
    return details ? [row, details] : [row];
  });
  placeRows(byId('requests'), rows);
  setHidden('requests-empty', shown.length > 0);
  setHidden('requests-section', shown.length === 0);
  const count = matching.length + ' of ' + shown.length;
  const why = openRequests.size > 0 ? 'paused while a row is open' : 'paused';
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
  const ids = providers.map(({ id }) => id);
  const names = clients.map(({ name }) => name);
  drawOptions('by-provider', ids);
  drawOptions('by-client', names);
  setHidden('by-client-field', clients.length === 0);
  byId('requests').parentElement.classList.toggle('with-clients', clients.length > 0);
}

/** A row that the filters hide is closed: it would pause the list unseen. */
function applyFilters() {
  for (const request of openRequests) if (!matchesFilters(request)) toggle(request);
  schedule();
}

for (const name of ['outcome', 'provider', 'client', 'id']) {
  byId('by-' + name).addEventListener('input', applyFilters);
}
byId('pause').addEventListener('click', ({ currentTarget }) => {
  const isPressed = currentTarget.getAttribute('aria-pressed') === 'true';
  currentTarget.setAttribute('aria-pressed', String(!isPressed));
  schedule();
});
byId('requests').addEventListener('click', ({ target }) => {
  const request = requestOf.get(target.closest('tr'));
  // A click that ends a selection of text selects, and does not open.
  if (request && (target.closest('button') || String(getSelection()) === '')) toggle(request);
});
