/**
 * Reads the file's table, the environment and the command line by the table of settings. Problems are collected and
 * reported together.
 */

import { didYouMean } from '../lib/did-you-mean.ts';
import { BUILT_IN_PROVIDERS, keyVariableOf, variableOf } from './built-in-providers.ts';
import { expandReferences, hasBrokenReference } from './references.ts';
import {
  accepts,
  describe,
  expectedOf,
  isTable,
  parseText,
  typeOf,
  type Rows,
  type Setting,
  type Table,
} from './setting-kinds.ts';
import { MIN_BUFFERED_BYTES } from './settings-table.ts';
import { parseToml } from './settings-file.ts';
import { SettingValues, type SettingValue } from './setting-values.ts';
import { SETTINGS } from './settings-table.ts';

export type Env = Readonly<Record<string, string | undefined>>;

/** The settings that the command line may override. */
export type Flags = { readonly [K in NonNullable<Setting['flag']>]?: string | undefined };

export interface ValueSources {
  /** Text of gateway.toml; empty if there is no file. */
  readonly toml: string;
  /** The path of the file, or the variable that holds its text, for messages. */
  readonly path?: string;
  /** The paths of `${file:...}` are relative to it; else to the working directory. */
  readonly directory?: string;
  readonly env: Env;
  readonly flags?: Flags;
  /** The memory that the process may use, in bytes. */
  readonly memoryBytes?: number;
}

const PREFIX = 'GATEWAY_';
/** `tcp://10.0.0.7:80`: what Kubernetes and Docker links set for a Service `gateway`, besides `GATEWAY_SERVICE_HOST`. */
const SERVICE_LINK = /^(?:tcp|udp|sctp):\/\//;
const SERVICE_LINK_NAME =
  /^GATEWAY_(?:\w+_)?(?:SERVICE_(?:HOST|PORT)|PORT_\d+_(?:TCP|UDP|SCTP))(?:_|$)/;
const SERVICE_LINK_HINT =
  '; Kubernetes sets this variable for a Service named "gateway": set enableServiceLinks: false in the pod, or rename the Service';

/** A section of the file, with its name. */
interface Place {
  readonly table: Table;
  readonly path: string;
}

/** Additions to the rows of the table of settings. */
interface RowSources {
  /** The keys of sections in it. */
  readonly sections?: Iterable<string>;
  /** By key, the default that its row cannot have. */
  readonly defaults?: Readonly<Record<string, unknown>>;
  /** By key, the variable that is read if the file does not set it. */
  readonly variables?: Readonly<Record<string, string>>;
}

/** Returns the value of every setting that has one, defaults included. Throws `ConfigError` if the text is no TOML. */
export function readValues(sources: ValueSources): SettingValues {
  return new ValueReader(sources).values;
}

class ValueReader {
  readonly values: SettingValues;
  readonly #sources: ValueSources;
  /** The variables that are looked up, set or not. */
  readonly #variables = new Set(['GATEWAY_CONFIG', 'GATEWAY_CONFIG_TOML']);

  constructor(sources: ValueSources) {
    this.#sources = sources;
    const { toml, path, memoryBytes = Infinity } = sources;
    const filePrefix = path === undefined ? '' : `${path}: `;
    this.values = new SettingValues([], filePrefix);
    const top = { table: parseToml(toml, filePrefix), path: '' };
    const server = this.#below(top, 'server');
    const quarter = memoryBytes === Infinity ? 0 : Math.floor(memoryBytes / 4);
    const defaults = { max_buffered_bytes: Math.max(MIN_BUFFERED_BYTES, quarter) };
    this.#readRows(server, SETTINGS.server, { defaults, sections: ['auth'] });
    this.#readRows(this.#below(server, 'auth'), SETTINGS['server.auth']);
    this.#readNamed(this.#below(top, 'clients'), SETTINGS['clients.<name>']);
    this.#readRows(this.#below(top, 'admin'), SETTINGS.admin);
    this.#readRows(this.#below(top, 'logging'), SETTINGS.logging);
    this.#readProviders(this.#below(top, 'providers'));
    const aliases = this.#below(top, 'aliases');
    for (const alias of Object.keys(aliases.table)) {
      this.#readValue(aliases, alias, SETTINGS.aliases['<alias>']);
    }
    const rateLimit = this.#below(top, 'rate_limit');
    this.#readRows(rateLimit, SETTINGS.rate_limit, { sections: ['providers'] });
    const limits = this.#below(rateLimit, 'providers');
    this.#readNamed(limits, SETTINGS['rate_limit.providers.<id>']);
    const sections = new Set(Object.keys(SETTINGS).map((name) => name.split('.')[0]!));
    this.#readRows(top, {}, { sections });
    this.#warnOfUnknownVariables();
  }

  #readNamed(place: Place, rows: Rows): void {
    for (const name of Object.keys(place.table)) this.#readRows(this.#below(place, name), rows);
  }

  /** Reads the providers that have a section, and the built-in ones that have a key. */
  #readProviders(place: Place): void {
    const { table } = place;
    const builtIn = [...BUILT_IN_PROVIDERS.keys()];
    const written = Object.keys(table).filter(
      (id) => isTable(table[id]) && !Object.hasOwn(SETTINGS.providers, id),
    );
    const used = builtIn.filter(
      (id) => table[id] !== undefined || this.#variable(keyVariableOf(id)),
    );
    const rows = SETTINGS['providers.<id>'];
    const { timeoutMs, retries } = this.values.section('server');
    const sections = new Set([...written, ...builtIn]);
    this.#readRows(place, SETTINGS.providers, { sections });
    for (const id of new Set([...written, ...used])) {
      const defaults = {
        base_url: BUILT_IN_PROVIDERS.get(id)?.baseUrl,
        timeout: timeoutMs / 1000,
        retries,
      };
      const own = builtIn.includes(id) && {
        base_url: variableOf(id, rows.base_url.providerEnv),
        default_model: variableOf(id, rows.default_model.providerEnv),
      };
      const variables = { api_key: keyVariableOf(id), ...own };
      this.#readRows(this.#below(place, id), rows, { defaults, variables });
    }
  }

  /** The section below another, empty if the file has none. */
  #below({ table, path }: Place, key: string): Place {
    const below = { table: {}, path: nameOf(path, key) };
    const value = table[key] ?? {};
    if (isTable(value)) return { ...below, table: value };
    this.values.problem(below.path, `found ${typeOf(value)}, expected a table`);
    return below;
  }

  #readRows(place: Place, rows: Rows, sources: RowSources = {}): void {
    for (const [key, row] of Object.entries(rows)) this.#readValue(place, key, row, sources);
    const known = [...Object.keys(rows), ...(sources.sections ?? [])];
    for (const key of Object.keys(place.table).filter((one) => !known.includes(one))) {
      this.values.problem(nameOf(place.path, key), `unknown key${didYouMean(key, known)}`);
    }
  }

  /** Reads one key: command line, then environment, then the file, then its variable in `sources`, then the default. */
  #readValue(place: Place, key: string, row: Setting, sources: RowSources = {}): void {
    const name = nameOf(place.path, key);
    const written = place.table[key];
    const variable = sources.variables?.[key];
    const option = row.flag && this.#sources.flags?.[row.flag];
    // Lowest first: a wrong one is reported even if another overrides it.
    const given: [origin: string | undefined, value: unknown][] = [
      [variable, this.#fromVariable(variable, row)],
      [undefined, this.#fromFile(name, written, row)],
      [row.env, this.#fromVariable(row.env, row)],
      [`--${row.flag}`, option === undefined ? undefined : parseText(row, option)],
    ];
    const fallback = sources.defaults?.[key] ?? row.default;
    let result: SettingValue = { value: fallback, row, origin: undefined };
    for (const [origin, value] of given) {
      if (value === undefined) continue;
      if (accepts(row, value)) {
        result = { value, row, origin };
        continue;
      }
      // As it stands in the file: what replaced a reference may be a key that belongs to another setting.
      const shown = origin === undefined ? written : value;
      const found = row.key ? typeOf(value) : describe(shown);
      const isLink = origin !== undefined && typeof value === 'string' && SERVICE_LINK.test(value);
      const hint = isLink ? SERVICE_LINK_HINT : '';
      this.values.problem(name, `found ${found}, expected ${expectedOf(row)}${hint}`, origin);
    }
    if (result.value !== undefined) this.values.set(name, result);
  }

  #fromVariable(name: string | undefined, row: Setting): unknown {
    const text = name === undefined ? undefined : this.#variable(name);
    // An empty variable counts as unset: compose files produce them.
    if (!text) return undefined;
    if (row.type !== 'texts') return parseText(row, text);
    // An empty item stays, to be refused: "," must not mean that there are no keys.
    return text.split(',').map((item) => item.trim());
  }

  #fromFile(name: string, written: unknown, row: Setting): unknown {
    const expanded = this.#expand(name, written, row);
    if (typeof expanded !== 'string') return expanded;
    // Like an empty variable, an empty key in the file counts as unset.
    if (row.key === 'of a provider' && expanded.trim() === '') return undefined;
    // A replaced reference is text; another value of the file has its type already.
    return expanded === written ? expanded : parseText(row, expanded);
  }

  /** Looks up a variable of the environment: no warning says then that nothing reads it. */
  #variable(name: string): string | undefined {
    const { env } = this.#sources;
    this.#variables.add(name);
    return Object.hasOwn(env, name) ? env[name] : undefined;
  }

  /** Replaces the references in a text, or in the texts of an array or a table. */
  #expand(name: string, value: unknown, row: Setting): unknown {
    if (Array.isArray(value)) return value.map((item) => this.#expand(name, item, row));
    if (isTable(value)) {
      const entries = Object.entries(value);
      return Object.fromEntries(entries.map(([key, item]) => [key, this.#expand(name, item, row)]));
    }
    if (typeof value !== 'string') return value;
    // The other keys must not have it at all: `checkCallerKey`, `readStore`.
    const mayStay = row.key === undefined || row.key === 'of a provider';
    if (mayStay && hasBrokenReference(value)) {
      this.values.warning(name, '"${" begins no reference here; the text is used as written');
    }
    const expanded = expandReferences(value, {
      directory: this.#sources.directory ?? '',
      variable: (variable) => this.#variable(variable),
      problem: (text) => this.values.problem(name, text),
      onUnset: (text) => {
        if (mayStay) this.values.warning(name, `${text}; the text is used as written`);
        else this.values.problem(name, text);
      },
    });
    if (expanded !== value) this.values.replaced(expanded, value);
    return expanded;
  }

  #warnOfUnknownVariables(): void {
    const known = [...this.#variables].filter((name) => name.startsWith(PREFIX));
    for (const [name, value = ''] of Object.entries(this.#sources.env)) {
      const isOther = !name.startsWith(PREFIX) || known.includes(name);
      if (isOther || SERVICE_LINK_NAME.test(name) || SERVICE_LINK.test(value)) continue;
      this.values.warning(name, `no setting has this variable${didYouMean(name, known)}`);
    }
  }
}

function nameOf(path: string, key: string): string {
  return path === '' ? key : `${path}.${key}`;
}
