/** The text of the page's files beside this one, for a source that runs without a bundler. */

import { readFileSync } from 'node:fs';

const read = (name: string) => readFileSync(new URL(name, import.meta.url), 'utf8');

export const html = read('page.html');
export const style = read('style.css');
/** In the order of their imports. */
const names = ['text', 'dom', 'requests', 'status', 'charts', 'overview', 'feed'];
export const scripts = names.map((name) => read(`${name}.js`));
