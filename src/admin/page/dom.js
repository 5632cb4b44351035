/** Elements and tables as descriptions, of which only changes reach the document; numbers and times as text. */

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

/**
 * Describes an element: `h('td.wrap', { id }, ...)`. A child is a description, a text, nothing (undefined, null, false, ''),
 * or a list of them. An attribute without a value is left out, a function is a property, and `key` tells siblings apart.
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
 * Makes the children of an element these, and touches only what differs: focus, selection and scroll position stay.
 * Texts become text nodes: nothing from the feed is parsed as markup.
 */
export function patch(parent, children) {
  const known = new Map(Array.from(parent.childNodes, (node) => [drawn.get(node).key, node]));
  const nodes = new Set();
  for (const [index, child] of children.entries()) {
    if (child === undefined || child === null || child === false || child === '') continue;
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
  for (const node of Array.from(parent.childNodes)) if (!nodes.has(node)) node.remove();
  let next = parent.firstChild;
  for (const node of nodes) {
    if (node === next) next = node.nextSibling;
    else parent.insertBefore(node, next);
  }
}

/** Fills a place of the document, and hides it if there is nothing in it. */
export function fill(id, ...children) {
  patch(byId(id), children.flat(Infinity));
  byId(id).toggleAttribute('hidden', byId(id).firstChild === null);
}

/** The same in every locale: 12 345, 123 k, 4.56 M; nothing is a dash. */
export function formatNumber(value) {
  if (value === undefined || value === null) return '–';
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
  const use = h('use', { href: '#icon-' + name });
  return h('span', { class: COLOURS[name] }, h('svg.icon', { 'aria-hidden': 'true' }, use), text);
}

/** A setting's or a fact's value as text. */
export const valueText = (value) => (typeof value === 'string' ? value : JSON.stringify(value));

export const smallLines = (lines) => lines.map((line) => line && h('small', clip(line)));

function cellContents(value) {
  if (value === null || value === undefined || value === '') return h('span.off', '–');
  if (typeof value === 'number') return formatNumber(value);
  return typeof value === 'string' ? clip(value) : value;
}

/**
 * Describes a row. A column is the text of its head, the class of its cells, and the contents of its cell (a number, a
 * text, descriptions, or nothing): a field of the row's item, or a function of the item and the feed's present.
 */
export function tableRow(columns, item, now = '', attributes = {}) {
  const cells = columns.map(([, className, valueOf], index) => {
    const value = typeof valueOf === 'string' ? item[valueOf] : valueOf(item, now);
    const head = index === 0 && { scope: 'row' };
    return h(head ? 'th' : 'td', { class: className, ...head }, cellContents(value));
  });
  return h('tr', attributes, cells);
}

/** Describes a table in a box. */
export function table(id, caption, columns, rows) {
  const heads = columns.map(([title, name]) => h('th', { class: name, scope: 'col' }, title));
  const head = h('thead', h('tr', heads));
  const region = { id: id + '-box', role: 'region', tabindex: '0', 'aria-label': caption };
  return h(
    'div.box.scroll',
    region,
    h('table', h('caption', caption), head, h('tbody', { id }, rows)),
  );
}
