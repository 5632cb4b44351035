/** Elements and tables. Only changes of the described elements reach the document. */

import { clip, formatNumber, visible } from './text.js';

/** A folded list shows at most this many rows. */
const FEW = 10;

/** Returns whether the page has a single column. */
export const isNarrow = () => matchMedia('(max-width: 760px)').matches;

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
    else node.data = visible(clip(child));
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
export const withIcon = (icon, text) => h('span.icon.' + icon, text);

/** Describes a bar. Each part is a class and a share from 0 to 1. */
export function shareBar(...parts) {
  let x = 0;
  const rects = parts.map(([name, share]) => {
    const place = { x: 100 * x + '%', width: 100 * share + '%', height: '100%' };
    x += share;
    return share > 0 && h('rect.' + name, place);
  });
  return h('svg.meter', { 'aria-hidden': 'true' }, rects);
}

const isEmpty = (value) => [value].flat(Infinity).every((one) => !one && one !== 0);

/** The unfolded lists' ids. */
const unfolded = new Set();
export const isUnfolded = (id) => unfolded.has(id);

/**
 * Draws a list's first rows, or all of them, and a button that unfolds them.
 * @param {{ id, few?, total? }} list - `total` is given if `items` are not all
 */
export function drawFew({ id, few = FEW, total }, items, describe) {
  const isOpen = isUnfolded(id);
  const all = total ?? items.length;
  const onclick = () => unfolded.delete(id) || unfolded.add(id);
  const attributes = { type: 'button', 'aria-expanded': String(isOpen), onclick };
  const label = isOpen ? 'Show fewer ' + id : 'Show all ' + formatNumber(all) + ' ' + id;
  const shown = isOpen ? items : items.slice(0, few);
  const button = all > few && h('button.fold', attributes, label);
  fill(id + '-section', shown.length > 0 && describe(shown), button);
}

/**
 * Draws a table with a row for each item. A column has its head, its cells' class, and its value:
 * the name of the item's field, or a function that takes the item. Empty columns are left out, and
 * a table without items is hidden.
 * @param {{ id, title, note, columns, few? }} table
 */
export function drawTable({ id, title, note, columns, few }, items) {
  const valueIn = ([, , of], item) => (typeof of === 'string' ? item[of] : of(item));
  const used = columns.filter((column) => items.some((item) => !isEmpty(valueIn(column, item))));
  const cell = (column, index, item) => {
    const value = valueIn(column, item);
    const isAbsent = isEmpty(value);
    const name = column[1] + (isAbsent ? ' absent' : '');
    const named = { class: name, 'data-title': column[0], scope: index ? undefined : 'row' };
    const text = typeof value === 'number' ? formatNumber(value) : value;
    return h(index ? 'td' : 'th', named, isAbsent ? '–' : text);
  };
  const row = (item) => {
    const cells = used.map((column, index) => cell(column, index, item));
    return h('tr', { key: item.id }, cells);
  };
  const heads = used.map(([text, name]) => h('th', { class: name, scope: 'col' }, text));
  const region = { id: id + '-box', role: 'region', tabindex: '0', 'aria-label': title };
  drawFew({ id, few }, items, (shown) => {
    const count = shown.length < items.length && shown.length + ' of ' + items.length + ', ';
    const caption = h('caption', h('h2', title), h('span.note', count, note));
    const body = h('tbody', { id }, shown.map(row));
    return h('div.box.scroll', region, h('table', caption, h('thead', h('tr', heads)), body));
  });
}
