/**
 * The text of the page's files, which scripts/build.mjs puts into dist/server.js (condition
 * `bundle` in package.json).
 */

/* oxlint-disable import/default -- the attribute makes the file's text the default export */

import charts from './charts.js' with { type: 'text' };
import dom from './dom.js' with { type: 'text' };
import feed from './feed.js' with { type: 'text' };
import overview from './overview.js' with { type: 'text' };
import html from './page.html' with { type: 'text' };
import requests from './requests.js' with { type: 'text' };
import status from './status.js' with { type: 'text' };
import style from './style.css' with { type: 'text' };
import text from './text.js' with { type: 'text' };

export { html, style };
/** In the order of their imports. */
export const scripts = [text, dom, requests, status, charts, overview, feed];
