/** What `--check` prints, as text and as JSON. */

import type { Config } from '../config/config.ts';
import type { SettingsSource } from '../config/read-settings.ts';
import { describeWarning, warningsOf } from './startup-report.ts';

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

/** A table with a line for each key of each provider, after an empty line; nothing if there are none. */
export function describeChecks(checks: readonly ProviderCheck[]): string {
  if (checks.length === 0) return '';
  const names = checks.map(({ provider, key }) => (key ? `${provider} key ${key}` : provider));
  const width = Math.max(...names.map((name) => name.length));
  const lines = checks.map(({ status, message }, row) =>
    [names[row]!.padEnd(width), ...(status ? [status] : []), message].join('  '),
  );
  return toLines(['', ...lines]);
}

/** The same as JSON. `checks` is undefined if no provider was asked. */
export function checkToJson(
  config: Config,
  source: SettingsSource,
  checks: readonly ProviderCheck[] | undefined,
): string {
  const { registered, skipped } = config.providers;
  return toDocument({
    ok: checks?.every(({ ok }) => ok) ?? true,
    problems: [],
    warnings: warningsOf(config),
    file: (source.isFound && source.path) || null,
    settings: Object.fromEntries(config.resolved),
    registered: registered.map(({ id }) => id),
    skipped: skipped.map(({ id, reason }) => ({ provider: id, reason })),
    checks,
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
