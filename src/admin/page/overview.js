/** Providers, models, clients, process and settings. */

import {
  byId,
  clip,
  drawRows,
  formatDay,
  formatDuration,
  formatNumber,
  isNew,
  make,
  setHidden,
  setText,
} from './dom.js';

const latencyAndTokens = (row) => [
  row.firstTokenP50Ms,
  row.firstTokenP95Ms,
  row.inputTokens,
  row.outputTokens,
];
/** Icon and words of each state. A state without an entry is shown by its own name. */
const STATES = new Map([
  ['good', ['good', 'Good']],
  ['failing', ['bad', 'Failing']],
  ['resting', ['rest', 'Resting']],
  ['half-open', ['half', 'Half-open']],
  ['skipped', ['skip', 'Skipped']],
]);
const iconAndWords = (state) => STATES.get(state) ?? ['warn', state];

/** Models rest on their own if the provider is reached but answers with errors. */
export const restingModels = ({ resting }) => resting.filter(({ model }) => model !== null);

/** The state, with details of it if there are any, and the number of resting models. */
export function stateWords(provider, details = '') {
  const [, words] = iconAndWords(provider.state);
  const count = restingModels(provider).length;
  const models = ['', ', 1 model rests'][count] ?? ', ' + count + ' models rest';
  return words + details + models;
}

function stateCell(provider, now) {
  const remaining = (until) => formatDuration(Date.parse(until) - Date.parse(now)) + ' left';
  const models = restingModels(provider).map(
    ({ model, until, why }) =>
      clip(model) + ' rests, ' + remaining(until) + (why ? ': ' + why : ''),
  );
  const [name] = iconAndWords(provider.state);
  const lines = [provider.why, ...models].filter((line) => line);
  if (name === 'half') lines.unshift('The next request tests it.');
  const since = provider.since ? ' since ' + formatDay(provider.since, now) : '';
  const rest = provider.restsUntil ? ', ' + remaining(provider.restsUntil) : '';
  return {
    icon: name === 'good' && models.length > 0 ? 'warn' : name,
    text: stateWords(provider, since + rest),
    lines,
  };
}

function errorCell(errors) {
  const counts = Object.entries(errors).filter(([, count]) => count > 0);
  return counts.map(([kind, count]) => kind + ' ' + formatNumber(count)).join(' · ');
}

export function drawProviders({ providers, now }) {
  setHidden(
    'providers-empty',
    providers.some(({ state }) => state !== 'skipped'),
  );
  setHidden('providers-box', providers.length === 0);
  const rows = providers.map((provider) => [
    provider.id,
    stateCell(provider, now),
    provider.requests,
    errorCell(provider.errors),
    ...latencyAndTokens(provider),
    provider.lastError && {
      icon: '',
      text: formatDay(provider.lastError.at, now),
      lines: [provider.lastError.text],
    },
  ]);
  drawRows(byId('providers'), rows);
}

export function drawModels({ models, clients }) {
  setHidden('models-section', models.length === 0);
  const rows = models.map((model) => [
    model.name,
    model.provider,
    model.requests,
    model.failed,
    ...latencyAndTokens(model),
  ]);
  drawRows(byId('models'), rows);

  setHidden('clients-section', clients.length === 0);
  const clientRows = clients.map((client) => [
    client.name,
    client.requests,
    client.failed,
    client.inputTokens,
    client.outputTokens,
  ]);
  drawRows(byId('clients'), clientRows);
}

/** The state event before: the CPU's use is the difference. @type {any} */
let earlier = null;

export function forgetProcess() {
  earlier = null;
}

export function drawProcess(state) {
  const { connections, process, now } = state;
  const passedMs = earlier ? Date.parse(now) - Date.parse(earlier.now) : 0;
  if (passedMs > 0) {
    const usedMs = 1000 * (process.cpuSeconds - earlier.process.cpuSeconds);
    setText('cpu', formatNumber(Math.round((100 * usedMs) / passedMs)));
  }
  if (earlier !== state) earlier = state;
  setText('memory', formatNumber(Math.round(process.rssBytes / 1e6)));
  setText('loop-delay', formatNumber(process.loopDelayP99Ms));
  setText('buffered', formatNumber(state.bufferedBytes / 1e6));
  setText('dropped', formatNumber(state.droppedLogLines));
  for (const name of ['open', 'made', 'reused']) {
    setText('connections-' + name, connections ? formatNumber(connections[name]) : 'not known');
  }
}

export function valueText(value) {
  return typeof value === 'string' ? value : JSON.stringify(value);
}

export function drawSettings(settings, now) {
  const upMs = Date.parse(now) - Date.parse(settings.startedAt);
  const about = [
    settings.version,
    'Node ' + settings.node.replace(/^v/, ''),
    'up ' + formatDuration(upMs),
  ];
  setText('about', about.join(' · '));
  setText('settings-count', settings.settings.length + ' settings in force');
  const rows = settings.settings.map(([name, value]) => [name, valueText(value)]);
  drawRows(byId('settings'), rows);
  setHidden('warnings', settings.warnings.length === 0);
  if (isNew(byId('warnings'), settings.warnings)) {
    byId('warnings').replaceChildren(
      ...settings.warnings.map((text) => make('li', 'warn', clip(text))),
    );
  }
}
