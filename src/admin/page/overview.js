/** Providers, models, clients, process and settings. */

import {
  addTable,
  byId,
  clip,
  formatDay,
  formatDuration,
  formatNumber,
  isNew,
  make,
  setHidden,
  setText,
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
  return {
    icon: name === 'good' && models.length > 0 ? 'warn' : name,
    text: stateWords(provider, since + rest),
    lines,
  };
}

function errorsText({ errors }) {
  const counts = Object.entries(errors).filter(([, count]) => count > 0);
  return counts.map(([kind, count]) => kind + ' ' + formatNumber(count)).join(' · ');
}

function lastErrorCell({ lastError }, now) {
  return lastError && { icon: '', text: formatDay(lastError.at, now), lines: [lastError.text] };
}

export function valueText(value) {
  return typeof value === 'string' ? value : JSON.stringify(value);
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
const providersTable = addTable('providers', 'Providers since the start', [
  ['Provider', '', ({ id }) => id],
  ['State', 'wrap', stateCell],
  ['Tries', 'number', ({ requests }) => requests],
  ['Errors', 'wrap', errorsText],
  ...firstTokenColumns,
  ...tokenColumns,
  ['Last error', 'wrap', lastErrorCell],
]);
const modelsTable = addTable('models', 'Models and aliases since the start', [
  ['Model', '', ({ name }) => name],
  ['Provider', '', ({ provider }) => provider],
  ...requestColumns,
  ...firstTokenColumns,
  ...tokenColumns,
]);
const clientsTable = addTable('clients', 'Clients since the start', [
  ['Client', '', ({ name }) => name],
  ...requestColumns,
  ...tokenColumns,
]);
const settingsTable = addTable('settings', 'Settings in force, keys masked', [
  ['Setting', '', ([name]) => name],
  ['Value', 'wrap', ([, value]) => valueText(value)],
]);

export function drawTables({ providers, models, clients, now }) {
  const isAny = providers.some(({ state }) => state !== 'skipped');
  setHidden('providers-empty', isAny);
  providersTable.box.toggleAttribute('hidden', providers.length === 0);
  setHidden('models-section', models.length === 0);
  setHidden('clients-section', clients.length === 0);
  providersTable.draw(providers, now);
  modelsTable.draw(models);
  clientsTable.draw(clients);
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
for (const [id, name] of FIGURES) {
  const value = make('dd', '', '–');
  value.id = id;
  byId('process').append(make('div', '', make('dt', '', name), value));
}

export function drawProcess(state) {
  for (const [id, , valueOf] of FIGURES) {
    const value = valueOf(state);
    setText(id, value === undefined ? '–' : formatNumber(value));
  }
}

/** Returns the use of the CPU between two state events; undefined without a first. */
export function cpuPercentSince(before, { now, process }) {
  const passedMs = before ? Date.parse(now) - Date.parse(before.now) : 0;
  if (passedMs <= 0) return undefined;
  return Math.round((100_000 * (process.cpuSeconds - before.process.cpuSeconds)) / passedMs);
}

export function drawSettings({ version, node, startedAt, settings, warnings }, now) {
  const up = 'up ' + formatDuration(Date.parse(now) - Date.parse(startedAt));
  setText('about', [version, 'Node ' + node.replace(/^v/, ''), up].join(' · '));
  setText('settings-count', settings.length + ' settings in force');
  settingsTable.draw(settings);
  setHidden('warnings', warnings.length === 0);
  if (isNew(byId('warnings'), warnings)) {
    byId('warnings').replaceChildren(...warnings.map((text) => make('li', 'warn', clip(text))));
  }
}
