/** Elements and tables as descriptions, of which only changes reach the document. */

import { clip, formatNumber, visible } from './format.js';

/** @returns {any} */
export const byId = (id) => document.getElementById(id);

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

/** Icon and colour, of the kinds `good`, `warn`, `bad` and `off`, repeat the words. */
export const withIcon = (kind, text) => h('span.icon.' + kind, text);

/** Describes an item of a list of terms. */
export const titled = (title, selector, value) => h('div', h('dt', title), h(selector, value));

/** Shows a value: a number, a text, a description, nothing, or a list of one of these and small lines below it. */
function cellContents(value) {
  const [first, ...lines] = Array.isArray(value) ? value : [value];
  if (first === null || first === undefined || first === '') return h('span.off', '–');
  const shown = typeof first === 'number' ? formatNumber(first) : first;
  const smallLines = lines.map((line) => line && h('small', clip(line)));
  return [typeof shown === 'string' ? clip(shown) : shown, smallLines];
}

/**
 * Describes a row. A column is the text of its head, the class of its cells, and the value of its cell: the name of a
 * field of the row's item, or a function of the item.
 */
export function tableRow(columns, item, attributes = { key: item.id }) {
  const cells = columns.map(([, className, valueOf], index) => {
    const value = typeof valueOf === 'string' ? item[valueOf] : valueOf(item);
    const head = index === 0 && { scope: 'row' };
    const named = { class: className, 'data-title': columns[index][0], ...head };
    return h(head ? 'th' : 'td', named, cellContents(value));
  });
  return h('tr', attributes, cells);
}

/** Describes a table in a box. */
export function table(id, caption, columns, rows) {
  const heads = columns.map(([title, name]) => h('th', { class: name, scope: 'col' }, title));
  const head = h('thead', h('tr', heads));
  const region = { id: id + '-box', role: 'region', tabindex: '0', 'aria-label': caption };
  const body = h('tbody', { id }, rows);
  return h('div.box.scroll', region, h('table', h('caption', caption), head, body));
}

/** Describes the button that shows more of a table, or less again. */
export const foldButton = (label, isUnfolded, onclick) =>
  h('button.fold', { type: 'button', 'aria-expanded': String(isUnfolded), onclick }, label);
