/** The operator's page: an HTML document that loads nothing, and its Content-Security-Policy. */

import { createHash } from 'node:crypto';

import { html as template, scripts, style } from '#page-files';

/** The scripts are modules for editors and linters. In the page they share a scope. */
const IMPORT_OR_EXPORT = /^import [^;]*;\n+|^export /gm;
/** A tenth of the page. No text of the page's files spans lines. */
const INDENTATION = /^ +/gm;

/** Returns the document, and a policy that allows only its script and style sheet. */
export function createPage() {
  const script = scripts.join('\n').replace(IMPORT_OR_EXPORT, '').replace(INDENTATION, '');
  const styles = style.replace(INDENTATION, '');
  const html = template
    .replace('</style>', () => `${styles}</style>`)
    .replace('</script>', () => `${script}</script>`);
  const sourceOf = (text: string) =>
    `'sha256-${createHash('sha256').update(text).digest('base64')}'`;
  const policy = [
    "default-src 'none'",
    `script-src ${sourceOf(script)}`,
    `style-src ${sourceOf(styles)}`,
    "connect-src 'self'",
    'img-src data:',
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
  ].join('; ');
  return { html, policy };
}
