/**
 * Writes dist/server.js (`npm run build`): all files of src, and smol-toml, in a single file with
 * their comments. swc, which Node has too, replaces types by spaces. Rollup orders and joins the
 * files. oxfmt removes the spaces.
 *
 * Needs `node --conditions=bundle`, because Node's own resolver finds packages and `#page-files`.
 */

import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';

import { transformSync } from '@swc/wasm-typescript';
import { format } from 'oxfmt';
import { rollup } from 'rollup';

const ROOT = join(import.meta.dirname, '..');
const SERVER = join(ROOT, 'dist/server.js');
/** Matches a type's comment. It would seem to belong to the declaration after the erased type. */
const TYPE_COMMENT =
  /^ *(?:\/\*\*(?:(?!\*\/)[^])*\*\/\n|(?:\/\/.*\n *)+)(?= *(?:export )?(?:interface|type) )/gm;

function toModule(code, file, isText) {
  if (isText) return `export default \`${code.replace(/[\\`]|\$\{/g, '\\$&')}\`;\n`;
  if (!file.endsWith('.ts')) return code;
  return transformSync(code.replace(TYPE_COMMENT, ''), { mode: 'strip-only' }).code;
}

const sources = {
  name: 'sources',
  resolveId(id) {
    return /^[./]/.test(id) ? undefined : fileURLToPath(import.meta.resolve(id));
  },
  transform(code, path) {
    // The packages' folder may be a link.
    const file = relative(ROOT, path).replace(/^.*(?=node_modules\/)/, '');
    const module = toModule(code, file, this.getModuleInfo(path).attributes.type === 'text');
    return module.replace(/^(#!.*\n)?/, `$1// ${file}\n`);
  },
};

const bundle = await rollup({
  input: join(ROOT, 'src/server.ts'),
  external: /^node:/,
  plugins: [sources],
  // Whole files, so a reader can compare each with its source.
  treeshake: false,
  onLog(_, { code, ids, message }) {
    // A cycle inside smol-toml is not this project's fault.
    if (code !== 'CIRCULAR_DEPENDENCY' || !ids.every((id) => id.includes('node_modules'))) {
      throw new Error(message);
    }
  },
});
const [{ code: joined }] = (await bundle.generate({ format: 'es' })).output;
const options = JSON.parse(readFileSync(join(ROOT, '.oxfmtrc.json'), 'utf8'));
const { code, errors } = await format(SERVER, joined, options);
if (errors.length > 0) throw new Error(errors[0].message);
// The text stays in memory, with two bytes a character unless the whole text is ASCII.
const escaped = code.replace(
  /[^\0-\x7f]/g,
  (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`,
);
mkdirSync(dirname(SERVER), { recursive: true });
writeFileSync(SERVER, escaped, { mode: 0o755 });
