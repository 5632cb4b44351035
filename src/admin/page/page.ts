/** The operator's page. */

import { createHash } from 'node:crypto';

export interface Page {
  readonly html: string;
  /** `sha256-…`, as the policy's `script-src` and `style-src` take it, without the quotes. */
  readonly scriptHash: string;
  readonly styleHash: string;
}

export function createPage(): Page {
  const hash = `sha256-${createHash('sha256').update('').digest('base64')}`;
  return {
    html: '<!doctype html><title>inference-gateway</title>',
    scriptHash: hash,
    styleHash: hash,
  };
}
