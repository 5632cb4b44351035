/** The page's style sheet. The colours keep a contrast of 4.5:1 (WCAG 2.2 AA) in both schemes. */

export const STYLE = String.raw`
:root {
  --page: #f6f7f9; --surface: #fff; --line: #e3e5ea; --edge: #858c99; --text: #1b1f26; --muted: #5b6270;
  --accent: #2256c5; --fill: #2256c51a; --good: #14713f; --warn: #875500; --bad: #bd1f2f;
  --mono: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0f1114; --surface: #16191d; --line: #2a2e35; --edge: #6d7582; --text: #e9ebef; --muted: #9aa2af;
    --accent: #86abff; --fill: #86abff24; --good: #4cc787; --warn: #e6b450; --bad: #ff8d8d;
  }
}
* { box-sizing: border-box; }
[hidden] { display: none !important; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 0.84375rem/1.45 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere;
}
header, main { max-width: 84rem; margin: 0 auto; padding: 0 1.25rem; }
header {
  display: flex; flex-wrap: wrap; align-items: center; gap: 0.25rem 1rem;
  padding-top: 1rem; padding-bottom: 0.75rem;
}
h1, h2, p, dl, dd { margin: 0; }
h1 { font-size: 1rem; font-weight: 650; letter-spacing: -0.01em; }
h2 { font-size: 0.9375rem; font-weight: 600; margin: 1.75rem 0 0.5rem; }
small, .note, caption, nav { font-size: 0.78125rem; }
small { display: block; }
.note, caption, dt, small { color: var(--muted); }
nav { display: flex; flex-wrap: wrap; gap: 0 1rem; margin-left: auto; }
a { color: var(--accent); text-underline-offset: 0.2em; }
nav a { color: var(--muted); text-decoration: none; padding: 0.25rem 0; }
a:hover { text-decoration: underline; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 3px; }
.scroll:focus-visible { outline-offset: -2px; }
.icon {
  width: 1em; height: 1em; margin-right: 0.375em; vertical-align: -0.125em;
  fill: none; stroke: currentColor; stroke-width: 2; stroke-linecap: round; stroke-linejoin: round;
}
.good { color: var(--good); }
.warn { color: var(--warn); }
.bad { color: var(--bad); }
.off { color: var(--muted); }
.hidden-text, table:not(.tries) > caption {
  position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap;
}
.box { background: var(--surface); border: 1px solid var(--line); border-radius: 8px; }
h2.note { margin: 0.25rem 0 0.5rem; font-weight: 400; }
.banner { padding: 0.5rem 0.75rem; margin-bottom: 0.75rem; border-color: currentColor; }

.cards { display: grid; grid-template-columns: repeat(4, minmax(0, 1fr)); gap: 0.75rem; }
.card { display: flex; flex-direction: column; padding: 0.75rem 0 0; overflow: hidden; }
.card dt, .card .value, .card .note { padding: 0 0.875rem; }
.value { font-size: 1.625rem; line-height: 1.25; font-weight: 600; letter-spacing: -0.02em; }
.value small { display: inline; margin-left: 0.25rem; font-weight: 400; letter-spacing: 0; }
.card .chart { margin-top: auto; padding-top: 0.5rem; }
.chart svg { display: block; width: 100%; height: 2.5rem; color: var(--accent); }
.chart path {
  fill: none; stroke: currentColor; stroke-width: 1.5; stroke-linecap: round; stroke-linejoin: round;
  vector-effect: non-scaling-stroke;
}
.chart .area { fill: var(--fill); stroke: none; }
.chart .second { stroke: var(--muted); stroke-dasharray: 2 3; }
.chart .bars { color: var(--bad); stroke-width: 2.5; stroke-linecap: butt; }
.figures { display: flex; flex-wrap: wrap; gap: 0.5rem 2rem; padding: 0.75rem 0.875rem; }

.scroll { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; }
th, td { padding: 0.4375rem 0.75rem; text-align: left; vertical-align: top; font-weight: 400; }
tr + tr > *, thead + tbody > tr:first-child > * { border-top: 1px solid var(--line); }
tbody th { font-weight: 550; }
thead th, .requests > tbody > tr > th, .settings tbody th { font-weight: 400; }
thead th { color: var(--muted); font-size: 0.75rem; vertical-align: bottom; white-space: nowrap; }
td, tbody th { overflow-wrap: normal; max-width: 18rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
td small, td.wrap { white-space: normal; overflow-wrap: anywhere; min-width: 12rem; }
td small { display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 4; overflow: hidden; }
td.wrap { max-width: 26rem; }
.number { text-align: right; }
.mono, .settings tbody, code, pre { font-family: var(--mono); font-size: 0.75rem; }
.empty { padding: 0.75rem 0.875rem; }
.empty * + p, .empty pre { margin: 0.5rem 0 0; }
code { white-space: nowrap; }
pre { overflow-x: auto; padding: 0.625rem 0.75rem; background: var(--page); border-radius: 6px; }

.tools { display: flex; flex-wrap: wrap; align-items: end; gap: 0.5rem 0.75rem; margin-bottom: 0.625rem; }
.field { display: grid; gap: 0.125rem; min-width: 0; }
.field label { color: var(--muted); font-size: 0.75rem; }
.tools .note { margin-left: auto; align-self: center; }
button, select, input {
  font: inherit; color: var(--text); background: var(--surface); min-height: 2rem; max-width: 100%;
  border: 1px solid var(--edge); border-radius: 6px; padding: 0.25rem 0.625rem;
}
select { max-width: 12rem; }
button { cursor: pointer; }
button:hover { border-color: var(--text); }
button[aria-pressed="true"] { background: var(--text); color: var(--surface); border-color: var(--text); }
tbody button { all: unset; cursor: pointer; padding: 0 0.125rem; white-space: nowrap; }
tbody button::before {
  content: ""; display: inline-block; margin-right: 0.5rem; border: 0.25rem solid transparent;
  border-left: 0.3125rem solid var(--muted); border-right: 0;
}
tbody button[aria-expanded="true"]::before { rotate: 90deg; }
.requests tbody tr:not(.details) { cursor: pointer; }
.requests tbody tr:not(.details):hover { background: var(--fill); }
table:not(.with-clients) .client { display: none; }
.details > td { max-width: none; overflow: visible; white-space: normal; background: var(--page); padding: 0.75rem 0.875rem 1rem; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 15rem), 1fr)); gap: 0.5rem 1.5rem; }
.facts dd { overflow-wrap: anywhere; }
.sheet { position: sticky; left: 0.875rem; width: min(100%, calc(100vw - 3.25rem - 2px)); }
.sheet .scroll { margin-top: 0.75rem; }
caption { text-align: left; padding: 0.5rem 0.75rem 0; }
summary { cursor: pointer; padding: 0.5rem 0.875rem; }
details[open] > summary { border-bottom: 1px solid var(--line); }
details > .box { border: 0; }
footer { padding: 1.5rem 0 2.5rem; }
@media (max-width: 48rem) {
  header, main { padding-left: 0.75rem; padding-right: 0.75rem; }
  .cards { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 0.5rem; }
  .value { font-size: 1.375rem; }
  nav { margin-left: 0; width: 100%; }
  .field { flex: 1 1 8rem; }
  .field select, .field input { width: 100%; max-width: none; }
}
`;
