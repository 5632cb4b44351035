/** The feed and its reconnects. */

import {
  byId,
  clip,
  fill,
  formatDuration,
  formatNumber,
  formatTime,
  h,
  visible,
  withIcon,
} from './dom.js';
import { drawIncidents, lastingOf, phrasesOf } from './incidents.js';
import { drawCharts } from './charts.js';
import { drawTables } from './overview.js';
import { drawRequests, forgetRequests } from './requests.js';
import { drawVerdict } from './verdict.js';

const RETRY_MS = 2000;
const MAX_SILENCE_MS = 15_000;
/** The colour of the tab's icon, as it stands in its address: live, and without a connection. */
const ICON_COLOUR = /%23\w{6}/;
const ICON_COLOURS = ['%234a7dff', '%23868e9c'];

/** @type {EventSource} */
let source;
/** The gateway's view: its merge patches so far, applied. @type {any} */
let state = null;
/** Undefined before the first. @type {boolean | undefined} */
let isConnected;
/** When the latest event came, on the clock of `performance.now()`. */
let receivedAtMs = 0;
let isScheduled = false;
let timer = 0;

/**
 * Draws once for all that happens until the next frame. A hidden page has no frames, but its tab is
 * seen.
 */
function schedule() {
  drawTab();
  if (!isScheduled) requestAnimationFrame(draw);
  isScheduled = true;
}

const hostName = () => (state === null ? 'inference-gateway' : state.settings.host);

/** Draws the tab's title and icon, and takes the colour from the page without a connection. */
function drawTab() {
  const isLost = isConnected === false;
  document.documentElement.classList.toggle('lost', isLost);
  const icon = byId('icon');
  const href = icon.href.replace(ICON_COLOUR, ICON_COLOURS[Number(isLost)]);
  if (icon.href !== href) icon.href = href;
  const count = state === null ? 0 : lastingOf(state).length;
  const mark = isLost ? '– ' : count > 0 && '(' + count + ') ';
  const title = [mark, hostName()].filter(Boolean).join('');
  if (document.title !== title) document.title = title;
}

function draw() {
  isScheduled = false;
  fill('connection', describeConnection());
  fill('host', clip(hostName()));
  if (state === null) return;
  const { version, node } = state.settings;
  const { cpu_percent: cpu, process_resident_memory_bytes: bytes } = state.figures;
  const up = 'up ' + formatDuration(1000 * state.figures.process_up_seconds, true);
  const load = cpu !== undefined && 'CPU ' + cpu + ' %';
  const memory = bytes && formatNumber(Math.round(bytes / 1e6)) + ' MB';
  const more = ['Node ' + node, up, load, memory].filter(Boolean).map((text) => ' · ' + text);
  fill('about', 'inference-gateway ' + version, h('span.wide', more.join('')));
  // Without a connection each state says of when it is, and ages stand still.
  const silentMs = isConnected ? 0 : performance.now() - receivedAtMs;
  const shown = isConnected ? state : { ...state, asOf: formatTime(state.now), silentMs };
  drawVerdict(shown);
  drawIncidents(shown);
  drawCharts(shown);
  drawTables(shown);
  drawRequests(state);
}

function describeConnection() {
  if (state === null) {
    return isConnected === false ? withIcon('off', 'Connection lost, retrying.') : 'Connecting';
  }
  if (!isConnected) return withIcon('off', 'No data since ' + formatTime(state.now));
  return state.draining ? withIcon('warn', 'Draining, before it stops') : withIcon('good', 'Live');
}

/** Tells screen readers which incidents have begun and ended, never figures. */
function announce(next) {
  const [former, latest] = [state ?? next, next].map(phrasesOf);
  const begun = latest.filter((text) => !former.includes(text));
  const over = former.filter((text) => !latest.includes(text)).map((text) => 'Over: ' + text);
  const said = [...begun, ...over].join('. ');
  if (said) byId('announcement').textContent = visible(said);
}

/**
 * Returns the use of the CPU between two states, of which 100 is one core; undefined without a
 * first.
 */
function cpuPercentOf(before, { now, figures }) {
  const passedMs = before ? Date.parse(now) - Date.parse(before.now) : 0;
  const seconds = figures.process_cpu_seconds_total - before?.figures.process_cpu_seconds_total;
  return passedMs > 0 ? Math.round((100_000 * seconds) / passedMs) : undefined;
}

const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);

/** Applies a JSON merge patch (RFC 7396). What it does not change stays the same object. */
function merge(before, patch) {
  if (!isObject(patch)) return patch;
  const old = isObject(before) ? before : {};
  const entries = Object.entries({ ...old, ...patch }).map(([name, value]) => {
    return [name, Object.hasOwn(patch, name) ? merge(old[name], value) : value];
  });
  return Object.fromEntries(entries.filter(([, value]) => value !== null));
}

/** The first patch of a connection is the whole view. */
function take(patch) {
  const next = merge(isConnected ? state : {}, patch);
  if (state !== null && state.settings.startedAt !== next.settings.startedAt) {
    forgetRequests();
    state = null;
  }
  announce(next);
  next.figures.cpu_percent = cpuPercentOf(state, next);
  state = next;
  isConnected = true;
  receivedAtMs = performance.now();
}

/** Does this after so long, and not what was to be done before. */
function after(ms, act) {
  clearTimeout(timer);
  timer = setTimeout(() => act(), ms);
}

function connect() {
  // Relative to the page, which may be below a path of a proxy.
  source = new EventSource('events');
  source.addEventListener('message', ({ data }) => {
    after(MAX_SILENCE_MS, reconnect);
    take(JSON.parse(data));
    schedule();
  });
  source.addEventListener('error', reconnect);
  // A connection can break unnoticed, as during the sleep of a computer.
  after(MAX_SILENCE_MS, reconnect);
}

/** After an HTTP error the browser itself does not connect again. */
function reconnect() {
  source.close();
  isConnected = false;
  schedule();
  after(RETRY_MS, connect);
}

// After the listeners of the elements: what they change is drawn.
for (const name of ['click', 'input']) document.addEventListener(name, schedule);
schedule();
connect();
