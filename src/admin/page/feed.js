/** The feed and its reconnects. */

import { drawCards } from './charts.js';
import { byId, fill, h, withIcon } from './dom.js';
import { clip, formatDuration, formatTime, visible } from './format.js';
import { drawIncidents, phrasesOf } from './incidents.js';
import { cpuPercentSince, drawProcess, drawTables } from './overview.js';
import { drawRequests, forgetRequests } from './requests.js';

const RETRY_MS = 2000;
const MAX_SILENCE_MS = 15_000;

/** @type {EventSource} */
let source;
/** The gateway's view: its merge patches so far, applied. @type {any} */
let state = null;
let connection = 'Connecting';
let isScheduled = false;
let timer = 0;

/** Draws once for all that happens until the next frame. */
function schedule() {
  if (!isScheduled) requestAnimationFrame(draw);
  isScheduled = true;
}

function draw() {
  isScheduled = false;
  drawConnection();
  if (state === null) return;
  const { host, version, node, startedAt, settings, warnings } = state.settings;
  const upMs = Date.parse(state.now) - Date.parse(startedAt);
  fill('about', [host, version, 'Node ' + node, 'up ' + formatDuration(upMs)].join(' · '));
  drawIncidents(state);
  drawCards(state);
  drawTables(state);
  drawCurl();
  drawRequests(state);
  drawProcess(state);
  fill('settings-count', 'Process, and ' + settings.length + ' settings in force');
  const items = warnings.map((text) => h('li.warn', clip(text)));
  fill('warnings', items);
}

function drawConnection() {
  const words = connection === 'Live' && state.draining ? 'Draining' : connection;
  const icon = { Connecting: 'off', Live: 'good', Draining: 'warn' }[words] ?? 'bad';
  fill('connection', withIcon(icon, words));
  const since = state && ' The figures are as of ' + formatTime(state.now) + '.';
  const takes = state?.accepting
    ? 'still takes requests until drain_delay is over.'
    : 'takes no new requests.';
  fill(
    'banner',
    words === 'Connection lost' && ['Connection lost, retrying.', since],
    words === 'Draining' && 'The gateway is stopping: it ' + takes,
  );
}

/** For screen readers: changes only, never figures. */
function announce(text) {
  byId('announcement').textContent = visible(text);
}

function announceChanges(next) {
  const said = [];
  if (next.draining && !state?.draining) said.push('The gateway is draining');
  const [former, latest] = [state ?? next, next].map(phrasesOf);
  said.push(...latest.filter((text) => !former.includes(text)));
  said.push(...former.filter((text) => !latest.includes(text)).map((text) => 'Over: ' + text));
  if (said.length > 0) announce(said.join('. '));
}

/** A text as one argument of a POSIX shell. */
const quote = (text) => "'" + text.replaceAll("'", "'\\''") + "'";

/** Draws a command that works with these settings: with an alias, else a provider's default model. */
function drawCurl() {
  const { settings, url, needsKey } = state.settings;
  const names = settings.map(([name]) => name);
  const alias = names.find((name) => name.startsWith('aliases.'))?.slice('aliases.'.length);
  const asked = Object.entries(state.providers).find(([, one]) => one.skipped === undefined);
  const [id] = asked ?? ['openai'];
  const model =
    alias ?? (names.includes('providers.' + id + '.default_model') ? id : id + '/MODEL');
  const body = JSON.stringify({ model, messages: [{ role: 'user', content: 'Hello' }] });
  const lines = [
    'curl ' + quote(url + '/chat/completions'),
    "-H 'Authorization: Bearer " + (needsKey ? 'YOUR_KEY' : 'any-text') + "'",
    "-H 'Content-Type: application/json'",
    '-d ' + quote(body),
  ];
  const parts = lines.map((line, index) => [index > 0 && [' \\', h('br'), '  '], line]);
  fill('curl', parts);
  const keys = needsKey && 'YOUR_KEY is one of [server.auth] keys, or of a client. ';
  const models = model.endsWith('/MODEL') && 'MODEL is a model of ' + id + '. ';
  fill('curl-hint', keys, models, 'Send one, and it appears here:');
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
  const isConnected = connection === 'Live';
  const next = merge(isConnected ? state : {}, patch);
  const isRestarted = state !== null && state.settings.startedAt !== next.settings.startedAt;
  if (isRestarted) {
    forgetRequests();
    state = null;
    announce('The gateway was restarted');
  } else if (state !== null && patch.settings) {
    announce(isConnected ? 'The settings have changed' : 'Connected again');
  }
  announceChanges(next);
  next.figures.cpu_percent = cpuPercentSince(state, next);
  state = next;
  connection = 'Live';
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
  if (connection === 'Live') announce('Connection lost, retrying');
  connection = 'Connection lost';
  schedule();
  after(RETRY_MS, connect);
}

// After the listeners of the elements: what they change is drawn.
for (const name of ['click', 'input']) document.addEventListener(name, schedule);
schedule();
connect();
