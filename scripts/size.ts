/** The size of `src`, by folder, as minified bytes: comments, formatting and local names are free. */

import { readdirSync, readFileSync } from 'node:fs';
import { dirname, extname, join, relative } from 'node:path';

import { transformSync, type Loader } from 'esbuild';

/**
 * Returns the minified bytes of the files in a folder, each file alone, by subfolder in
 * alphabetical order. A file that esbuild cannot minify counts in full.
 */
export function minifiedBytes(root: string): Map<string, number> {
  const sizes = new Map<string, number>();
  for (const entry of readdirSync(root, { recursive: true, withFileTypes: true })) {
    if (!entry.isFile()) continue;
    const path = join(entry.parentPath, entry.name);
    const text = readFileSync(path, 'utf8');
    const type = extname(entry.name).slice(1);
    const isCode = ['css', 'js', 'ts'].includes(type);
    const code = isCode ? transformSync(text, { loader: type as Loader, minify: true }).code : text;
    const folder = dirname(relative(root, path));
    sizes.set(folder, (sizes.get(folder) ?? 0) + Buffer.byteLength(code));
  }
  return new Map([...sizes].toSorted(([a], [b]) => a.localeCompare(b)));
}
