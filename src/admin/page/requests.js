/** The last requests, their filter and details. */

import {
  byId,
  clip,
  drawTable,
  formatTime,
  h,
  table,
  tableRow,
  valueText,
  withIcon,
} from './dom.js';

const OUTCOME_ICONS = { ok: 'good', client_closed: 'off', refused: 'warn', rejected: 'warn' };

/** Newest first: while a row is open, the requests of that moment. */
let listed = [];
/** The numbers of the requests whose details are open. */
const open = new Set();

/** A request that a limit of its own client refused has not failed. */
const isOverOwnLimit = ({ limit, reason = '' }) =>
  limit !== undefined && reason.startsWith('client');
const iconOfEnd = (request) =>
  isOverOwnLimit(request) ? 'warn' : (OUTCOME_ICONS[request.outcome] ?? 'bad');
const outcomeCell = (request) => withIcon(iconOfEnd(request), clip(request.outcome));
/** The cause of a failure stands in the last try that has one, if not on the line. */
const causeOf = ({ cause, limit, outcome, reason, tries = [] }) =>
  outcome === 'ok'
    ? ''
    : (cause ?? tries.findLast((one) => one.cause)?.cause ?? limit ?? reason ?? '');
const statusColumn = ['Status', 'number', 'status'];
const durationColumn = ['Duration, ms', 'number', 'duration_ms'];
const listColumns = [
  ['Time', '', timeButton],
  ['Outcome', 'wrap', (item) => [outcomeCell(item), causeOf(item)]],
  statusColumn,
  // A request for what is not served has no model.
  ['Model', '', ({ model, method, path }) => model ?? method + ' ' + path],
  ['Provider', '', (item) => providersOf(item).join(' → ')],
  ['Client', '', 'client'],
  ['First byte, ms', 'number rest', 'first_byte_ms'],
  durationColumn,
];
const triesColumns = [
  ['Try', 'number', 'number'],
  ['Provider', '', 'provider'],
  ['Key', 'number', 'key'],
  ['Model', '', 'model'],
  ['Outcome', '', outcomeCell],
  statusColumn,
  durationColumn,
  ['Cause', 'wrap', 'cause'],
  ['URL', 'wrap', 'url'],
];

/** Returns the providers in the order in which they were tried, ended by the one that answered. */
function providersOf({ provider, tries = [] }) {
  const ids = [...tries.map((one) => one.provider), provider];
  return ids.filter((id, index) => id !== undefined && id !== ids[index - 1]);
}

function timeButton({ number, time }) {
  const isOpen = String(open.has(number));
  const attributes = { 'aria-expanded': isOpen, 'aria-controls': 'details-' + number };
  return h('button', attributes, formatTime(time));
}

/**
 * Describes a request's row, and below it, if it is open, all fields of the access line by their
 * names and the tries.
 */
function requestRows(request) {
  const { number, tries = [], ...fields } = request;
  const row = tableRow(listColumns, request, {
    key: number,
    // A click that ends a selection of text selects, and does not open.
    onclick({ target }) {
      if (!target.closest('button') && String(getSelection()) !== '') return;
      if (!open.delete(number)) open.add(number);
    },
  });
  if (!open.has(number)) return row;
  const cause = causeOf(request);
  const facts = Object.entries({ ...(cause && { cause }), ...fields });
  const items = facts.map(([name, value]) =>
    h('div', h('dt', name), h('dd.mono', valueText(value))),
  );
  const tryRows = tries.map((one, index) => tableRow(triesColumns, { ...one, number: index + 1 }));
  const named = { id: 'tries-' + number, title: 'Tries', note: '', columns: triesColumns };
  const triesTable = tries.length > 0 && table(named, tryRows);
  // Stays within the window while the table is scrolled.
  const sheet = h('div.sheet', h('dl.facts', items), triesTable);
  const details = { key: 'details-' + number, id: 'details-' + number };
  return [row, h('tr.details', details, h('td', { colspan: listColumns.length }, sheet))];
}

/** Returns true if the request has each of the words: `failed ci` are the failures of a client. */
function hasWords(request, words) {
  const { client, model, outcome, request_id, trace_id } = request;
  const failed = iconOfEnd(request) === 'bad' && 'failed';
  const texts = [failed, outcome, model, client, request_id, trace_id, ...providersOf(request)];
  const text = texts.filter(Boolean).join(' ').toLowerCase();
  return words.every((word) => text.includes(word));
}

/** Draws the list. */
export function drawRequests({ requests }) {
  const latest = Object.values(requests).toReversed();
  const words = byId('filter').value.toLowerCase().split(/\s+/);
  // A row that the filter hides is closed: it would hold the list unseen.
  for (const request of listed) if (!hasWords(request, words)) open.delete(request.number);
  if (open.size === 0) listed = latest;
  const newer = open.size > 0 && latest[0].number - listed[0].number;
  const held = newer !== false && 'held while a row is open, ' + newer + ' new, ';
  const note = [held, 'the last 200, and the last 200 failures before them, newest first'];
  const matching = listed.filter((request) => hasWords(request, words));
  byId('requests-empty').toggleAttribute('hidden', matching.length > 0);
  const named = { id: 'requests', title: 'Requests', note, columns: listColumns };
  drawTable({ ...named, rowOf: requestRows }, matching);
}

/** Another process counts requests from 1 again. */
export function forgetRequests() {
  listed = [];
  open.clear();
}
