/** Providers, models, clients, process and settings. */

import { byId, fill, h, table, tableRow, titled, withIcon } from './dom.js';
import { clip, formatDay, formatDuration, formatNumber, valueText } from './format.js';

function iconOf({ state = 'good' }) {
  if (state === 'good') return 'good';
  if (state === 'not asked' || state === 'skipped') return 'off';
  return ['partly', 'open', 'half-open'].includes(state) ? 'warn' : 'bad';
}

/** Returns the state, with details of it if there are any, and the number of models with an open circuit. */
export function stateWords({ state, openModels = [], share = 0 }, details = '') {
  const count = openModels.length;
  const name = state.charAt(0).toUpperCase() + state.slice(1);
  const words = state === 'partly' ? Math.round(100 * share) + ' % fail' : name;
  return words + details + (['', ', 1 model open'][count] ?? ', ' + count + ' models open');
}

function stateCell(provider) {
  const { now, openModels = [] } = provider;
  const remaining = (until) => formatDuration(Date.parse(until) - Date.parse(now)) + ' left';
  const models = openModels.map(
    ({ model, until, why }) => clip(model) + ' open, ' + remaining(until) + (why ? ': ' + why : ''),
  );
  const hint = provider.state === 'half-open' && 'The next request tests it.';
  const since = provider.since ? ' since ' + formatDay(provider.since, now) : '';
  const rest = provider.openUntil ? ', ' + remaining(provider.openUntil) : '';
  const icon = provider.state === 'good' && models.length > 0 ? 'warn' : iconOf(provider);
  const words = stateWords(provider, since + rest);
  return [withIcon(icon, clip(words)), hint, provider.why, ...models];
}

/** The outcomes of tries that count as errors of the provider. */
const ERRORS = ['upstream_error', 'timeout', 'rate_limited', 'refused', 'internal_error'];

function errorsText(item) {
  const kinds = ERRORS.filter((kind) => item[kind] > 0);
  return kinds.map((kind) => kind + ' ' + formatNumber(item[kind])).join(' · ');
}

const lastErrorCell = ({ lastError, now }) =>
  lastError && [formatDay(lastError.at, now), lastError.text];

const inFlightCell = ({ inFlight, oldestSeconds: seconds }) => [
  inFlight,
  seconds !== undefined && 'oldest ' + formatDuration(1000 * seconds),
];

const limitsCell = ({ limits = [] }) =>
  limits.map(({ limit, used, capacity }) => {
    const share = formatNumber(used) + ' of ' + formatNumber(capacity);
    return limit.replace('client_', '') + ' ' + share;
  });

const requestColumns = [
  ['Failed', 'number', 'failed'],
  ['Requests', 'number', 'requests'],
];
const firstTokenColumns = [
  ['First token p50, ms', 'number', 'p50'],
  ['p95, ms', 'number', 'p95'],
];
const tokenColumns = [
  ['Input tokens', 'number', 'inputTokens'],
  ['Output tokens', 'number', 'outputTokens'],
];
/** By the names of the tables. */
const COLUMNS = {
  Providers: [
    ['Provider', '', 'id'],
    ['Errors', 'wrap', errorsText],
    ['State', 'wrap', stateCell],
    ['Tries', 'number', 'requests'],
    ['In flight', 'number', inFlightCell],
    ['Client errors', 'number', 'clientErrors'],
    ...firstTokenColumns,
    ...tokenColumns,
    ['Last error', 'wrap', lastErrorCell],
  ],
  Models: [
    ['Model', '', 'name'],
    ...requestColumns,
    ['Provider', '', 'provider'],
    ...firstTokenColumns,
    ...tokenColumns,
  ],
  Clients: [
    ['Client', '', 'id'],
    ...requestColumns,
    ...tokenColumns,
    ['Limits used', 'wrap', limitsCell],
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

const rankOf = (item) => {
  if (item.state === 'skipped') return 2;
  return item.failed > 0 || ['warn', 'bad'].includes(iconOf(item)) ? 0 : 1;
};

/** Returns the rows with their names and the sums of the chosen window, those first that need to be seen. */
function rowsOf(items, sumsOf, now) {
  const rows = Object.entries(items).map(([key, item]) => {
    // The models' keys have the provider's id at the end.
    const [name, provider] = [key.replace(/ [^ ]*$/, ''), key.replace(/^.* /, '')];
    return { id: key, name, provider, now, ...item, ...item[sumsOf] };
  });
  return rows.toSorted(
    (a, b) =>
      rankOf(a) - rankOf(b) || (b.requests ?? 0) - (a.requests ?? 0) || a.id.localeCompare(b.id),
  );
}

/** Draws the tables of providers, models, clients and settings. `sumsOf` is the window: `recent` or `start`. */
export function drawTables(state, sumsOf) {
  const wanted = byId('by-name').value.trim().toLowerCase();
  const period = byId('window').selectedOptions[0].label.toLowerCase();
  for (const [title, columns] of Object.entries(COLUMNS)) {
    const id = title.toLowerCase();
    const all = rowsOf(state[id], sumsOf, state.now);
    const found = all.filter((item) => item.id.toLowerCase().includes(wanted));
    const isUnfolded = unfolded.has(id);
    const shown = wanted === '' && !isUnfolded ? found.slice(0, MAX_FOLDED_ROWS) : found;
    const count = shown.length < all.length ? shown.length + ' of ' + all.length + ', ' : '';
    const rows = shown.map((item) => tableRow(columns, item));
    const isLong = wanted === '' && all.length > MAX_FOLDED_ROWS;
    const onclick = () => unfolded.delete(id) || unfolded.add(id);
    const attributes = { type: 'button', 'aria-expanded': String(isUnfolded), onclick };
    const label = isUnfolded ? 'Show fewer' : 'Show all ' + all.length;
    fill(
      id + '-section',
      all.length > 0 && table(id, title + ', ' + count + period, columns, rows),
      isLong && h('button.fold', attributes, label),
    );
  }
  const rows = state.settings.settings.map((item) => tableRow(settingColumns, item));
  const caption = 'Settings in force, keys masked';
  fill('settings-section', table('settings', caption, settingColumns, rows));
  const isAny = Object.values(state.providers).some((provider) => provider.state !== 'skipped');
  byId('providers-empty').toggleAttribute('hidden', isAny);
}

/** Figures of the process: title, name, and what makes its unit of the metric's. */
const FIGURES = [
  ['CPU, %', 'cpu_percent', 1],
  ['Memory, MB', 'process_resident_memory_bytes', 1e-6],
  ['Event loop delay p99, ms', 'nodejs_eventloop_lag_p99_seconds', 1000],
  ['Buffered, MB', 'gateway_buffered_bytes', 1e-6],
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
