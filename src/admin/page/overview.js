/** The tables of providers, models, clients and settings. */

import { byId, drawTable, fill, h, shareBar, withIcon } from './dom.js';
import { formatNumber, say, valueText } from './text.js';
import { chainText } from './requests.js';

/** The kinds of minutes, and how high each is in the row of minutes. */
const MINUTES = { '.': ['rest', 2], g: ['bar', 6], w: ['warn', 8], b: ['bad', 10] };

/** Describes a provider's states and their details. */
const stateCell = ({ asOf, details, states }) => [
  states.map(([icon, text]) =>
    asOf ? withIcon('off', 'as of ' + asOf + ': ' + text) : withIcon(icon, text),
  ),
  details.map((text) => h('small', h('span', ' · '), say(text))),
];

/** Describes the last minutes, each by how many of its tries failed. */
function minutesCell({ minutes }) {
  if (!minutes) return undefined;
  const failed = minutes.replace(/[.g]/g, '').length;
  const label = 'failures in ' + failed + ' of ' + minutes.length + ' minutes';
  const cells = [...minutes].map((one, at) => {
    const [name, height] = MINUTES[one];
    return h('rect.' + name, { x: 8 * at, y: 10 - height, width: 6, height });
  });
  return h('svg.minutes', { role: 'img', 'aria-label': label }, cells);
}

const msCell = (name) => (row) =>
  row[name] !== undefined && [formatNumber(row[name]), h('small', ' ms')];

/** Describes failures. Only a row that fails now is coloured. */
function failedCell({ failed, limited = 0, mark = '', requests }) {
  if (!failed) return undefined;
  const share = ((100 * failed) / (requests - limited)).toFixed(1) + ' %';
  return [h('span.' + mark, formatNumber(failed)), ' ', h('small.share', share)];
}

const limitsCell = ({ limits = [] }) =>
  limits.map(({ icon, share, text, unit }) => {
    const bar = unit && [unit + ' ', shareBar([icon, share]), ' '];
    return h('span.limit', bar, h('span.' + icon, text));
  });

/** Describes a model, marked if the settings name it and its provider does not know it. */
const modelCell = ({ id, unknownTo }) =>
  unknownTo === undefined ? id : [withIcon('bad', id), h('small', ' 404 of ' + unknownTo)];

/** How requests ended without an answer. */
const ENDS = [
  ['Failed', 'number', failedCell],
  ['Rejected', 'number', 'rejected'],
  ['Client left', 'number', 'client_closed'],
];
const TIMES = [
  ['First token', 'number', msCell('p50')],
  ['p95', 'number', msCell('p95')],
];
const REQUESTS = ['Requests', 'number', 'requests'];
const providers = [
  ['Provider', 'id', 'id'],
  ['State now', 'state', stateCell],
  ['Minutes', '', minutesCell],
  ['Tries', 'number', 'requests'],
  ...ENDS,
  ['In flight', 'number flight', 'inFlight'],
  ['Connect', 'number', msCell('connect')],
  ...TIMES,
];
const models = [
  ['Model', 'id', modelCell],
  REQUESTS,
  ...ENDS,
  ...TIMES,
  ['Asks', 'chain', ({ chain }) => chain && chainText(chain)],
];
const clients = [
  ['Client', 'id', 'id'],
  REQUESTS,
  ...ENDS,
  ['Refused', 'number', ({ limited }) => limited && h('span.warn', formatNumber(limited))],
  ['Limits used', 'limits', limitsCell],
];
const settings = [
  ['Setting', '', ([name]) => name],
  ['Value', 'wrap', ([, value]) => valueText(value)],
];
const TABLES = [
  { id: 'providers', title: 'Providers', note: 'the last 15 minutes', columns: providers },
  { id: 'models', title: 'Models', note: 'as clients name them', columns: models },
  { id: 'clients', title: 'Clients', note: 'and their limits', columns: clients },
];
const SETTINGS = { id: 'settings', title: 'Settings', note: 'in force, keys masked', few: 0 };

const compare = (a, b) =>
  a.rank - b.rank || (b.requests ?? 0) - (a.requests ?? 0) || a.id.localeCompare(b.id);

/** Draws the tables of providers, models, clients and settings. */
export function drawTables(state) {
  for (const table of TABLES) {
    const rows = Object.entries(state[table.id]).map(([id, row]) => {
      return { id, ...row, asOf: state.asOf };
    });
    drawTable(table, rows.toSorted(compare));
  }
  drawTable({ ...SETTINGS, columns: settings }, state.settings.settings);
  const isAny = Object.values(state.providers).some(({ skipped }) => !skipped);
  byId('providers-empty').toggleAttribute('hidden', isAny);
  const warnings = state.settings.warnings.map((text) => h('li.icon.warn', text));
  fill('warnings', warnings);
}
