/** What `--check` prints, as text and as JSON. */

import type { Config } from '../config/config.ts';
import type { SettingsSource } from '../config/read-settings.ts';
import { describeWarning, NO_PROVIDERS, warningsOf } from './startup-report.ts';

/** What one provider answered to a request for its model list. */
export interface ProviderCheck {
  readonly provider: string;
  /** Which of its keys was used, from 1; undefined if it has only one. */
  readonly key: number | undefined;
  /** The gateway can use the provider with this key. */
  readonly ok: boolean;
  /** Undefined if it did not answer. */
  readonly status: number | undefined;
  /** How many models its list has; undefined if it has no list. */
  readonly models: number | undefined;
  /** The result in words, for the operator. */
  readonly message: string;
}

/** What the store of rate limits answered. */
export interface StoreCheck {
  /** The gateway can use it. */
  readonly ok: boolean;
  /** The result in words; never holds the password. */
  readonly message: string;
}

export interface Checks {
  readonly providers: readonly ProviderCheck[];
  /** Undefined if the settings have no store. */
  readonly store: StoreCheck | undefined;
}

/** Whether a provider was asked, and nothing failed. `checks` is undefined if nobody was to be asked. */
export function isPassed(checks: Checks | undefined): boolean {
  if (checks === undefined) return true;
  const { providers, store } = checks;
  return providers.length > 0 && [...providers, store].every((one) => one?.ok !== false);
}

/** Every setting with the value in use, keys masked; then the providers, and the warnings. */
export function describeConfig(config: Config, source: SettingsSource): string {
  const { registered, skipped } = config.providers;
  return toLines([
    `settings   ${source.text}`,
    ...[...config.resolved].map(([name, value]) => `${name} = ${JSON.stringify(value)}`).toSorted(),
    ...registered.map(({ id }) => `registered ${id}`),
    ...skipped.map(({ id, reason }) => `skipped    ${id}: ${reason}`),
    ...warningsOf(config).map(describeWarning),
  ]);
}

/** A table with a line for each key of each provider, and one for the store, after an empty line. */
export function describeChecks({ providers, store }: Checks): string {
  const rows = providers.map(({ provider, key, status, message }) => ({
    name: key ? `${provider} key ${key}` : provider,
    result: status ? `${status}  ${message}` : message,
  }));
  if (rows.length === 0) rows.push({ name: 'providers', result: NO_PROVIDERS });
  if (store) rows.push({ name: 'rate_limit.store', result: store.message });
  const width = Math.max(...rows.map(({ name }) => name.length));
  return toLines(['', ...rows.map(({ name, result }) => `${name.padEnd(width)}  ${result}`)]);
}

/** The same as JSON. `checks` is undefined if nobody was asked. */
export function checkToJson(
  config: Config,
  source: SettingsSource,
  checks: Checks | undefined,
): string {
  const { registered, skipped } = config.providers;
  return toDocument({
    ok: isPassed(checks),
    problems: [],
    warnings: warningsOf(config),
    file: (source.isFound && source.path) || null,
    settings: Object.fromEntries(config.resolved),
    registered: registered.map(({ id }) => id),
    skipped: skipped.map(({ id, reason }) => ({ provider: id, reason })),
    checks: checks?.providers,
    store: checks?.store,
  });
}

/** The document of settings that are wrong. */
export function problemsToJson(problems: readonly string[]): string {
  return toDocument({ ok: false, problems });
}

function toLines(lines: readonly string[]): string {
  return lines.map((line) => `${line}\n`).join('');
}

function toDocument(value: object): string {
  return `${JSON.stringify(value, undefined, 2)}\n`;
}
