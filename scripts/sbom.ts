/**
 * Prints the components of dist/server.js as CycloneDX 1.5 JSON: the packages with files in it, as
 * package-lock.json pins them. Without a time and a serial number, so the same file gives the same
 * text.
 */

import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';

interface Package {
  readonly version: string;
  readonly license: string;
  /** `sha512-`, followed by the package's checksum in base64. */
  readonly integrity: string;
}

const read = (path: string) => readFileSync(new URL(`../${path}`, import.meta.url), 'utf8');
const readJson = (path: string) => JSON.parse(read(path)) as unknown;

function describe(type: string, name: string, { version, license }: Omit<Package, 'integrity'>) {
  const purl = `pkg:npm/${name.replace('@', '%40')}@${version}`;
  const licenses = [{ license: { id: license } }];
  return { type, 'bom-ref': purl, name, version, purl, licenses };
}

const program = read('dist/server.js');
const own = readJson('package.json') as Package & { readonly name: string };
const { packages } = readJson('package-lock.json') as { packages: Record<string, Package> };
// scripts/build.mjs names the file of each part.
const files = program.matchAll(/^\/\/ (?:.*\/)?node_modules\/((?:@[^/]+\/)?[^/]+)\//gm);
const components = [...new Set([...files].map(([, name]) => name!))].map((name) => {
  const locked = packages[`node_modules/${name}`]!;
  const content = Buffer.from(locked.integrity.replace('sha512-', ''), 'base64').toString('hex');
  return { ...describe('library', name, locked), hashes: [{ alg: 'SHA-512', content }] };
});
const content = createHash('sha256').update(program).digest('hex');
const component = {
  ...describe('application', own.name, own),
  hashes: [{ alg: 'SHA-256', content }],
};
const dependencies = [
  { ref: component['bom-ref'], dependsOn: components.map((one) => one['bom-ref']) },
];
const metadata = { component };
const head = { bomFormat: 'CycloneDX', specVersion: '1.5', version: 1 };
process.stdout.write(
  `${JSON.stringify({ ...head, metadata, components, dependencies }, undefined, 2)}\n`,
);
