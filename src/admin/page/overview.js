/** Tiles with charts, and the tables of providers, models, clients and settings. */

import {
  byId,
  clip,
  drawTable,
  fill,
  formatDuration,
  formatNumber,
  formatTime,
  h,
  valueText,
  withIcon,
} from './dom.js';
import { statesOf } from './incidents.js';
import { figuresOf, judge, servedOf } from './verdict.js';

const CHART_HEIGHT = 32;
const STEPS = 90;
const STEP_MS = 10_000;

/** Describes a figure, a note, and a chart: a bar for what each step has of this name. */
function tile({ step, steps }, { name, title, value, note, kind = '' }) {
  const id = 'tile-' + name;
  const first = step - STEPS + 1;
  const values = Array.from({ length: STEPS }, (_, at) => steps[first + at]?.[name] ?? 0);
  const highest = Math.max(...values);
  const scale = CHART_HEIGHT / (highest || 1);
  const bars = values.map((one, x) => one > 0 && `M${x} 0V${(one * scale).toFixed(1)}`);
  // The bars of the first and the last step are whole.
  const size = { viewBox: `-1 0 ${STEPS + 1} ${CHART_HEIGHT}`, preserveAspectRatio: 'none' };
  const path = h('path', { id: id + '-bars', d: bars.filter(Boolean).join('') });
  const times = [first, step].map((at) => h('span', formatTime(STEP_MS * at).slice(0, 5)));
  return h(
    'div.box.tile',
    h('dt', title),
    h('dd.value.' + kind, { id }, formatNumber(value)),
    h('dd.note', { id: id + '-note' }, note),
    h(
      'dd.chart',
      h('div', { id: id + '-scale' }, 'highest ' + formatNumber(highest)),
      h('svg', { 'aria-hidden': 'true', ...size }, path),
      h('div.axis', { 'aria-hidden': 'true' }, times),
    ),
  );
}

/** Draws the tiles. */
export function drawTiles(state) {
  const { all, figures, minute } = state;
  const { requests = 0, failed = 0, limited = 0 } = minute;
  const inFlight = formatNumber(figures.gateway_requests_in_flight) + ' in flight';
  const refused =
    limited > 0 && ', ' + formatNumber(limited) + ' more refused by limits of clients';
  const ofAll = ['of ' + formatNumber(servedOf(minute)), refused].filter(Boolean).join('');
  const kind = judge(minute).end === 'failed' ? 'warn' : '';
  const tail = all.p95 ? 'p95 ' + formatNumber(all.p95) + ', 15 minutes' : 'none yet';
  const tiles = [
    { name: 'requests', title: 'Requests, last minute', value: requests, note: inFlight },
    { name: 'failed', title: 'Failed, last minute', value: failed, note: ofAll, kind },
    { name: 'p50', title: 'First token p50, ms', value: all.p50, note: tail },
  ];
  fill(
    'tiles',
    tiles.map((one) => tile(state, one)),
  );
}

/** The state now: incidents, or what the last minute was like. */
function stateCell({ asOf, states, skipped, requests, minute = {}, keptAway = [] }) {
  const judged = judge(minute);
  const notAsked = requests > 0 ? 'Not asked in the last minute' : 'Not asked';
  const quiet = [judged.kind, judged.kind === 'good' ? 'Good' : notAsked];
  const usual = skipped === undefined ? quiet : ['off', 'Skipped'];
  const figures = judged.kind === 'warn' && [['warn', figuresOf(judged)]];
  const told = states.length > 0 ? states : figures || [usual];
  const shown = told.map(([kind, text]) =>
    h('div', asOf ? withIcon('off', 'as of ' + asOf + ': ' + text) : withIcon(kind, text)),
  );
  const away = keptAway.map(({ model, until }) =>
    [model && clip(model), 'kept away until ' + formatTime(until)].filter(Boolean).join(' '),
  );
  const period = told === figures && 'last minute';
  return [shown, period, skipped, ...away];
}

/** The oldest request is of interest once it is old. */
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

/** Colour is for what has failed. */
const failedCell = ({ failed }) => failed && h('span.warn', formatNumber(failed));

/** The end of a request; together with those that are `ok` they are all. */
const endColumns = [
  ['Failed', 'number', failedCell],
  ['Rejected', 'number', 'rejected'],
  ['Client left', 'number rest', 'client_closed'],
];
const firstTokenColumns = [
  ['First token p50, ms', 'number rest', 'p50'],
  ['p95, ms', 'number rest', 'p95'],
];
/** By the names of the tables. */
const COLUMNS = {
  Providers: [
    ['Provider', '', 'id'],
    ['State now', 'wrap', stateCell],
    ['In flight', 'number', inFlightCell],
    ['Tries', 'number', 'requests'],
    ...endColumns,
    ...firstTokenColumns,
  ],
  Models: [
    ['Model', '', 'id'],
    ['Requests', 'number', 'requests'],
    ...endColumns,
    ...firstTokenColumns,
  ],
  Clients: [
    ['Client', '', 'id'],
    ['Requests', 'number', 'requests'],
    ...endColumns,
    ['Over its limit', 'number rest', 'limited'],
    ['Limits used', 'wrap rest', limitsCell],
  ],
};
const SETTING_COLUMNS = [
  ['Setting', '', ([name]) => name],
  ['Value', 'wrap', ([, value]) => valueText(value)],
];

/** Those that fail come first, then those with the most requests. */
const rankOf = ({ failed, skipped, states }) => {
  if (skipped !== undefined) return 2;
  return failed > 0 || states.length > 0 ? 0 : 1;
};

/** Draws the tables of providers, models, clients and settings. */
export function drawTables(state) {
  for (const [title, columns] of Object.entries(COLUMNS)) {
    const name = title.toLowerCase();
    const rows = Object.entries(state[name]).map(([id, row]) => {
      const states = name === 'providers' ? statesOf(id, state) : [];
      return { id, ...row, states, asOf: state.asOf };
    });
    const sorted = rows.toSorted(
      (a, b) =>
        rankOf(a) - rankOf(b) || (b.requests ?? 0) - (a.requests ?? 0) || a.id.localeCompare(b.id),
    );
    drawTable({ id: name, title, note: 'the last 15 minutes', columns }, sorted);
  }
  const named = { id: 'settings', title: 'Settings in force', note: 'keys masked' };
  drawTable({ ...named, columns: SETTING_COLUMNS }, state.settings.settings);
  const isAny = Object.values(state.providers).some(({ skipped }) => skipped === undefined);
  byId('providers-empty').toggleAttribute('hidden', isAny);
}
