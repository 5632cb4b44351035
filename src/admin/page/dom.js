/**
 * Texts, elements and tables. Elements are drawn from descriptions, and only changes reach the
 * document.
 */

const MAX_CELL_CHARACTERS = 240;
/** A folded table shows at most this many rows. */
const FEW = 10;

/** Returns the text with codes for characters that change its direction or break lines. */
export const visible = (text) =>
  String(text).replace(
    /[\p{Cc}\p{Zl}\p{Zp}\p{Bidi_Control}]/gu,
    (c) => '\\u' + (c.codePointAt(0) ?? 0).toString(16).padStart(4, '0'),
  );

export function clip(text) {
  const shown = String(text);
  return shown.length > MAX_CELL_CHARACTERS ? shown.slice(0, MAX_CELL_CHARACTERS) + '…' : shown;
}

/** Returns a number as text, in every locale the same. */
export const formatNumber = (value) =>
  value === undefined ? '–' : value.toLocaleString('en', { maximumFractionDigits: 1 });

/** Returns a number as text, and a million or more as `4.1 M`. */
export const formatShort = (value) =>
  value < 1e6 ? formatNumber(value) : formatNumber(value / 1e6) + ' M';

/** Returns a time in the browser's time zone, in Swedish form: 2026-11-22 10:15:30. */
const localTime = (time) => new Date(time).toLocaleString('sv');

/** Returns the time of day. */
export const formatTime = (time) => localTime(time).slice(11);

/** Returns the time of day, behind its date if `now` is another day. */
export const formatDay = (time, now) =>
  localTime(time).slice(0, 10) === localTime(now).slice(0, 10)
    ? formatTime(time)
    : localTime(time).slice(5);

/** Returns a duration as text. `isRough` leaves out seconds from a minute on. */
export function formatDuration(ms, isRough = false) {
  const seconds = Math.max(0, Math.ceil(ms / 1000));
  const minutes = Math.floor(seconds / 60);
  const hours = Math.floor(minutes / 60);
  if (seconds < 60) return seconds + ' s';
  if (minutes < 60) return minutes + (isRough ? ' min' : ' min ' + (seconds % 60) + ' s');
  if (hours < 48) return hours + ' h ' + (minutes % 60) + ' min';
  return Math.floor(hours / 24) + ' d ' + (hours % 24) + ' h';
}

/** Describes a text with a tooltip that shows a time. */
export const timeText = (time, text) => h('time', { datetime: time, title: localTime(time) }, text);

/** Returns a share in per cent with one decimal: `9.0 %`. */
export const formatShare = (part, total) => ((100 * part) / total).toFixed(1) + ' %';

/** Returns a number and its noun: `1 incident`, `2 incidents`. */
export const plural = (count, noun) => formatNumber(count) + ' ' + noun + (count === 1 ? '' : 's');

/** Returns whether the page has a single column. Outside a browser there is no width. */
export const isNarrow = () => globalThis.matchMedia?.('(max-width: 760px)').matches ?? false;

/** Returns a setting's or a field's value as text. */
export const valueText = (value) => (typeof value === 'string' ? value : JSON.stringify(value));

/** @returns {any} */
export const byId = (id) => document.getElementById(id);

/**
 * Describes an element: `h('td.wrap', { id }, ...)`. A child is a description, a text, a list of
 * children, or nothing (undefined, false or ''). An undefined attribute is left out, a function is
 * set as a property, and `key` identifies an element among its siblings.
 * @param {string} selector
 * @param {...any} rest
 */
export function h(selector, ...rest) {
  const [tag, ...classes] = selector.split('.');
  const hasAttributes = rest[0]?.constructor === Object && rest[0].tag === undefined;
  const attributes = { class: classes.join(' ') || undefined, ...(hasAttributes && rest.shift()) };
  return { tag, attributes, children: rest.flat(Infinity) };
}

/** Each drawn node's key and description. */
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
 * Gives an element these children. Only differences touch the document, so focus, selection and
 * scroll position stay. Texts become text nodes, so text from the feed is never parsed as markup.
 * Nodes from extensions and translators stay in place. Returns whether there is any child.
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
  // Removed first, because a node that moves loses the focus.
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

/** Draws an element's children, and hides the element without children. */
export function fill(id, ...children) {
  const isFilled = patch(byId(id), children.flat(Infinity));
  byId(id).toggleAttribute('hidden', !isFilled);
}

/** Describes a text with the icon and colour of `good`, `warn`, `bad` or `off`. */
export const withIcon = (kind, text) => h('span.icon.' + kind, text);

/** Describes milliseconds, or nothing for undefined. */
export const msText = (ms) => ms !== undefined && [formatNumber(ms), h('small', ' ms')];

/** Describes a bar. Each part is a class and a share from 0 to 1. */
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

/** Describes a cell's value: a number, a text, a description, a list of these, or nothing. */
function cellContents(value) {
  if (isEmpty(value)) return h('span.off', '–');
  if (Array.isArray(value)) return value.map((one) => (typeof one === 'string' ? clip(one) : one));
  if (typeof value === 'number') return formatNumber(value);
  return typeof value === 'string' ? clip(value) : value;
}

const valueIn = ([, , valueOf], item) =>
  typeof valueOf === 'string' ? item[valueOf] : valueOf(item);

/**
 * Describes a row. A column has its head's text, and its cells' class and value: the name of the
 * item's field, or a function that takes the item.
 */
export function tableRow(columns, item, attributes = { key: item.id }) {
  const cells = columns.map((column, index) => {
    const [title, name] = column;
    const value = valueIn(column, item);
    const isAbsent = isEmpty(value);
    const scope = index === 0 ? 'row' : undefined;
    const named = { class: name + (isAbsent ? ' absent' : ''), 'data-title': title, scope };
    const isBlank = isAbsent && name.startsWith('fill');
    return h(scope ? 'th' : 'td', named, isBlank ? '' : cellContents(value));
  });
  return h('tr', attributes, cells);
}

/** The unfolded tables' ids. */
const unfolded = new Set();

/**
 * Draws a table with a row for each item. A button unfolds the rows after the first `few`. Empty
 * columns are left out, and a table without items is hidden. `rowOf` describes a row for the
 * columns that are left.
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
