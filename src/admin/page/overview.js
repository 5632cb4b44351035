/** Providers, models, clients, process and settings. */

import { byId, fill, foldButton, h, table, tableRow, titled, withIcon } from './dom.js';
import { clip, formatDay, formatDuration, formatNumber, valueText } from './format.js';
import { stateOf } from './incidents.js';

function stateCell({ states, skipped, requests, keptAway = [], now }) {
  const away = keptAway.map(({ model, until }) => {
    const left = formatDuration(Date.parse(until) - Date.parse(now)) + ' left';
    return [model && clip(model), 'kept away, ' + left].filter(Boolean).join(' ');
  });
  const [first, ...more] = states.map(({ icon, words }) => withIcon(icon, clip(words)));
  const quiet = requests > 0 ? withIcon('good', 'Good') : withIcon('off', 'Not asked');
  const usual = skipped === undefined ? quiet : withIcon('off', 'Skipped');
  return [first ?? usual, more.map((one) => h('div', one)), skipped, ...away];
}

const lastErrorCell = ({ lastError, now }) =>
  lastError && [formatDay(lastError.at, now), lastError.text];

/** It is of interest once it is old. */
const OLD_SECONDS = 5;
const inFlightCell = ({ inFlight, oldestSeconds: seconds }) => [
  inFlight,
  seconds >= OLD_SECONDS && 'oldest ' + formatDuration(1000 * seconds),
];

const limitsCell = ({ limits = [] }) =>
  limits.map(({ limit, used, capacity }) => {
    const share = formatNumber(used) + ' of ' + formatNumber(capacity);
    return limit.replace('client_', '') + ' ' + share;
  });

/** The columns of a request's end; together with `ok` they are all. */
const endColumns = [
  ['Failed', 'number', 'failed'],
  ['Rejected', 'number', ({ refused = 0, rejected = 0 }) => refused + rejected || undefined],
  ['Client left', 'number rest', 'client_closed'],
];
const firstTokenColumns = [
  ['First token p50, ms', 'number rest', 'p50'],
  ['p95, ms', 'number rest', 'p95'],
];
const tokenColumns = [
  ['Input tokens', 'number rest', 'inputTokens'],
  ['Output tokens', 'number rest', 'outputTokens'],
];
/** By the names of the tables. */
const COLUMNS = {
  Providers: [
    ['Provider', '', 'id'],
    ['State now', 'wrap', stateCell],
    ['In flight', 'number', inFlightCell],
    ['Last error', 'wrap', lastErrorCell],
    ['Tries', 'number', 'requests'],
    ...endColumns,
    ...firstTokenColumns,
    ...tokenColumns,
  ],
  Models: [
    ['Model', '', 'id'],
    ['Requests', 'number', 'requests'],
    ...endColumns,
    ...firstTokenColumns,
    ...tokenColumns,
  ],
  Clients: [
    ['Client', '', 'id'],
    ['Requests', 'number', 'requests'],
    ...endColumns,
    ...tokenColumns,
    ['Limits used', 'wrap rest', limitsCell],
  ],
};
const settingColumns = [
  ['Setting', '', ([name]) => name],
  ['Value', 'wrap', ([, value]) => valueText(value)],
];

/** A longer table is folded: failing rows first, then those with the most traffic. */
const MAX_FOLDED_ROWS = 8;
/** The ids of the tables that are unfolded. */
const unfolded = new Set();

const rankOf = ({ failed, skipped, states }) => {
  if (skipped !== undefined) return 2;
  return failed > 0 || states.length > 0 ? 0 : 1;
};

/** Returns the rows with their sums, those first that need to be seen. */
function rowsOf(items, state, isProviders) {
  const rows = Object.entries(items).map(([id, item]) => {
    const states = isProviders ? stateOf(id, state) : [];
    return { id, now: state.now, ...item, states };
  });
  return rows.toSorted(
    (a, b) =>
      rankOf(a) - rankOf(b) || (b.requests ?? 0) - (a.requests ?? 0) || a.id.localeCompare(b.id),
  );
}

/** Draws the tables of providers, models, clients and settings. */
export function drawTables(state) {
  const wanted = byId('by-name').value.trim().toLowerCase();
  for (const [title, columns] of Object.entries(COLUMNS)) {
    const id = title.toLowerCase();
    const all = rowsOf(state[id], state, id === 'providers');
    const found = all.filter((item) => item.id.toLowerCase().includes(wanted));
    const isUnfolded = unfolded.has(id);
    const shown = wanted === '' && !isUnfolded ? found.slice(0, MAX_FOLDED_ROWS) : found;
    const count = shown.length < all.length ? shown.length + ' of ' + all.length + ', ' : '';
    const rows = shown.map((item) => tableRow(columns, item));
    const isLong = wanted === '' && all.length > MAX_FOLDED_ROWS;
    const fold = () => unfolded.delete(id) || unfolded.add(id);
    const label = isUnfolded ? 'Show fewer' : 'Show all ' + all.length;
    const caption = title + ', ' + count + 'the last 15 minutes';
    fill(
      id + '-section',
      all.length > 0 && table(id, caption, columns, rows),
      isLong && foldButton(label, isUnfolded, fold),
    );
  }
  const rows = state.settings.settings.map((item) => tableRow(settingColumns, item));
  const caption = 'Settings in force, keys masked';
  fill('settings-section', table('settings', caption, settingColumns, rows));
  const isAny = Object.values(state.providers).some(({ skipped }) => skipped === undefined);
  byId('providers-empty').toggleAttribute('hidden', isAny);
}

/** Figures of the process: title, name, and what makes its unit of the metric's. */
const FIGURES = [
  ['CPU, %', 'cpu_percent', 1],
  ['Memory, MB', 'process_resident_memory_bytes', 1e-6],
  ['Event loop delay p99, ms', 'nodejs_eventloop_lag_p99_seconds', 1000],
  ['Buffered, MB', 'gateway_buffered_bytes', 1e-6],
  ['Descriptors open', 'process_open_fds', 1],
  ['Connections open', 'gateway_upstream_connections_open', 1],
  ['Connections made', 'gateway_upstream_connections_made_total', 1],
  ['Connections reused', 'gateway_upstream_connections_reused_total', 1],
  ['Log lines dropped', 'gateway_log_lines_dropped_total', 1],
];

/** Draws the figures of the process. */
export function drawProcess({ figures }) {
  const items = FIGURES.map(([title, name, factor]) =>
    titled(title, 'dd', formatNumber(figures[name] && figures[name] * Number(factor))),
  );
  fill('process', items);
}

/** Returns the use of the CPU between two state events; undefined without a first. */
export function cpuPercentSince(before, { now, figures }) {
  const passedMs = before ? Date.parse(now) - Date.parse(before.now) : 0;
  if (passedMs <= 0) return undefined;
  const name = 'process_cpu_seconds_total';
  return Math.round((100_000 * (figures[name] - before.figures[name])) / passedMs);
}
