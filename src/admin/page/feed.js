/** Receives the feed, connects again, and draws the page. */

import { byId, fill, h, withIcon } from './dom.js';
import { formatTime, setToday, visible } from './text.js';
import { drawCharts } from './charts.js';
import { drawTables } from './overview.js';
import { connectFilter, drawRequests, forgetRequests } from './requests.js';
import { drawStatus, lastingOf } from './status.js';

const RETRY_MS = 2000;
const MAX_SILENCE_MS = 15_000;
/** @type {EventSource} */
let source;
/** The gateway's view, made of all merge patches so far. @type {any} */
let state = null;
/** Undefined before the first connection. @type {boolean | undefined} */
let isConnected;
/** Why the gateway refuses a feed. @type {string | undefined} */
let reason;
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

/** Draws the tab's title. Without a connection the page loses its colours. */
function drawTab() {
  const isLost = isConnected === false;
  document.documentElement.classList.toggle('lost', isLost);
  const count = state === null ? 0 : lastingOf(state).length;
  const mark = isLost ? '– ' : count > 0 && '(' + count + ') ';
  const title = [mark, hostName()].filter(Boolean).join('');
  if (document.title !== title) document.title = title;
}

function draw() {
  isScheduled = false;
  fill('connection', describeConnection());
  fill('host', hostName());
  if (state === null) return;
  setToday(state.now);
  const about = 'inference-gateway ' + state.settings.version;
  fill('about', about, h('span.wide', ' · ' + state.figures.about));
  // Without a connection, states are shown with their time, and ages stand still.
  const silentMs = isConnected ? 0 : performance.now() - receivedAtMs;
  const shown = isConnected ? state : { ...state, asOf: formatTime(state.now), reason, silentMs };
  drawStatus(shown);
  drawCharts(shown);
  drawTables(shown);
  drawRequests(state);
}

function describeConnection() {
  if (state === null) {
    const lost = reason ?? 'Connection lost, retrying.';
    return isConnected === false ? withIcon('off', lost) : 'Connecting';
  }
  if (!isConnected) return withIcon('off', 'No data since ' + formatTime(state.now));
  return state.draining ? withIcon('warn', 'Draining, before it stops') : withIcon('good', 'Live');
}

/** Announces begun and ended incidents to screen readers, but no figures. */
function announce(next) {
  const [former, latest] = [state ?? next, next].map(lastingOf);
  const titleOf = ({ subject, title }) => subject + ': ' + title;
  const known = former.map(titleOf);
  const begun = latest.map(titleOf).filter((title) => !known.includes(title));
  const ended = former.filter(({ id }) => !latest.some((one) => one.id === id));
  const said = [...begun, ...ended.map((one) => 'Over: ' + titleOf(one))].join('. ');
  if (said) byId('announcement').textContent = visible(said);
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
  state = next;
  isConnected = true;
  reason = undefined;
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
  source.addEventListener('error', () => {
    // Browsers give up after an HTTP error, which only another request shows.
    if (source.readyState === EventSource.CLOSED) void askWhy();
    reconnect();
  });
  // A connection can break unnoticed, for example while a computer sleeps.
  after(MAX_SILENCE_MS, reconnect);
}

/** Asks why the gateway refuses a feed: eight others may be open. */
async function askWhy() {
  const control = new AbortController();
  const answer = await fetch('events', control).catch(() => undefined);
  const json = answer?.ok === false ? await answer.json().catch(() => undefined) : undefined;
  control.abort();
  reason = json?.error?.message;
  schedule();
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
connectFilter();
schedule();
connect();
