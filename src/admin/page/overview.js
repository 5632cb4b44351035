/** Providers, models, clients, process and settings. */

import {
  byId,
  clip,
  fill,
  formatDay,
  formatDuration,
  formatNumber,
  h,
  smallLines,
  table,
  tableRow,
  valueText,
  withIcon,
} from './dom.js';

/** Icon and words of each state. A state without an entry is shown by its own name. */
const STATES = new Map([
  ['good', ['good', 'Good']],
  ['not asked', ['skip', 'Not asked']],
  ['partly', ['warn', 'Partly failing']],
  ['failing', ['bad', 'Failing']],
  ['key refused', ['bad', 'Key refused']],
  ['unreachable', ['bad', 'Unreachable']],
  ['open', ['rest', 'Open']],
  ['half-open', ['half', 'Half-open']],
  ['skipped', ['skip', 'Skipped']],
]);
const iconAndWords = (state) => STATES.get(state) ?? ['warn', state];

/** Returns the state, with details of it if there are any, and the number of models with an open circuit. */
export function stateWords({ state, openModels, share = 0 }, details = '') {
  const count = openModels.length;
  const words = state === 'partly' ? Math.round(100 * share) + ' % fail' : iconAndWords(state)[1];
  const models = ['', ', 1 model open'][count] ?? ', ' + count + ' models open';
  return words + details + models;
}

function stateCell(provider, now) {
  const remaining = (until) => formatDuration(Date.parse(until) - Date.parse(now)) + ' left';
  const models = provider.openModels.map(
    ({ model, until, why }) => clip(model) + ' open, ' + remaining(until) + (why ? ': ' + why : ''),
  );
  const [name] = iconAndWords(provider.state);
  const lines = [provider.why, ...models].filter((line) => line);
  if (name === 'half') lines.unshift('The next request tests it.');
  const since = provider.since ? ' since ' + formatDay(provider.since, now) : '';
  const rest = provider.openUntil ? ', ' + remaining(provider.openUntil) : '';
  const icon = name === 'good' && models.length > 0 ? 'warn' : name;
  return [withIcon(icon, clip(stateWords(provider, since + rest))), smallLines(lines)];
}

function errorsText({ errors }) {
  const counts = Object.entries(errors).filter(([, count]) => count > 0);
  return counts.map(([kind, count]) => kind + ' ' + formatNumber(count)).join(' · ');
}

function lastErrorCell({ lastError }, now) {
  return lastError && [formatDay(lastError.at, now), smallLines([lastError.text])];
}

const requestColumns = [
  ['Requests', 'number', 'requests'],
  ['Failed', 'number', 'failed'],
];
const firstTokenColumns = [
  ['First token p50, ms', 'number', 'firstTokenP50Ms'],
  ['p95, ms', 'number', 'firstTokenP95Ms'],
];
const tokenColumns = [
  ['Input tokens', 'number', 'inputTokens'],
  ['Output tokens', 'number', 'outputTokens'],
];
/** By the names of the tables. */
const COLUMNS = {
  Providers: [
    ['Provider', '', 'id'],
    ['State', 'wrap', stateCell],
    ['Tries', 'number', 'requests'],
    ['In flight', 'number', 'inFlight'],
    ['Errors', 'wrap', errorsText],
    ['Client errors', 'number', 'clientErrors'],
    ...firstTokenColumns,
    ...tokenColumns,
    ['Last error', 'wrap', lastErrorCell],
  ],
  Models: [
    ['Model', '', 'name'],
    ['Provider', '', 'provider'],
    ...requestColumns,
    ...firstTokenColumns,
    ...tokenColumns,
  ],
  Clients: [['Client', '', 'name'], ...requestColumns, ...tokenColumns],
};
const settingColumns = [
  ['Setting', '', ([name]) => name],
  ['Value', 'wrap', ([, value]) => valueText(value)],
];

/** Draws the tables of providers, models, clients and settings. */
export function drawTables(state, { settings }) {
  for (const [title, columns] of Object.entries(COLUMNS)) {
    const id = title.toLowerCase();
    const rows = state[id].map((item) => tableRow(columns, item, state.now));
    fill(id + '-section', rows.length > 0 && table(id, title + ' since the start', columns, rows));
  }
  const rows = settings.map((item) => tableRow(settingColumns, item));
  fill(
    'settings-section',
    table('settings', 'Settings in force, keys masked', settingColumns, rows),
  );
  const isAny = state.providers.some((provider) => provider.state !== 'skipped');
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
  const items = FIGURES.map(([title, name, factor]) => {
    const value = figures[name] === undefined ? undefined : figures[name] * Number(factor);
    return h('div', h('dt', title), h('dd', formatNumber(value)));
  });
  fill('process', items);
}

/** Returns the use of the CPU between two state events; undefined without a first. */
export function cpuPercentSince(before, { now, figures }) {
  const passedMs = before ? Date.parse(now) - Date.parse(before.now) : 0;
  if (passedMs <= 0) return undefined;
  const name = 'process_cpu_seconds_total';
  return Math.round((100_000 * (figures[name] - before.figures[name])) / passedMs);
}
