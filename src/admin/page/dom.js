/** Text, numbers and tables. */

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

/** The latest value at each place, so that only changes touch the document. */
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

export const setHidden = (id, isHidden) => byId(id).toggleAttribute('hidden', isHidden);

/** The same in every locale: 12 345, 123 k, 4.56 M. */
export function formatNumber(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return (value / 1e9).toFixed(2) + '\u202fG';
  if (size >= 1e6) return (value / 1e6).toFixed(2) + '\u202fM';
  if (size >= 1e5) return Math.floor(value / 1e3) + '\u202fk';
  if (size < 100 && !Number.isInteger(value)) return value.toFixed(1);
  return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, '\u202f');
}

/** In the browser's time zone: 2026-11-22 10:15:30, as Swedes write it. */
const localTime = (time) => new Date(time).toLocaleString('sv');

/** Returns the time of day. */
export const formatTime = (time) => localTime(time).slice(11);

/** Returns the time of day, with the date unless it is that of `now`. */
export function formatDay(time, now) {
  const isToday = localTime(time).slice(0, 10) === localTime(now).slice(0, 10);
  return localTime(time).slice(isToday ? 11 : 5);
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

/** Icon and colour repeat the words. */
const COLOURS = { good: 'good', rest: 'warn', half: 'warn', warn: 'warn', skip: 'off', bad: 'bad' };

export function withIcon(name, text) {
  return make('span', COLOURS[name] ?? '', ...(name ? [icon(name)] : []), text);
}

/** Takes a number, a text, nothing (null), or { icon, text, lines }: an icon, its words, and smaller lines below. */
function fillCell(cell, value) {
  if (value === null || value === undefined || value === '') {
    cell.replaceChildren(make('span', 'off', '–'));
  } else if (typeof value === 'number') {
    cell.replaceChildren(formatNumber(value));
  } else if (typeof value === 'string') {
    cell.replaceChildren(visible(clip(value)));
  } else {
    const lines = value.lines.map((line) => make('small', '', clip(line)));
    cell.replaceChildren(withIcon(value.icon, clip(value.text)), ...lines);
  }
}

/**
 * Creates a table in a box. A column is the text of its head, the class of its cells, and a function that returns the
 * value of its cell: it takes the row's item and the feed's present.
 */
export function makeTable(name, caption, columns) {
  const heads = columns.map(([title, className]) => make('th', className, title));
  for (const head of heads) head.setAttribute('scope', 'col');
  const body = make('tbody', '');
  const head = make('thead', '', make('tr', '', ...heads));
  const box = make(
    'div',
    'box scroll',
    make('table', name, make('caption', '', caption), head, body),
  );
  const attributes = { role: 'region', tabindex: '0', 'aria-label': caption };
  for (const [key, value] of Object.entries(attributes)) box.setAttribute(key, value);

  function makeCell(row, className) {
    const cell = row.appendChild(make(row.cells.length === 0 ? 'th' : 'td', className));
    if (cell.tagName === 'TH') cell.setAttribute('scope', 'row');
    return cell;
  }
  function drawRow(row, item, now) {
    for (const [index, [, className, valueOf]] of columns.entries()) {
      const value = valueOf(item, now);
      const cell = row.cells[index] ?? makeCell(row, className);
      if (isNew(cell, value)) fillCell(cell, value);
    }
  }
  /** Draws one row for each item. */
  function draw(items, now) {
    while (body.rows.length > items.length) body.deleteRow(-1);
    for (const [index, item] of items.entries()) {
      drawRow(body.rows[index] ?? body.insertRow(), item, now);
    }
  }
  return { box, body, drawRow, draw };
}

/** Adds a table to the section of its name. */
export function addTable(name, caption, columns) {
  const table = makeTable(name, caption, columns);
  table.box.id = name + '-box';
  table.body.id = name;
  byId(name + '-section').append(table.box);
  return table;
}
