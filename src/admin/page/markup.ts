/** The page's HTML: fixed text with empty places, which the script fills by their ids. */

/** Outlines of 16 by 16 units. The words beside an icon say the same. */
const ICONS: Readonly<Record<string, string>> = {
  good: 'M3 8.5l3.5 3.5L13 4.5',
  rest: 'M8 4v4l2.5 1.5M14 8A6 6 0 1 1 2 8a6 6 0 0 1 12 0z',
  half: 'M14 8A6 6 0 1 1 2 8a6 6 0 0 1 12 0zM8 2v12M10.5 3v10',
  skip: 'M3 8h10',
  warn: 'M8 2L1.5 13.5h13zM8 6.5v3M8 11.5v0',
  bad: 'M4 4l8 8M12 4l-8 8',
};

/** As in docs/log.md. */
const OUTCOMES = [
  'ok',
  'client_closed',
  'refused',
  'rate_limited',
  'upstream_error',
  'timeout',
  'internal_error',
];

/** A column is written `name`, a column of numbers `#name`, and one with another class `.class name`. */
function table(id: string, caption: string, columns: readonly string[]): string {
  const head = columns.map((column) => {
    const [, className = '', name = ''] =
      /^(?:\.(\w+) )?(.*)$/.exec(column.replace('#', '.number ')) ?? [];
    return `<th scope="col" class="${className}">${name}</th>`;
  });
  return `<div class="box scroll" id="${id}-box" role="region" aria-label="${caption}" tabindex="0">
<table class="${id}"><caption>${caption}</caption>
<thead><tr>${head.join('')}</tr></thead><tbody id="${id}"></tbody></table></div>`;
}

function card(id: string, name: string, paths: string): string {
  return `<div class="box card"><dt>${name}</dt><dd class="value" id="${id}">–</dd>
<dd class="note" id="${id}-note">&nbsp;</dd>
<dd class="chart"><svg id="${id}-chart" role="img" aria-label="No figures yet" viewBox="0 0 89 32" preserveAspectRatio="none">${paths}</svg></dd></div>`;
}

function filter(id: string, name: string, options: readonly string[] = []): string {
  const all = options.map((option) => `<option value="${option}">${option}</option>`);
  return `<div class="field" id="${id}-field"><label for="${id}">${name}</label><select id="${id}"><option value="">All</option>${all.join('')}</select></div>`;
}

const LINE = '<path class="area"/><path class="first"/>';
const TOKENS = ['#Input tokens', '#Output tokens'];
const FIRST_TOKEN = ['#First token p50, ms', '#p95, ms'];

/** Id and name of each figure of the process. */
const FIGURES = {
  cpu: 'CPU, %',
  memory: 'Memory, MB',
  'loop-delay': 'Event loop delay p99, ms',
  buffered: 'Buffered, MB',
  'connections-open': 'Connections open',
  'connections-made': 'Connections made',
  'connections-reused': 'Connections reused',
  dropped: 'Log lines dropped',
};

function cards(): string {
  return `<h2 class="note">The last 15 minutes</h2>
<dl class="cards">
${card('rate', 'Requests/s', LINE)}
${card('streams', 'Open streams', LINE)}
${card('latency', 'First token, p50', '<path class="second"/><path class="first"/>')}
${card('failed', 'Failed requests', '<path class="bars"/>')}
</dl>`;
}

function providers(): string {
  return `<h2 id="providers-heading">Providers</h2>
<div class="box empty" id="providers-empty" hidden>
<p><strong>No provider is registered.</strong> Set the key of one in the environment and start the gateway again:</p>
<pre>OPENAI_API_KEY=sk-… node dist/server.js</pre>
<p>Every built-in provider has such a variable; <code>--check</code> lists them. Any other server is a section <code>[providers.name]</code> with <code>base_url</code> and <code>api_key</code> in <code>gateway.toml</code>.</p>
</div>
${table('providers', 'Providers since the start', ['Provider', '.wrap State', '#Tries', '.wrap Errors', ...FIRST_TOKEN, ...TOKENS, '.wrap Last error'])}
<section id="models-section" hidden><h2>Models</h2>
${table('models', 'Models and aliases since the start', ['Model', 'Provider', '#Requests', '#Failed', ...FIRST_TOKEN, ...TOKENS])}</section>
<section id="clients-section" hidden><h2>Clients</h2>
${table('clients', 'Clients since the start', ['Client', '#Requests', '#Failed', ...TOKENS])}</section>`;
}

function requests(): string {
  return `<h2 id="requests-heading">Requests</h2>
<div class="box empty" id="requests-empty" hidden>
<p><strong>No request yet.</strong> <span id="curl-hint"></span></p>
<pre id="curl" tabindex="0" role="region" aria-label="Command"></pre>
<p><button type="button" id="copy">Copy</button> <span class="note" id="copied" role="status"></span></p>
</div>
<div id="requests-section" hidden>
<div class="tools" role="search" aria-label="Requests">
${filter('by-outcome', 'Outcome', ['failed', ...OUTCOMES])}
${filter('by-provider', 'Provider')}
${filter('by-client', 'Client')}
<div class="field"><label for="by-id">Request or trace id</label><input id="by-id" type="search" autocomplete="off" spellcheck="false"></div>
<button type="button" id="pause" aria-pressed="false">Pause</button>
<p class="note" id="count"></p>
</div>
${table('requests', 'The last 200 requests, newest first', ['Time', 'Outcome', '#Status', 'Model', 'Provider', '.client Client', '#First byte, ms', '#Duration, ms', ...TOKENS])}
<template id="tries-template">${table('tries', 'Tries', ['#Try', 'Provider', '#Key', 'Model', 'Outcome', '#Status', '#Duration, ms', '.wrap Cause', '.wrap URL'])}</template>
</div>`;
}

function processAndSettings(): string {
  const figures = Object.entries(FIGURES).map(
    ([id, name]) => `<div><dt>${name}</dt><dd id="${id}">–</dd></div>`,
  );
  return `<h2>Process</h2>
<dl class="box figures">${figures.join('')}</dl>
<h2 id="settings-heading">Settings</h2>
<ul id="warnings" hidden></ul>
<details class="box"><summary id="settings-count">Settings in force</summary>
${table('settings', 'Settings in force, keys masked', ['Setting', '.wrap Value'])}</details>`;
}

/** Returns the contents of the document's body without the script. */
export function createMarkup(): string {
  const icons = Object.entries(ICONS).map(
    ([name, path]) => `<symbol id="icon-${name}" viewBox="0 0 16 16"><path d="${path}"/></symbol>`,
  );
  return `<svg hidden>${icons.join('')}</svg>
<header>
<h1>inference-gateway</h1>
<p class="off" id="connection">Connecting</p>
<p class="note" id="about"></p>
<nav aria-label="Sections"><a href="#providers-heading">Providers</a><a href="#requests-heading">Requests</a><a href="#settings-heading">Settings</a></nav>
</header>
<main>
<noscript><p class="box banner">This page needs JavaScript.</p></noscript>
<p class="hidden-text" id="announcement" role="status"></p>
<p class="box banner warn" id="banner" hidden></p>
${cards()}
${providers()}
${requests()}
${processAndSettings()}
<footer class="note">Everything on this page is in the memory of the gateway and is gone when it stops.</footer>
</main>`;
}
