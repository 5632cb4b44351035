/** Text, numbers and table rows, and one drawing of the page for each change. */

/** @returns {any} */
export const byId = (id) => document.getElementById(id);

/** Characters that change the direction of text or break lines are shown by their codes. */
export function visible(text) {
  return String(text).replace(
    /[\p{Cc}\p{Zl}\p{Zp}\p{Bidi_Control}]/gu,
    (c) => '\\u' + (c.codePointAt(0) ?? 0).toString(16).padStart(4, '0'),
  );
}

const MAX_CELL_CHARACTERS = 240;
export function clip(text) {
  const shown = String(text);
  return shown.length > MAX_CELL_CHARACTERS ? shown.slice(0, MAX_CELL_CHARACTERS) + '…' : shown;
}

/** Creates an element. Strings become text nodes: nothing from the feed is parsed as markup. */
export function make(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children.map((child) => (child instanceof Node ? child : visible(child))));
  return node;
}

export function icon(name) {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  svg.setAttribute('class', 'icon');
  svg.setAttribute('aria-hidden', 'true');
  const use = document.createElementNS('http://www.w3.org/2000/svg', 'use');
  use.setAttribute('href', '#icon-' + name);
  svg.append(use);
  return svg;
}

/** What was drawn last at each place, so that only changes touch the document. */
const drawn = new WeakMap();
export function isNew(place, value) {
  const mark = JSON.stringify(value);
  if (drawn.has(place) && drawn.get(place) === mark) return false;
  drawn.set(place, mark);
  return true;
}

export function setText(id, text) {
  if (isNew(byId(id), text)) byId(id).textContent = visible(text);
}

export function setHidden(id, isHidden) {
  if (byId(id).hidden !== isHidden) byId(id).hidden = isHidden;
}

/** The same in every locale: 12 345, 123 k, 4.56 M. */
export function formatNumber(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return (value / 1e9).toFixed(2) + '\u202fG';
  if (size >= 1e6) return (value / 1e6).toFixed(2) + '\u202fM';
  if (size >= 1e5) return Math.floor(value / 1e3) + '\u202fk';
  if (size < 100 && !Number.isInteger(value)) return value.toFixed(1);
  return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, '\u202f');
}

const twoDigits = (value) => String(value).padStart(2, '0');

/** The time of day where the browser is. */
export function formatTime(iso) {
  const date = new Date(iso);
  return [date.getHours(), date.getMinutes(), date.getSeconds()].map(twoDigits).join(':');
}

/** With the date, unless it is that of the other time. */
export function formatDay(iso, now) {
  const [date, today] = [new Date(iso), new Date(now)];
  const isToday = date.toDateString() === today.toDateString();
  const day = twoDigits(date.getMonth() + 1) + '-' + twoDigits(date.getDate()) + ' ';
  return (isToday ? '' : day) + formatTime(iso);
}

export function formatDuration(ms) {
  const seconds = Math.max(0, Math.ceil(ms / 1000));
  const minutes = Math.floor(seconds / 60);
  const hours = Math.floor(minutes / 60);
  if (seconds < 60) return seconds + ' s';
  if (minutes < 60) return minutes + ' min ' + (seconds % 60) + ' s';
  if (hours < 48) return hours + ' h ' + (minutes % 60) + ' min';
  return Math.floor(hours / 24) + ' d ' + (hours % 24) + ' h';
}

/** Icon and colour repeat what the words say. */
export const ICON_COLOURS = {
  good: 'good',
  rest: 'warn',
  half: 'warn',
  warn: 'warn',
  skip: 'off',
  bad: 'bad',
};

/**
 * Fills a cell with a number, a text, nothing (null), or { icon, text, lines }: an icon with its words,
 * and smaller lines below.
 */
function fillCell(cell, value) {
  if (value === null || value === undefined || value === '') {
    cell.replaceChildren(make('span', 'off', '–'));
  } else if (typeof value === 'number') {
    cell.replaceChildren(formatNumber(value));
  } else if (typeof value === 'string') {
    cell.replaceChildren(visible(clip(value)));
  } else {
    const words = make('span', ICON_COLOURS[value.icon] ?? '');
    if (value.icon) words.append(icon(value.icon));
    words.append(visible(clip(value.text)));
    const lines = value.lines.map((line) => make('small', '', clip(line)));
    cell.replaceChildren(words, ...lines);
  }
}

function makeCell(row, className) {
  const isHead = row.cells.length === 0;
  const cell = make(isHead ? 'th' : 'td', className);
  if (isHead) cell.setAttribute('scope', 'row');
  return row.appendChild(cell);
}

/** Draws a row of the table with this body: its cells have the classes of the table's head. */
export function drawRow(body, row, values) {
  const [{ cells: head }] = body.parentElement.tHead.rows;
  for (const [index, value] of values.entries()) {
    const cell = row.cells[index] ?? makeCell(row, head[index].className);
    if (isNew(cell, value)) fillCell(cell, value);
  }
}

/** Draws a table's body, one row for each item. */
export function drawRows(body, rows) {
  while (body.rows.length > rows.length) body.deleteRow(-1);
  for (const [index, values] of rows.entries()) {
    drawRow(body, body.rows[index] ?? body.insertRow(), values);
  }
}

/** `draw` draws the page from the latest events. */
export const page = { draw() {} };
let isScheduled = false;

/** Draws once for all that happens until the next frame. */
export function schedule() {
  if (isScheduled) return;
  isScheduled = true;
  requestAnimationFrame(() => {
    isScheduled = false;
    page.draw();
  });
}
