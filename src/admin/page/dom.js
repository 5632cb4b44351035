/**
 * Texts, elements and tables. Elements are descriptions, of which only changes reach the document.
 */

const MAX_CELL_CHARACTERS = 240;
/** Rows of a table until more are wanted. */
const FEW = 10;

/** Characters that change the direction of text or break lines are shown by their codes. */
export const visible = (text) =>
  String(text).replace(
    /[\p{Cc}\p{Zl}\p{Zp}\p{Bidi_Control}]/gu,
    (c) => '\\u' + (c.codePointAt(0) ?? 0).toString(16).padStart(4, '0'),
  );

export function clip(text) {
  const shown = String(text);
  return shown.length > MAX_CELL_CHARACTERS ? shown.slice(0, MAX_CELL_CHARACTERS) + '…' : shown;
}

/** The same in every locale. */
export const formatNumber = (value) =>
  value === undefined ? '–' : value.toLocaleString('en', { maximumFractionDigits: 1 });

/** Returns a number as text, millions by their letter: `4.1 M`. */
export const formatShort = (value) =>
  value < 1e6 ? formatNumber(value) : formatNumber(value / 1e6) + ' M';

/** In the browser's time zone: 2026-11-22 10:15:30, as Swedes write it. */
const localTime = (time) => new Date(time).toLocaleString('sv');

/** Returns the time of day. */
export const formatTime = (time) => localTime(time).slice(11);

/** Returns the time of day, with the date unless it is that of `now`. */
export const formatDay = (time, now) =>
  localTime(time).slice(0, 10) === localTime(now).slice(0, 10)
    ? formatTime(time)
    : localTime(time).slice(5);

/** `isRough`: minutes without their seconds. */
export function formatDuration(ms, isRough = false) {
  const seconds = Math.max(0, Math.ceil(ms / 1000));
  const minutes = Math.floor(seconds / 60);
  const hours = Math.floor(minutes / 60);
  if (seconds < 60) return seconds + ' s';
  if (minutes < 60) return minutes + (isRough ? ' min' : ' min ' + (seconds % 60) + ' s');
  if (hours < 48) return hours + ' h ' + (minutes % 60) + ' min';
  return Math.floor(hours / 24) + ' d ' + (hours % 24) + ' h';
}

/** Describes a short text with the time of day that a pointer on it shows. */
export const timeText = (time, text) => h('time', { datetime: time, title: localTime(time) }, text);

/** Returns a share as text, always with one decimal: `9.0 %`. */
export const formatShare = (part, total) => ((100 * part) / total).toFixed(1) + ' %';

/** Returns a number and its noun: `1 incident`, `2 incidents`. */
export const plural = (count, noun) => formatNumber(count) + ' ' + noun + (count === 1 ? '' : 's');

/** Below this width the page has one column. A test without a browser has no width. */
export const isNarrow = () => globalThis.matchMedia?.('(max-width: 760px)').matches ?? false;

/** A setting's or a fact's value as text. */
export const valueText = (value) => (typeof value === 'string' ? value : JSON.stringify(value));

/** @returns {any} */
export const byId = (id) => document.getElementById(id);

/**
 * Describes an element: `h('td.wrap', { id }, ...)`. A child is a description, a text, nothing
 * (undefined, false, ''), or a list of them. An attribute without a value is left out, a function
 * is a property, and `key` tells siblings apart.
 * @param {string} selector
 * @param {...any} rest
 */
export function h(selector, ...rest) {
  const [tag, ...classes] = selector.split('.');
  const hasAttributes = rest[0]?.constructor === Object && rest[0].tag === undefined;
  const attributes = { class: classes.join(' ') || undefined, ...(hasAttributes && rest.shift()) };
  return { tag, attributes, children: rest.flat(Infinity) };
}

/** The key and the description of each node. */
const drawn = new WeakMap();

function create(parent, { tag }) {
  if (tag === undefined) return document.createTextNode('');
  const namespace = tag === 'svg' ? 'http://www.w3.org/2000/svg' : parent.namespaceURI;
  return document.createElementNS(namespace, tag);
}

function update(node, before, { attributes, children }) {
  for (const name of Object.keys({ ...before, ...attributes })) {
    const value = attributes[name];
    if (value === before[name] || name === 'key') continue;
    if (typeof value === 'function') node[name] = value;
    else if (value === undefined) node.removeAttribute(name);
    else node.setAttribute(name, value);
  }
  patch(node, children);
}

/**
 * Makes the children of an element these, and touches only what differs: focus, selection and
 * scroll position stay. Texts become text nodes: nothing from the feed is parsed as markup. Nodes
 * of extensions and translators stay where they are. Returns whether there is any child.
 */
function patch(parent, children) {
  const own = Array.from(parent.childNodes).filter((node) => drawn.has(node));
  const known = new Map(own.map((node) => [drawn.get(node).key, node]));
  const nodes = new Set();
  for (const [index, child] of children.entries()) {
    if (child === undefined || child === false || child === '') continue;
    const key = child.attributes?.key ?? index;
    const same = known.get(key);
    const node = same && drawn.get(same).child.tag === child.tag ? same : create(parent, child);
    const before = drawn.get(node)?.child;
    drawn.set(node, { key, child });
    nodes.add(node);
    if (before === child) continue;
    if (child.tag) update(node, before?.attributes ?? {}, child);
    else node.data = visible(child);
  }
  // A node that is moved loses the focus: those that go make room first.
  for (const node of own) if (!nodes.has(node)) node.remove();
  const ownFrom = (node) => {
    while (node && !drawn.has(node)) node = node.nextSibling;
    return node;
  };
  let next = ownFrom(parent.firstChild);
  for (const node of nodes) {
    if (node === next) next = ownFrom(node.nextSibling);
    else parent.insertBefore(node, next);
  }
  return nodes.size > 0;
}

/** Fills a place of the document, and hides it if there is nothing in it. */
export function fill(id, ...children) {
  const isFilled = patch(byId(id), children.flat(Infinity));
  byId(id).toggleAttribute('hidden', !isFilled);
}

/** Icon and colour, of the kinds `good`, `warn`, `bad` and `off`, repeat the words. */
export const withIcon = (kind, text) => h('span.icon.' + kind, text);

/** Describes a number of milliseconds; nothing without one. */
export const msText = (ms) => ms !== undefined && [formatNumber(ms), h('small', ' ms')];

/** Describes a bar of parts, each a class and its share of the whole from 0 to 1. */
export function shareBar(...parts) {
  let x = 0;
  const rects = parts.map(([name, share]) => {
    const place = { x: 100 * x + '%', width: 100 * share + '%', height: '100%' };
    x += share;
    return share > 0 && h('rect.' + name, place);
  });
  return h(
    'svg.meter',
    { 'aria-hidden': 'true' },
    h('rect.rest', { width: '100%', height: '100%' }),
    rects,
  );
}

const isEmpty = (value) =>
  value === undefined ||
  value === '' ||
  value === false ||
  (Array.isArray(value) && value.every(isEmpty));

/** Shows a value: a number, a text, a description, nothing, or a list of these. */
function cellContents(value) {
  if (isEmpty(value)) return h('span.off', '–');
  if (Array.isArray(value)) return value.map((one) => (typeof one === 'string' ? clip(one) : one));
  return typeof value === 'number'
    ? formatNumber(value)
    : typeof value === 'string'
      ? clip(value)
      : value;
}

const valueIn = ([, , valueOf], item) =>
  typeof valueOf === 'string' ? item[valueOf] : valueOf(item);

/**
 * Describes a row. A column is the text of its head, the class of its cells, and the value of its
 * cell: the name of a field of the row's item, or a function of the item.
 */
export function tableRow(columns, item, attributes = { key: item.id }) {
  const cells = columns.map((column, index) => {
    const [title, className] = column;
    const value = valueIn(column, item);
    const head = index === 0 && { scope: 'row' };
    const isAbsent = isEmpty(value);
    const named = {
      class: className + (isAbsent ? ' absent' : ''),
      'data-title': title,
      ...head,
    };
    const isBlank = isAbsent && className.startsWith('fill');
    return h(head ? 'th' : 'td', named, isBlank ? '' : cellContents(value));
  });
  return h('tr', attributes, cells);
}

/** The ids of the tables with all their rows. */
const unfolded = new Set();

/**
 * Draws a table with a row for each item, and a button for those after the first `few`. A column
 * that no item has a value for is left out, and without items the table is hidden. `rowOf`
 * describes a row, given the columns that are drawn.
 * @param {{ id, title, note?, columns, few?, rowOf?: (columns: any, item: any) => any }} named
 */
export function drawTable({ id, title, note, columns, rowOf = tableRow, few = FEW }, items) {
  const isUnfolded = unfolded.has(id);
  const shown = isUnfolded ? items : items.slice(0, few);
  const used = columns.filter(
    (column, index) => index === 0 || items.some((item) => !isEmpty(valueIn(column, item))),
  );
  const heads = used.map(([text, name]) => h('th', { class: name, scope: 'col' }, text));
  const count =
    shown.length < items.length && shown.length + ' of ' + formatNumber(items.length) + ', ';
  const caption = note && h('caption', h('h2', title), h('span.note', count, note));
  const region = { id: id + '-box', role: 'region', tabindex: '0', 'aria-label': title };
  const rows = shown.map((item) => rowOf(used, item));
  const onclick = () => unfolded.delete(id) || unfolded.add(id);
  const attributes = { type: 'button', 'aria-expanded': String(isUnfolded), onclick };
  const nouns = title.toLowerCase();
  const label = isUnfolded
    ? 'Show fewer ' + nouns
    : 'Show all ' + formatNumber(items.length) + ' ' + nouns;
  fill(
    id + '-section',
    shown.length > 0 &&
      h(
        note ? 'div.box.scroll' : 'div.scroll',
        region,
        h('table', caption, h('thead', h('tr', heads)), h('tbody', { id }, rows)),
      ),
    items.length > few && h('button.fold', attributes, label),
  );
}
