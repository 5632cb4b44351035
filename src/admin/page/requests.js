/** The list of the last requests, with a filter and details. */

import {
  byId,
  clip,
  drawTable,
  fill,
  formatNumber,
  formatTime,
  h,
  tableRow,
  valueText,
  withIcon,
} from './dom.js';

const OUTCOME_ICONS = { ok: 'good', client_closed: 'off', refused: 'warn', rejected: 'warn' };
const SKIPPED = ['circuit_open', 'limit'];
/** Outcomes that say nothing about a provider: skipped, or failed by the gateway itself. */
const NOT_OF_PROVIDER = [...SKIPPED, 'internal_error'];

/** The listed requests, newest first. They stand still while a row is open. */
let listed = [];
/** The numbers of the requests with open details. */
const open = new Set();
let kind = 'All';

/** A refusal by the client's own limit is no failure. */
const isOverOwnLimit = ({ limit, reason = '' }) =>
  limit !== undefined && reason.startsWith('client');
const iconOfEnd = (request) =>
  isOverOwnLimit(request) ? 'warn' : (OUTCOME_ICONS[request.outcome] ?? 'bad');
/** Returns a failure's cause: the request's, or else that of its latest try with a cause. */
const causeOf = ({ cause, limit, outcome, reason, tries = [] }) =>
  cause ??
  tries.findLast((one) => one.cause)?.cause ??
  (outcome === 'ok' ? '' : (limit ?? reason ?? ''));

const KINDS = {
  All: () => true,
  Failed: (request) => iconOfEnd(request) === 'bad',
  Retried: ({ tries = [] }) => tries.filter((one) => !SKIPPED.includes(one.outcome)).length > 1,
};

function timeButton(request) {
  const { number, time } = request;
  const opened = [
    formatTime(time) + ':',
    'details of',
    request.model ?? request.path,
    request.outcome,
  ];
  const attributes = {
    type: 'button',
    'aria-expanded': String(open.has(number)),
    'aria-controls': 'details-' + number,
    'aria-label': clip(opened.join(' ')),
  };
  return h('button', attributes, formatTime(time));
}

function outcomeCell(request) {
  const status = request.status !== undefined && h('small', ' ' + request.status);
  return [withIcon(iconOfEnd(request), clip(request.outcome)), status];
}

/** Returns the icon beside the provider of a try; `failed` if the provider has failed. */
export const iconOfTry = ({ outcome }, failed) =>
  NOT_OF_PROVIDER.includes(outcome) ? 'off' : (OUTCOME_ICONS[outcome] ?? failed);

/** Describes the providers in the order of the tries. A single good try needs no icon. */
function triedCell({ outcome, tries = [] }) {
  if (tries.length === 0) return withIcon('off', 'not sent');
  if (tries.length === 1 && outcome === 'ok') return clip(tries[0].provider);
  const failed = outcome === 'ok' ? 'warn' : 'bad';
  return tries.map((one, at) => {
    return [at > 0 && ' → ', withIcon(iconOfTry(one, failed), clip(one.provider))];
  });
}

const listColumns = [
  ['Time', '', timeButton],
  ['Outcome', 'outcome', outcomeCell],
  // A request for an unknown path has no model.
  ['Model', 'model', ({ model, method, path }) => model ?? method + ' ' + path],
  ['Tried', 'tried', triedCell],
  ['Client', 'client', 'client'],
  [
    'First token',
    'number token',
    // An error answer has a first byte, but no token.
    ({ stream, status, first_byte_ms: ms }) => (stream && status === 200 ? ms : undefined),
  ],
  ['Duration, ms', 'number duration', 'duration_ms'],
  ['Cause', 'fill cause', causeOf],
];

/** Describes a try: its outcome, its times and its cause. */
function tryItem(one, at) {
  const { key, model, outcome, provider, status, cause, url } = one;
  const times = [
    one.duration_ms !== undefined && formatNumber(one.duration_ms) + ' ms',
    one.connect_ms !== undefined && 'connect ' + formatNumber(one.connect_ms),
    one.lookup_ms !== undefined && 'lookup ' + formatNumber(one.lookup_ms),
  ];
  const icon = SKIPPED.includes(outcome) ? 'off' : (OUTCOME_ICONS[outcome] ?? 'bad');
  return h(
    'li',
    h('span.note', String(at + 1)),
    h('span', clip(provider) + '/' + clip(model), key !== undefined && h('small', ' key ' + key)),
    h('span', withIcon(icon, clip(outcome)), status !== undefined && h('small', ' ' + status)),
    h('span', times.filter(Boolean).join(', ')),
    h('span.mono', cause && clip(cause), url && h('small', ' ' + clip(url))),
  );
}

/** Describes a request's row, and below an open row its tries and fields. */
function requestRows(columns, request) {
  const { number, tries = [], ...fields } = request;
  const row = tableRow(columns, request, {
    key: number,
    // A click that ends a selection of text must not open the row.
    onclick({ target }) {
      if (!target.closest('button') && String(getSelection()) !== '') return;
      if (!open.delete(number)) open.add(number);
    },
  });
  if (!open.has(number)) return row;
  const items = Object.entries(fields).map(([name, value]) =>
    h('div', h('dt', name), h('dd', valueText(value))),
  );
  const list = tries.length > 0 && h('ol.tries', { 'aria-label': 'Tries' }, tries.map(tryItem));
  const details = { key: 'details-' + number, id: 'details-' + number };
  return [
    row,
    h('tr.details', details, h('td', { colspan: columns.length }, list, h('dl.facts', items))),
  ];
}

/** Returns whether a request has all words: `failed ci` finds the failures of the client `ci`. */
function hasWords(request, words) {
  const { client, model, outcome, request_id, trace_id, provider, tries = [] } = request;
  const failed = iconOfEnd(request) === 'bad' && 'failed';
  const ids = [request_id, trace_id, provider, ...tries.map((one) => one.provider)];
  const text = [failed, outcome, model, client, ...ids].filter(Boolean).join(' ').toLowerCase();
  return words.every((word) => text.includes(word));
}

/** Lists the requests of a kind that have these words, and moves the focus to the list. */
export function showRequests(name, words) {
  kind = name;
  byId('filter').value = words;
  byId('requests-title').focus();
  byId('requests-title').scrollIntoView();
}

/** Draws the list. */
export function drawRequests({ requests }) {
  const latest = Object.values(requests).toReversed();
  const words = byId('filter').value.toLowerCase().split(/\s+/);
  const isWanted = (request) => KINDS[kind](request) && hasWords(request, words);
  // A hidden row is closed, because it would hold the list unseen.
  for (const request of listed) if (!isWanted(request)) open.delete(request.number);
  if (open.size === 0) listed = latest;
  const newer = open.size > 0 && latest[0].number - listed[0].number;
  const held = newer !== false && 'held while a row is open, ' + newer + ' new, ';
  const matching = listed.filter(isWanted);
  fill('requests-note', held, formatNumber(matching.length) + ', newest first');
  const buttons = Object.keys(KINDS).map((name) => {
    const onclick = () => (kind = name);
    return h('button', { type: 'button', 'aria-pressed': String(name === kind), onclick }, name);
  });
  fill('kinds', buttons);
  byId('requests-empty').toggleAttribute('hidden', matching.length > 0);
  drawTable(
    { id: 'requests', title: 'Requests', columns: listColumns, rowOf: requestRows },
    matching,
  );
}

/** Forgets all requests, because another process counts its requests from 1 again. */
export function forgetRequests() {
  listed = [];
  open.clear();
}
