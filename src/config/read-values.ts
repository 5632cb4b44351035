/** Reads all settings in the table from the file, the environment and the command line. */

import { resolve } from 'node:path';

import { foreignReference } from './foreign-references.ts';
import { isNodeSince } from '../lib/version.ts';
import { BUILT_IN_PROVIDERS, keyVariableOf, variableOf } from './built-in-providers.ts';
import {
  isTable,
  momentOf,
  parseText,
  problemsOf,
  remedyFor,
  typeOf,
  type NamedFile,
  type Rows,
  type Setting,
} from './setting-kinds.ts';
import { ConfigError, SettingValues, type SettingValue } from './setting-values.ts';
import { parseToml, readValueFile } from './settings-file.ts';
import { MIN_BUFFERED_BYTES, SETTINGS } from './settings-table.ts';

export type Env = Readonly<Record<string, string | undefined>>;

export type Flags = { readonly [K in NonNullable<Setting['flag']>]?: string | undefined };

export interface ValueSources {
  /** gateway.toml's text; empty without a file. */
  readonly toml: string;
  /** The file's path, or the variable with its text. Messages show it. */
  readonly path?: string;
  /** The directory for relative paths in `${file:...}`; by default the working directory. */
  readonly directory?: string;
  readonly env: Env;
  readonly flags?: Flags;
  /** How much memory the process may use. */
  readonly memoryBytes?: number;
  /** Called with the path of each further file, just before it is read. */
  readonly onFile?: ((path: string) => void) | undefined;
}

const VARIABLE = /\$\{([A-Za-z_][A-Za-z0-9_]*)\}/;
/**
 * A reference to a file or a variable. A file's path may contain variables:
 * `${file:${CREDENTIALS_DIRECTORY}/openai}`.
 */
const REFERENCE = new RegExp(
  `\\$\\{file:((?:[^{}]|${VARIABLE.source})*)\\}|${VARIABLE.source}`,
  'g',
);

/** The largest file that a setting names: several times a system's list of authorities. */
const MAX_FILE_BYTES = 1_048_576;

const HOUR_SECONDS = 3600;

const PREFIX = 'GATEWAY_';
/**
 * A value like `tcp://10.0.0.7:80`. Kubernetes and Docker links set such variables for a Service
 * named `gateway`, besides `GATEWAY_SERVICE_HOST`.
 */
const SERVICE_LINK = /^(?:tcp|udp|sctp):\/\//;
const SERVICE_LINK_NAME =
  /^GATEWAY_(?:\w+_)?(?:SERVICE_(?:HOST|PORT)|PORT_\d+_(?:TCP|UDP|SCTP))(?:_|$)/;

const PROXY_VARIABLES = ['HTTPS_PROXY', 'https_proxy', 'HTTP_PROXY', 'http_proxy'];
const USE_ENV_PROXY = 'NODE_USE_ENV_PROXY';
/** The first Node version with NODE_USE_ENV_PROXY. */
const PROXY_NODE = { major: 22, minor: 21 };

const REMOVED = new Set(['server.workers', 'GATEWAY_WORKERS']);
/** Follows the name of a removed setting. */
export const REMOVED_HINT =
  'was removed; use several processes at one port, ' +
  'with [server] reuse_port = true (docs/deployment.md)';

const ROWS: Readonly<Record<string, Rows>> = SETTINGS;

/**
 * Returns all settings, defaults included, with their problems and warnings. Throws `ConfigError`
 * if `toml` is not valid TOML.
 */
export function readValues(sources: ValueSources): SettingValues {
  return new ValueReader(sources).values;
}

class ValueReader {
  readonly values: SettingValues;
  readonly #sources: ValueSources;
  /** The variables looked up so far, set or not. */
  readonly #variables = new Set(['GATEWAY_CONFIG', 'GATEWAY_CONFIG_TOML']);

  constructor(sources: ValueSources) {
    this.#sources = sources;
    const filePrefix = sources.path === undefined ? '' : `${sources.path}: `;
    this.values = new SettingValues([], filePrefix);
    this.#readSection(parseToml(sources.toml, filePrefix), '', '');
    this.#warnOfUnknownVariables();
    this.#readProxy();
  }

  /** `path` is the section's name in the file, and `pattern` its name in `SETTINGS`. */
  #readSection(found: unknown, path: string, pattern: string): void {
    const table = isTable(found) ? found : {};
    const rows = ROWS[pattern] ?? {};
    const prefix = nameOf(pattern, '');
    const below = Object.keys(ROWS).filter((name) => name.startsWith(prefix));
    const sections = below.map((name) => name.slice(prefix.length).split('.')[0]!);
    const known = new Set([...Object.keys(rows), ...sections]);
    // A placeholder such as `<id>` stands for any key.
    const placeholder = [...known].find((key) => key.startsWith('<'));
    if (placeholder) known.delete(placeholder);
    if (!isTable(found)) {
      const header = placeholder && !rows[placeholder] ? nameOf(path, placeholder) : path;
      this.values.problem(path, `found ${typeOf(found)}, expected a table: [${header}]`);
      // Reading on would only report missing settings of this provider or client.
      if (pattern.endsWith('>')) return;
    }
    const { suggestions } = this.values;
    const builtIn = pattern === 'providers' ? [...BUILT_IN_PROVIDERS.keys()] : [];
    const used = builtIn.filter((id) => this.#variable(keyVariableOf(id)));
    for (const key of new Set([...known, ...Object.keys(table), ...used])) {
      const name = nameOf(path, key);
      const keyInTable = known.has(key) ? key : placeholder;
      const isSection = [table[key]].flat().some(isTable);
      const isScalar = pattern === 'providers' && !isSection && !builtIn.includes(key);
      if (keyInTable && rows[keyInTable]) {
        this.#readValue(path, key, table[key], rows[keyInTable]);
      } else if (keyInTable && !isScalar) {
        this.#readSection(table[key] ?? {}, name, nameOf(pattern, keyInTable));
      } else {
        const isPartOfName = isSection && pattern.endsWith('>');
        const elsewhere = sectionsWith(key) || (isPartOfName ? quotedHeader(name, pattern) : '');
        const hint = suggestions.didYouMean(key, [...known, ...builtIn], elsewhere);
        this.values.problem(name, REMOVED.has(name) ? REMOVED_HINT : `unknown key${hint}`);
      }
    }
  }

  #defaultOf(id: string, key: string, row: Setting): unknown {
    const { memoryBytes = 0 } = this.#sources;
    const quarter = Math.floor(memoryBytes / 4);
    if (key === 'max_buffered_bytes') return Math.max(MIN_BUFFERED_BYTES, quarter);
    if (key === 'base_url') return BUILT_IN_PROVIDERS.get(id)?.baseUrl;
    return row.inherits ? this.values.plain().get(row.inherits)?.value : row.default;
  }

  /**
   * The command line wins, then the setting's environment variable, the file, the provider's
   * variable, and the default.
   */
  #readValue(path: string, key: string, written: unknown, row: Setting): void {
    const name = nameOf(path, key);
    // A provider's id, which may contain dots. Meaningless for other sections, because their rows
    // have no `providerEnv`.
    const id = path.slice('providers.'.length);
    const variable = row.providerEnv && variableOf(id, row.providerEnv);
    const option = row.flag && this.#sources.flags?.[row.flag];
    // Lowest precedence first. A wrong value is an error even if it is overridden.
    const given: [origin: string | undefined, value: unknown][] = [
      [variable, this.#fromVariable(variable, row)],
      [undefined, this.#fromFile(name, written, row)],
      [row.env, this.#fromVariable(row.env, row)],
      [`--${row.flag}`, option === undefined ? undefined : parseText(row, option)],
    ];
    let result: SettingValue & { readonly isGiven?: true };
    result = { value: this.#defaultOf(id, key, row), row, origin: undefined };
    for (const [origin, value] of given) {
      if (value === undefined) continue;
      // Shows the text as written in the file, because a replaced reference may hold another
      // setting's key.
      const shown = origin === undefined ? written : value;
      const problems = problemsOf(row, value, shown, this.values.suggestions);
      const remedy = remedyFor(key, row, shown);
      for (const [below, text] of problems)
        this.values.problem(name + below, text + remedy, origin);
      if (problems.length > 0) continue;
      let read = row.type === 'date' ? momentOf(value) : value;
      if (row.isFile) read = this.#readFile(name, value as string);
      result = { value: read, row, origin, isGiven: true };
    }
    if (result.value !== undefined) this.values.set(name, result);
    if (result.isGiven && row.type === 'seconds') this.#warnOfMilliseconds(name, result.value);
  }

  /** Warns about seconds that look like milliseconds: more than an hour, and a multiple of 1000. */
  #warnOfMilliseconds(name: string, value: unknown): void {
    const seconds = Number(value);
    if (seconds <= HOUR_SECONDS || seconds % 1000 !== 0) return;
    const hours = (seconds / HOUR_SECONDS).toFixed(1);
    const remedy = `if you meant milliseconds, write ${seconds / 1000}`;
    const text = `${seconds} seconds are ${hours} hours; ${remedy}`;
    this.values.warning(name, text);
  }

  #fromVariable(name: string | undefined, row: Setting): unknown {
    const text = name === undefined ? undefined : this.#variable(name);
    // An empty variable counts as unset, because compose files produce them. A port's variable may
    // be a Kubernetes link.
    if (!text || (row.type === 'integer' && SERVICE_LINK.test(text))) return undefined;
    if (row.type !== 'texts') return parseText(row, text);
    // An empty item is kept so that it is refused, because "," must not mean no keys.
    return text.split(',').map((item) => item.trim());
  }

  #fromFile(name: string, written: unknown, row: Setting): unknown {
    const expanded = this.#expand(name, written, row);
    if (typeof expanded !== 'string') return expanded;
    // Like an empty variable, an empty key in the file counts as unset.
    if (row.secret === 'of a provider' && expanded.trim() === '') return undefined;
    // A replaced reference is text and must be parsed. Any other value in the file already has its
    // type.
    return expanded === written ? expanded : parseText(row, expanded);
  }

  #expand(name: string, value: unknown, row: Setting): unknown {
    if (Array.isArray(value)) return value.map((item) => this.#expand(name, item, row));
    if (isTable(value)) {
      const entries = Object.entries(value);
      return Object.fromEntries(entries.map(([key, item]) => [key, this.#expand(name, item, row)]));
    }
    if (typeof value !== 'string') return value;
    const expanded = this.#expandText(name, value, row);
    if (expanded !== value) this.values.replaced(expanded, value);
    return expanded;
  }

  /** Replacements are not expanded again. A reference that cannot be replaced stays as it is. */
  #expandText(name: string, text: string, { secret }: Setting): string {
    const { values } = this;
    // An unreplaced reference is a problem in the key of a caller, who could guess the text (see
    // `checkCallerKeys`), and in the store's URL, where it is not valid.
    const mayStay = secret === undefined || secret === 'of a provider';
    // Finds texts such as `${NAME:-default}` or `${file:/path`.
    if (mayStay && text.replace(REFERENCE, ' ').includes('${')) {
      values.unreplaced(name, '"${" does not begin a reference here');
    }
    const foreign = foreignReference(text, true);
    if (foreign && secret === 'of callers') values.problem(name, foreign);
    else if (foreign) values.unreplaced(name, foreign);
    return text.replace(REFERENCE, (reference, path?: string, _?, variable = '') => {
      try {
        if (path === undefined) return this.#valueOf(variable);
        const variables = new RegExp(VARIABLE, 'g');
        const actual = path.replaceAll(variables, (_whole, one: string) => this.#valueOf(one));
        return this.#textOfFile(actual, path);
      } catch (error) {
        if (!(error instanceof ConfigError)) throw error;
        const { message } = error;
        if (path !== undefined || !mayStay) values.problem(name, message);
        else values.unreplaced(name, message);
        return reference;
      }
    });
  }

  #readFile(name: string, path: string): NamedFile | undefined {
    try {
      return { path, text: this.#textOfFile(path, this.values.asWritten(path), MAX_FILE_BYTES) };
    } catch (error) {
      if (!(error instanceof ConfigError)) throw error;
      return this.values.problem(name, error.message);
    }
  }

  #valueOf(name: string): string {
    const value = this.#variable(name);
    if (value === undefined) throw new ConfigError([`environment variable ${name} is not set`]);
    return value;
  }

  #textOfFile(path: string, written: string, maxBytes?: number): string {
    const absolute = resolve(this.#sources.directory ?? '', path);
    this.#sources.onFile?.(absolute);
    // Messages show the path as written, because a variable's value may be a key by mistake.
    return readValueFile(absolute, written === path ? absolute : written, maxBytes);
  }

  /** Remembers the variable, so that no warning calls it unknown. */
  #variable(name: string): string | undefined {
    const { env } = this.#sources;
    this.#variables.add(name);
    return Object.hasOwn(env, name) ? env[name] : undefined;
  }

  #warnOfUnknownVariables(): void {
    const known = [...this.#variables].filter((name) => name.startsWith(PREFIX));
    for (const [name, value = ''] of Object.entries(this.#sources.env)) {
      const isOther = !name.startsWith(PREFIX) || known.includes(name);
      if (isOther || SERVICE_LINK_NAME.test(name) || SERVICE_LINK.test(value)) continue;
      const hint = this.values.suggestions.didYouMean(name, known);
      if (value && REMOVED.has(name)) this.values.problem(name, REMOVED_HINT, name);
      else this.values.warning(name, `no setting reads this variable${hint}`);
    }
  }

  /**
   * Selects fetch if Node uses a proxy of the environment, because only fetch connects through it.
   * Unlike curl and SDKs for other languages, Node uses it only if NODE_USE_ENV_PROXY is set: warns
   * about a proxy that is not used.
   */
  #readProxy(): void {
    const { env } = this.#sources;
    const name = PROXY_VARIABLES.find((variable) => env[variable]);
    if (name === undefined) return;
    const { node } = process.versions;
    if (!isNodeSince(node, PROXY_NODE)) {
      const needed = `Node ${PROXY_NODE.major}.${PROXY_NODE.minor} or newer`;
      const text = `${needed} with ${USE_ENV_PROXY}=1 would use it, but this is Node ${node}`;
      return this.values.warning(name, `providers are reached without this proxy; ${text}`);
    }
    const { NODE_OPTIONS = '', [USE_ENV_PROXY]: isWanted } = env;
    const options = [NODE_OPTIONS, ...process.execArgv].join(' ');
    if (isWanted === '1' || options.includes('--use-env-proxy')) {
      const row = SETTINGS.server.upstream;
      this.values.set('server.upstream', { value: 'fetch', row, origin: USE_ENV_PROXY });
      return undefined;
    }
    const text = `providers are reached without this proxy; set ${USE_ENV_PROXY}=1 to use it`;
    return this.values.warning(name, text);
  }
}

/** Returns a hint at the sections that have this setting, or that have this name. */
function sectionsWith(key: string): string {
  const names = Object.keys(ROWS);
  const section = names.find((name) => name.replace(/\.<.*/, '').split('.').at(-1) === key);
  if (section !== undefined) return `; the section is [${section}]`;
  const homes = names.filter((name) => Object.hasOwn(ROWS[name]!, key));
  if (homes.length === 0) return '';
  return `; ${key} is a setting of ${homes.map((name) => `[${name}]`).join(', ')}`;
}

/** Returns a hint at the header for a name with a dot. `pattern` is as `clients.<name>`. */
function quotedHeader(name: string, pattern: string): string {
  const section = pattern.slice(0, pattern.lastIndexOf('.'));
  const id = JSON.stringify(name.slice(section.length + 1));
  return `; a name with a dot needs quotes: [${section}.${id}]`;
}

function nameOf(path: string, key: string): string {
  return path === '' ? key : `${path}.${key}`;
}
