/** Receives the feed, connects again, and draws the page. */

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
import { drawIncidents, goesOn, lastingOf, phraseOf } from './incidents.js';
import { drawCharts } from './charts.js';
import { drawTables } from './overview.js';
import { drawRequests, forgetRequests } from './requests.js';
import { drawVerdict } from './verdict.js';

const RETRY_MS = 2000;
const MAX_SILENCE_MS = 15_000;
/** Matches the colour in the address of the tab's icon. */
const ICON_COLOUR = /%23\w{6}/;
/** The colours of the tab's icon with and without a connection. */
const ICON_COLOURS = ['%234a7dff', '%23868e9c'];

/** @type {EventSource} */
let source;
/** The gateway's view, made of all merge patches so far. @type {any} */
let state = null;
/** Undefined before the first connection. @type {boolean | undefined} */
let isConnected;
/** When the latest event came, on the clock of `performance.now()`. */
let receivedAtMs = 0;
let isScheduled = false;
let timer = 0;

/**
 * Draws the page with the next frame, and the tab at once, because a hidden page has no frames.
 */
function schedule() {
  drawTab();
  if (!isScheduled) requestAnimationFrame(draw);
  isScheduled = true;
}

const hostName = () => (state === null ? 'inference-gateway' : state.settings.host);

/** Draws the tab's title and icon. Without a connection the page loses its colours. */
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
  // Without a connection, states are shown with their time, and ages stand still.
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

/** Announces begun and ended incidents to screen readers, but no figures. */
function announce(next) {
  const [former, latest] = [state ?? next, next].map(lastingOf);
  const known = former.map(phraseOf);
  const begun = latest.map(phraseOf).filter((text) => !known.includes(text));
  const ended = former.filter((one) => !goesOn(one, latest));
  const over = ended.map((one) => 'Over: ' + phraseOf(one));
  const said = [...begun, ...over].join('. ');
  if (said) byId('announcement').textContent = visible(said);
}

/**
 * Returns the CPU use between two states, where 100 is a whole core; undefined without `before`.
 */
function cpuPercentOf(before, { now, figures }) {
  const passedMs = before ? Date.parse(now) - Date.parse(before.now) : 0;
  const seconds = figures.process_cpu_seconds_total - before?.figures.process_cpu_seconds_total;
  return passedMs > 0 ? Math.round((100_000 * seconds) / passedMs) : undefined;
}

const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);

/** Applies a JSON merge patch (RFC 7396). Unchanged parts stay the same objects. */
function merge(before, patch) {
  if (!isObject(patch)) return patch;
  const old = isObject(before) ? before : {};
  const entries = Object.entries({ ...old, ...patch }).map(([name, value]) => {
    return [name, Object.hasOwn(patch, name) ? merge(old[name], value) : value];
  });
  return Object.fromEntries(entries.filter(([, value]) => value !== null));
}

/** Takes a patch. A connection's first patch is the whole view. */
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

/** Calls `act` after a delay. Replaces the former call that is still due. */
function after(ms, act) {
  clearTimeout(timer);
  timer = setTimeout(() => act(), ms);
}

function connect() {
  // A relative URL, because a proxy may serve the page below a path.
  source = new EventSource('events');
  source.addEventListener('message', ({ data }) => {
    after(MAX_SILENCE_MS, reconnect);
    take(JSON.parse(data));
    schedule();
  });
  source.addEventListener('error', reconnect);
  // A connection can break unnoticed, for example while a computer sleeps.
  after(MAX_SILENCE_MS, reconnect);
}

/** Connects again after a delay, because browsers give up after an HTTP error. */
function reconnect() {
  source.close();
  isConnected = false;
  schedule();
  after(RETRY_MS, connect);
}

// These listeners run after those of the elements, so that their changes are drawn.
for (const name of ['click', 'input']) document.addEventListener(name, schedule);
schedule();
connect();
