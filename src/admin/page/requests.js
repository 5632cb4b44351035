/** The last requests, their filters and details. */

import { byId, fill, foldButton, h, table, tableRow, titled, withIcon } from './dom.js';
import { clip, formatTime, valueText } from './format.js';

const OUTCOME_ICONS = { ok: 'good', client_closed: 'off', refused: 'warn', rejected: 'warn' };
const FAILED = ['upstream_error', 'timeout', 'rate_limited', 'internal_error'];
const OUTCOMES = ['failed', 'ok', 'client_closed', 'refused', 'rejected', ...FAILED];
/** Until more are wanted. */
const FEW = 25;

/** Newest first. While the list is paused, the page shows the requests of that moment. */
let shown = [];
let isPausePressed = false;
let isMoreWanted = false;
/** The numbers of the requests whose details are open. */
const open = new Set();
/** The rows of closed requests, described once: 200 are drawn each second. */
const closedRows = new WeakMap();

const outcomeCell = ({ outcome }) => withIcon(OUTCOME_ICONS[outcome] ?? 'bad', clip(outcome));
const statusColumn = ['Status', 'number', 'status'];
/** The cause of a failure stands in the last try that has one, if not on the line. */
const causeOf = ({ cause, outcome, reason, tries = [] }) =>
  outcome === 'ok' ? '' : (cause ?? tries.findLast((one) => one.cause)?.cause ?? reason ?? '');
const durationColumn = ['Duration, ms', 'number', 'duration_ms'];
const listColumns = [
  ['Time', '', timeButton],
  ['Outcome', 'wrap', (item) => [outcomeCell(item), causeOf(item)]],
  statusColumn,
  // A request for what is not served has no model.
  ['Model', '', ({ model, method, path }) => model ?? method + ' ' + path],
  ['Provider', '', providerPath],
  ['Client', 'client', 'client'],
  ['First byte, ms', 'number rest', 'first_byte_ms'],
  durationColumn,
  ['Input tokens', 'number rest', 'prompt_tokens'],
  ['Output tokens', 'number rest', 'completion_tokens'],
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

function pressPause(isPressed) {
  isPausePressed = isPressed;
  byId('pause').setAttribute('aria-pressed', String(isPressed));
}

export function forgetRequests() {
  shown = [];
  open.clear();
  pressPause(false);
}

/** Returns the providers in the order in which they were tried, ended by the one that answered. */
function providerPath({ provider, tries = [] }) {
  const ids = tries.map((entry) => entry.provider);
  if (provider !== undefined && ids.at(-1) !== provider) ids.push(provider);
  return ids.filter((id, index) => id !== ids[index - 1]).join(' → ');
}

function timeButton({ number, time }) {
  const isOpen = String(open.has(number));
  const attributes = { 'aria-expanded': isOpen, 'aria-controls': 'details-' + number };
  return h('button', attributes, formatTime(time));
}

/** Describes a request's row, and below it, if it is open, all fields of the access line by their names and the tries. */
function requestRows(request) {
  const { number, tries = [], ...fields } = request;
  const isOpen = open.has(number);
  if (!isOpen && closedRows.has(request)) return closedRows.get(request);
  const row = tableRow(listColumns, request, {
    key: number,
    // A click that ends a selection of text selects, and does not open.
    onclick({ target }) {
      if (!target.closest('button') && String(getSelection()) !== '') return;
      if (!open.delete(number)) open.add(number);
    },
  });
  if (!isOpen) {
    closedRows.set(request, row);
    return row;
  }
  const cause = causeOf(request);
  const facts = Object.entries({ ...(cause && { cause }), ...fields });
  const items = facts.map(([name, value]) => titled(name, 'dd.mono', valueText(value)));
  const tryRows = tries.map((one, index) => tableRow(triesColumns, { ...one, number: index + 1 }));
  const triesTable = tries.length > 0 && table('tries-' + number, 'Tries', triesColumns, tryRows);
  // Stays within the window while the table is scrolled.
  const sheet = h('div.sheet', h('dl.facts', items), triesTable);
  const id = 'details-' + number;
  return [row, h('tr.details', { key: id, id }, h('td', { colspan: listColumns.length }, sheet))];
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

/** Offers the values of each filter. An option keeps its node, so that the choice stays when others come. */
function drawFilters({ providers }) {
  const offers = {
    outcome: OUTCOMES,
    provider: Object.keys(providers),
    client: [...new Set(shown.flatMap(({ client }) => client ?? []))],
  };
  for (const [name, offered] of Object.entries(offers)) {
    const options = offered.map((value) => h('option', { key: value, value }, clip(value)));
    fill('by-' + name, h('option', { key: '', value: '' }, 'All'), options);
    byId('by-' + name).parentElement.toggleAttribute('hidden', offered.length === 0);
  }
}

/** Draws the filters and the list. */
export function drawRequests(state) {
  const requests = Object.values(state.requests).toReversed();
  // A row that the filters hide is closed: it would pause the list unseen.
  for (const request of shown) if (!matchesFilters(request)) open.delete(request.number);
  const isPaused = isPausePressed || open.size > 0;
  if (!isPaused) shown = requests;
  drawFilters(state);
  byId('requests-empty').toggleAttribute('hidden', shown.length > 0);
  byId('requests-section').toggleAttribute('hidden', shown.length === 0);
  const matching = shown.filter(matchesFilters);
  const newer = isPaused && requests[0].number - shown[0].number;
  const why = open.size > 0 ? ' · paused while a row is open, ' : ' · paused, ';
  fill('count', matching.length + ' of ' + shown.length + (isPaused ? why + newer + ' new' : ''));
  const caption = 'The last 200 requests, and the last 200 failures before them, newest first';
  const few = isMoreWanted ? matching : matching.slice(0, FEW);
  const fold = () => (isMoreWanted = !isMoreWanted);
  fill(
    'requests-list',
    table('requests', caption, listColumns, few.map(requestRows)),
    matching.length > FEW && foldButton(isMoreWanted ? 'Fewer' : 'More', isMoreWanted, fold),
  );
}

byId('pause').addEventListener('click', () => pressPause(!isPausePressed));
