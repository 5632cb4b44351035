/** Contenders outside npm, downloaded once into the cache of test/deploy/tools.ts. */

import { findTool, type Tool } from '../test/deploy/tools.ts';
import { onAllCores } from './processes.ts';
import { SOURCES, type ToolName } from './sources.ts';

/** A limit for downloads, mostly for compiling and for a slow network. */
const FETCH_MS = 1_800_000;

const found = new Map<ToolName, Tool | string>();

/** Returns the program, downloaded if it is missing, or the reason why there is none. */
export function toolOf(name: ToolName): Tool | string {
  const known = found.get(name);
  if (known !== undefined) return known;
  process.stderr.write(`looking for ${name}\n`);
  const { commands, ...source } = SOURCES[name];
  const onCores = { ...source, commands: commands.map(onAllCores) };
  const tool = findTool(name, onCores, { cache: 'bench', timeout: FETCH_MS });
  found.set(name, tool);
  return tool;
}
