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

/** In the browser's time zone: 2026-11-22 10:15:30, as Swedes write it. */
const localTime = (time) => new Date(time).toLocaleString('sv');

/** Returns the time of day. */
export const formatTime = (time) => localTime(time).slice(11);

/** Returns the time of day, with the date unless it is that of `now`. */
export const formatDay = (time, now) =>
  localTime(time).slice(0, 10) === localTime(now).slice(0, 10)
    ? formatTime(time)
    : localTime(time).slice(5);

export function formatDuration(ms) {
  const seconds = Math.max(0, Math.ceil(ms / 1000));
  const minutes = Math.floor(seconds / 60);
  const hours = Math.floor(minutes / 60);
  if (seconds < 60) return seconds + ' s';
  if (minutes < 60) return minutes + ' min ' + (seconds % 60) + ' s';
  if (hours < 48) return hours + ' h ' + (minutes % 60) + ' min';
  return Math.floor(hours / 24) + ' d ' + (hours % 24) + ' h';
}

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

/**
 * Shows a value: a number, a text, a description, nothing, or a list of one of these and small
 * lines below it.
 */
function cellContents(value) {
  const [first, ...lines] = Array.isArray(value) ? value : [value];
  if (first === undefined || first === '') return h('span.off', '–');
  const shown = typeof first === 'number' ? formatNumber(first) : first;
  const smallLines = lines.map((line) => line && h('small', clip(line)));
  return [typeof shown === 'string' ? clip(shown) : shown, smallLines];
}

/**
 * Describes a row. A column is the text of its head, the class of its cells, and the value of its
 * cell: the name of a field of the row's item, or a function of the item.
 */
export function tableRow(columns, item, attributes = { key: item.id }) {
  const cells = columns.map(([title, className, valueOf], index) => {
    const value = typeof valueOf === 'string' ? item[valueOf] : valueOf(item);
    const head = index === 0 && { scope: 'row' };
    const named = { class: className, 'data-title': title, ...head };
    return h(head ? 'th' : 'td', named, cellContents(value));
  });
  return h('tr', attributes, cells);
}

/** Describes a table in a box; the title and the note stand above it. */
export function table({ id, title, note, columns }, rows) {
  const heads = columns.map(([text, name]) => h('th', { class: name, scope: 'col' }, text));
  const caption = h('caption', h('h2', title), note);
  const region = { id: id + '-box', role: 'region', tabindex: '0', 'aria-label': title };
  const body = h('tbody', { id }, rows);
  return h('div.box.scroll', region, h('table', caption, h('thead', h('tr', heads)), body));
}

/** The ids of the tables with all their rows. */
const unfolded = new Set();

/**
 * Draws a table with a row for each item, and a button for those after the first few. Without items
 * it is hidden.
 * @param {{ id, title, note, columns, rowOf?: (item: any) => any }} named
 */
export function drawTable({ id, title, note, columns, rowOf }, items) {
  const isUnfolded = unfolded.has(id);
  const shown = isUnfolded ? items : items.slice(0, FEW);
  const count = shown.length < items.length && shown.length + ' of ' + items.length + ', ';
  const onclick = () => unfolded.delete(id) || unfolded.add(id);
  const attributes = { type: 'button', 'aria-expanded': String(isUnfolded), onclick };
  const rows = shown.map(rowOf ?? ((item) => tableRow(columns, item)));
  const label = isUnfolded ? 'Show fewer' : 'Show all ' + items.length;
  fill(
    id + '-section',
    items.length > 0 && table({ id, title, note: [count, note], columns }, rows),
    items.length > FEW && h('button.fold', attributes, label),
  );
}
