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
  ['failing', ['bad', 'Failing']],
  ['open', ['rest', 'Open']],
  ['half-open', ['half', 'Half-open']],
  ['skipped', ['skip', 'Skipped']],
]);
const iconAndWords = (state) => STATES.get(state) ?? ['warn', state];

/** Returns the state, with details of it if there are any, and the number of models with an open circuit. */
export function stateWords({ state, openModels }, details = '') {
  const count = openModels.length;
  const models = ['', ', 1 model open'][count] ?? ', ' + count + ' models open';
  return iconAndWords(state)[1] + details + models;
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
  ['Requests', 'number', ({ requests }) => requests],
  ['Failed', 'number', ({ failed }) => failed],
];
const firstTokenColumns = [
  ['First token p50, ms', 'number', ({ firstTokenP50Ms }) => firstTokenP50Ms],
  ['p95, ms', 'number', ({ firstTokenP95Ms }) => firstTokenP95Ms],
];
const tokenColumns = [
  ['Input tokens', 'number', ({ inputTokens }) => inputTokens],
  ['Output tokens', 'number', ({ outputTokens }) => outputTokens],
];
/** By the name of its items: the heading, unless the document has it, the caption, and the columns. */
const TABLES = {
  providers: [
    '',
    'Providers since the start',
    [
      ['Provider', '', ({ id }) => id],
      ['State', 'wrap', stateCell],
      ['Tries', 'number', ({ requests }) => requests],
      ['Errors', 'wrap', errorsText],
      ...firstTokenColumns,
      ...tokenColumns,
      ['Last error', 'wrap', lastErrorCell],
    ],
  ],
  models: [
    'Models',
    'Models and aliases since the start',
    [
      ['Model', '', ({ name }) => name],
      ['Provider', '', ({ provider }) => provider],
      ...requestColumns,
      ...firstTokenColumns,
      ...tokenColumns,
    ],
  ],
  clients: [
    'Clients',
    'Clients since the start',
    [['Client', '', ({ name }) => name], ...requestColumns, ...tokenColumns],
  ],
  settings: [
    '',
    'Settings in force, keys masked',
    [
      ['Setting', '', ([name]) => name],
      ['Value', 'wrap', ([, value]) => valueText(value)],
    ],
  ],
};

/** Draws the tables of providers, models, clients and settings. */
export function drawTables(state) {
  for (const [name, [title, caption, columns]] of Object.entries(TABLES)) {
    const rows = state[name].map((item) => tableRow(columns, item, state.now));
    fill(
      name + '-section',
      rows.length > 0 && [title && h('h2', title), table(name, caption, columns, rows)],
    );
  }
  const isAny = state.providers.some((provider) => provider.state !== 'skipped');
  byId('providers-empty').toggleAttribute('hidden', isAny);
}

/**
 * Figures of the process: id, name, and the value in the state event, if it is known.
 * @type {[id: string, name: string, valueOf: (state: any) => number | undefined][]}
 */
const FIGURES = [
  ['cpu', 'CPU, %', ({ cpuPercent }) => cpuPercent],
  ['memory', 'Memory, MB', ({ process }) => Math.round(process.rssBytes / 1e6)],
  ['loop-delay', 'Event loop delay p99, ms', ({ process }) => process.loopDelayP99Ms],
  ['buffered', 'Buffered, MB', ({ bufferedBytes }) => bufferedBytes / 1e6],
  ['connections-open', 'Connections open', ({ connections }) => connections?.open],
  ['connections-made', 'Connections made', ({ connections }) => connections?.made],
  ['connections-reused', 'Connections reused', ({ connections }) => connections?.reused],
  ['dropped', 'Log lines dropped', ({ droppedLogLines }) => droppedLogLines],
];

/** Draws the figures of the process. */
export function drawProcess(state) {
  const figures = FIGURES.map(([id, name, valueOf]) =>
    h('div', h('dt', name), h('dd', { id }, formatNumber(valueOf(state)))),
  );
  fill('process', figures);
}

/** Returns the use of the CPU between two state events; undefined without a first. */
export function cpuPercentSince(before, { now, process }) {
  const passedMs = before ? Date.parse(now) - Date.parse(before.now) : 0;
  if (passedMs <= 0) return undefined;
  return Math.round((100_000 * (process.cpuSeconds - before.process.cpuSeconds)) / passedMs);
}
