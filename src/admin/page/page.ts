/** The operator's page: one HTML document without anything to load, and its Content-Security-Policy. */

import { createHash } from 'node:crypto';

import { createMarkup } from './markup.ts';
import { CHARTS } from './script-charts.ts';
import { CONNECTION } from './script-connection.ts';
import { DOM } from './script-dom.ts';
import { OVERVIEW } from './script-overview.ts';
import { REQUESTS } from './script-requests.ts';
import { STYLE } from './style.ts';

const FAVICON =
  "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath d='M2 8h4l2-5 2 10 1.5-5H14' fill='none' stroke='%234a7dff' stroke-width='2'/%3E%3C/svg%3E";

/** Assembles the document, and the policy that allows its script and its style sheet alone. The script's parts share one scope. */
export function createPage(): { readonly html: string; readonly policy: string } {
  const script = [DOM, CHARTS, OVERVIEW, REQUESTS, CONNECTION].join('');
  const html = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>inference-gateway</title>
<link rel="icon" href="${FAVICON}">
<style>${STYLE}</style>
</head>
<body>
${createMarkup()}
<script type="module">${script}</script>
</body>
</html>
`;
  const policy = [
    "default-src 'none'",
    `script-src ${sourceOf(script)}`,
    `style-src ${sourceOf(STYLE)}`,
    "connect-src 'self'",
    'img-src data:',
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
  ].join('; ');
  return { html, policy };
}

function sourceOf(text: string): string {
  return `'sha256-${createHash('sha256').update(text).digest('base64')}'`;
}
