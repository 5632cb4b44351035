/** The tables of providers, models, clients and settings. */

import {
  byId,
  clip,
  drawTable,
  fill,
  formatDuration,
  formatNumber,
  formatShare,
  formatShort,
  formatTime,
  h,
  msText,
  shareBar,
  valueText,
  withIcon,
} from './dom.js';
import { STEPS, timesOf } from './charts.js';
import { awayText, iconOfAffected, statesOf } from './incidents.js';
import { FAILED_SHARE, figuresOf, judge, servedOf } from './verdict.js';

/** The age of the oldest request is shown from here on. */
const OLD_SECONDS = 5;

/** Returns the icon and the words of a provider's state: its incidents, or its last minute. */
function stateOf({ skipped, states, requests, minute = {}, since }) {
  if (skipped !== undefined) return [['off', 'Skipped', skipped]];
  if (states.length > 0) return states;
  const judged = judge(minute);
  if (judged.kind === 'warn') return [['warn', figuresOf(judged), 'last minute']];
  if (judged.kind === 'good') return [['good', 'Good']];
  return [['off', 'Not asked', requests > 0 && since && 'since ' + since]];
}

/** Describes a state, with open circuits, or for a good state with its latest incident. */
function stateCell({ asOf, told, keptAway = [], ended }) {
  const away = keptAway.map(awayText);
  const details = told.map(([, , detail]) => detail);
  const isGood = told[0][0] === 'good';
  const former =
    isGood && ended && formatNumber(ended.failed) + ' failed until ' + formatTime(ended.at);
  return [
    told.map(([kind, text]) =>
      asOf ? withIcon('off', 'as of ' + asOf + ': ' + text) : withIcon(kind, text),
    ),
    [...details, ...away, former]
      .filter(Boolean)
      .map((text) => h('small', h('span', ' · '), clip(text))),
  ];
}

const inFlightCell = ({ inFlight, oldestSeconds: seconds }) =>
  seconds >= OLD_SECONDS
    ? [formatNumber(inFlight), h('small', ' oldest ' + formatDuration(1000 * seconds))]
    : inFlight;

/** Describes failures. Only a row that fails now is coloured. */
function failedCell(row) {
  const { failed, kind } = row;
  if (!failed) return undefined;
  const share = h('small.share', formatShare(failed, servedOf(row)));
  return [h('span.' + (kind ?? ''), formatNumber(failed)), ' ', share];
}

const limitsCell = ({ limits = [], overLimit }) =>
  limits.map(({ limit, unit, used, capacity }) => {
    const name = limit.replace('client_', '');
    const isRefused = overLimit?.limited > 0 && overLimit.limit.includes(name);
    const kind = isRefused || used >= capacity ? 'warn' : 'bar';
    return h(
      'span.limit',
      unit,
      ' ',
      shareBar([kind, Math.min(1, used / capacity)]),
      h('span.' + kind, ' ' + formatShort(used) + ' of ' + formatShort(capacity)),
    );
  });

/** Describes connect time, first token and p95 as a bar on the slowest provider's scale. */
function timesCell({ connect = 0, p50, p95, slowest }) {
  if (p50 === undefined) return undefined;
  const at = (ms) => ((100 * Math.min(ms, slowest)) / slowest).toFixed(1) + '%';
  const whisker = (x1, x2, y1, y2) => h('line', { x1: at(x1), x2: at(x2), y1, y2 });
  return h(
    'svg.times',
    { 'aria-hidden': 'true' },
    whisker(p50, p95, 5, 5),
    whisker(p95, p95, 2, 8),
    h('rect.bar', { width: at(p50), y: 2, height: 6 }),
    h('rect.connect', { width: at(connect), y: 2, height: 6 }),
  );
}

/** Describes a model, marked if the settings name it and its provider does not know it. */
const modelCell = ({ id, unknownTo }) =>
  unknownTo === undefined
    ? clip(id)
    : [withIcon('bad', clip(id)), h('small', ' 404 of ' + clip(unknownTo))];

const timeColumns = [
  ['First token', 'number time p50', ({ p50 }) => msText(p50)],
  ['p95', 'number time p95', ({ p95 }) => msText(p95)],
];
/** How requests ended without an answer. */
const endColumns = [
  ['Failed', 'number', failedCell],
  ['Rejected', 'number', 'rejected'],
  ['Client left', 'number', 'client_closed'],
];
const TABLES = {
  Providers: {
    note: 'the last 15 minutes',
    columns: [
      ['Provider', 'id', 'id'],
      ['State now', 'state', stateCell],
      ['Tries', 'number', 'requests'],
      ...endColumns,
      ['In flight', 'number', inFlightCell],
      ['Connect', 'number time connect', ({ connect }) => msText(connect)],
      ...timeColumns,
      ['On one scale', 'fill', timesCell],
    ],
  },
  Models: {
    note: 'as clients name them',
    columns: [
      ['Model', 'id', modelCell],
      ['Requests', 'number', 'requests'],
      ...endColumns,
      ...timeColumns,
    ],
  },
  Clients: {
    note: 'and what they have used of their limits',
    columns: [
      ['Client', 'id', 'id'],
      ['Requests', 'number', 'requests'],
      ...endColumns,
      ['Refused', 'number', ({ limited }) => limited && h('span.warn', formatNumber(limited))],
      ['Limits used', 'limits', limitsCell],
    ],
  },
};
const SETTING_COLUMNS = [
  ['Setting', '', ([name]) => name],
  ['Value', 'wrap', ([, value]) => valueText(value)],
];

/**
 * Returns the providers that do not know a model of the settings, by the model's name for clients.
 */
function unknownModels({ requests }) {
  const unknown = new Map();
  for (const { model, tries = [] } of Object.values(requests)) {
    const of404 = tries.find((one) => one.status === 404 && one.outcome === 'upstream_error');
    if (of404) unknown.set(model, of404.provider);
    else if (tries.at(-1)?.outcome === 'ok') unknown.delete(model);
  }
  return unknown;
}

/** Returns the parts of a provider's row beside its figures. */
function providerRow(id, row, state, times) {
  const states = statesOf(id, state);
  const since = times[row.latest - state.step + STEPS - 1];
  const told = stateOf({ ...row, states, since: since && formatTime(since) });
  const former = state.incidents.find(({ provider, ended }) => provider === id && ended);
  const failed = former?.affected.reduce((sum, one) => sum + one.failed, 0);
  const kind = ['bad', 'warn'].find((one) => told.some(([own]) => own === one));
  const ended = failed > 0 ? { failed, at: former.ended } : undefined;
  return { told, ended, kind, asOf: state.asOf };
}

/** Returns a row's rank: failing rows first, skipped providers last. */
const rankOf = ({ kind, skipped, isMuch, unknownTo }) => {
  if (skipped !== undefined) return 2;
  return kind || isMuch || unknownTo ? 0 : 1;
};

/** Draws the tables of providers, models, clients and settings. */
export function drawTables(state) {
  const times = timesOf(state, state.step - STEPS + 1);
  const unknown = unknownModels(state);
  const slowest = Math.max(1, ...Object.values(state.providers).map(({ p95 = 0 }) => p95));
  const isFailing = judge(state.minute).end === 'failed';
  const marksOf = (icon, row) => {
    const isMuch = row.failed >= FAILED_SHARE * servedOf(row);
    return { kind: icon ?? (isFailing && isMuch ? 'warn' : undefined), isMuch };
  };
  const more = {
    Providers: (id, row) => providerRow(id, row, state, times),
    Models: (id, row) => {
      return { ...marksOf(iconOfAffected(state, id, undefined), row), unknownTo: unknown.get(id) };
    },
    Clients: (id, row) => marksOf(iconOfAffected(state, undefined, id), row),
  };
  for (const [title, { note, columns }] of Object.entries(TABLES)) {
    const name = title.toLowerCase();
    const rows = Object.entries(state[name]).map(([id, row]) => {
      return { id, ...row, slowest, ...more[title](id, row) };
    });
    const sorted = rows.toSorted(
      (a, b) =>
        rankOf(a) - rankOf(b) || (b.requests ?? 0) - (a.requests ?? 0) || a.id.localeCompare(b.id),
    );
    drawTable({ id: name, title, note, columns }, sorted);
  }
  const named = { id: 'settings', title: 'Settings', note: 'in force, keys masked', few: 0 };
  drawTable({ ...named, columns: SETTING_COLUMNS }, state.settings.settings);
  const isAny = Object.values(state.providers).some(({ skipped }) => skipped === undefined);
  byId('providers-empty').toggleAttribute('hidden', isAny);
  fill(
    'warnings',
    state.settings.warnings.map((text) => h('li.icon.warn', clip(text))),
  );
}
