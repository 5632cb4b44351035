/** The rows of the page's tables. Texts have times in ISO 8601. */

import type { Config } from '../config/config.ts';
import { aliasFor, parseTarget, targetFor, targetNamed } from '../config/aliases-section.ts';
import {
  answersOf,
  formatCount,
  formatDuration,
  type Icon,
  join,
  type Notice,
} from '../incidents/notice.ts';
import {
  type Counts,
  judgeCounts,
  markOf,
  type Situation,
  statesOf,
} from '../incidents/verdict.ts';
import { LIMITS } from '../lib/limits.ts';
import type { Figures } from './figures.ts';
import type { Chain } from './recent-requests.ts';
import type { Traffic } from './traffic.ts';

/** The age of a provider's oldest request is shown from here on. */
const OLD_MS = 5000;

type Report = ReturnType<Traffic['report']>;
/** Failing rows come first, skipped providers last. */
type Rank = 0 | 1 | 2;

const isFailing = (row: Counts) => judgeCounts(row).end === 'failed';

/** Returns the rows of providers, models and clients by their names. */
export function describeRows(
  config: Config,
  figures: Figures,
  report: Report,
  situation: Situation,
) {
  const models = Object.entries(report.models).map(([name, row]) => {
    const unknownTo = report.unknownTo.get(name);
    const mark = markOf(row, situation, (one) => one.name === name);
    const rank: Rank = mark || unknownTo || isFailing(row) ? 0 : 1;
    return [name, { ...row, mark, unknownTo, rank, chain: askedChainOf(name, config, situation) }];
  });
  const clients = Object.entries(report.clients).map(([name, row]) => {
    const mark = markOf(row, situation, (one) => one.clients?.split(', ').includes(name) === true);
    const rank: Rank = mark || isFailing(row) ? 0 : 1;
    return [name, { ...row, mark, rank, limits: usedLimitsOf(name, figures, situation) }];
  });
  return {
    providers: describeProviders(config, figures, report.providers, situation),
    models: Object.fromEntries(models) as Readonly<Record<string, object>>,
    clients: Object.fromEntries(clients) as Readonly<Record<string, object>>,
  };
}

/** Returns the rows of registered providers, and of configured providers without a key. */
function describeProviders(
  { providers: { registered, skipped } }: Config,
  figures: Figures,
  sums: Report['providers'],
  situation: Situation,
): Readonly<Record<string, object>> {
  const agesMs = figures.oldestAgesMs();
  const asked = registered.map(({ id }) => {
    const { minute = {}, latest, ...row } = sums[id] ?? {};
    const { connect, p50, p95 } = minute;
    const times = isSlow(id, situation) ? { connect, p50, p95 } : undefined;
    const states = statesOf(id, situation);
    const mark = (['bad', 'warn'] as const).find((icon) => states.some(([own]) => own === icon));
    const ageMs = agesMs.get(id) ?? 0;
    const isIdle = states[0]![0] === 'off' && latest !== undefined;
    const waiting = figures.waitingFor(id) ?? 0;
    const details = [
      ...states.map(([, , detail]) => detail),
      times !== undefined && 'times of the last minute',
      isIdle && `since ${new Date(latest).toISOString()}`,
      ...keptAway(id, figures),
      waiting > 0 && `${formatCount(waiting)} waiting`,
      ageMs >= OLD_MS && `oldest request ${formatDuration(Math.floor(ageMs / 1000))}`,
    ].filter(Boolean);
    const rank: Rank = mark ? 0 : 1;
    const inFlight = figures.inFlightOf(`providers.${id}`);
    const told = states.map(([icon, text]) => [icon, text]);
    return [id, { ...row, ...times, states: told, details, mark, rank, inFlight }];
  });
  // Built-in providers without a key are shown only if the settings name them.
  const named = skipped.filter(({ isConfigured }) => isConfigured);
  const rest = named.map(({ id, reason: skippedFor }) => {
    return [id, { states: [['off', 'Skipped']], details: [skippedFor], skipped: true, rank: 2 }];
  });
  return Object.fromEntries([...asked, ...rest]) as Record<string, object>;
}

/** Returns whether the times of 15 minutes would hide that the provider is slow now. */
const isSlow = (id: string, { lasting }: Situation) =>
  lasting.some(({ kind, provider }) => provider === id && kind === 'slow');

/** Returns the provider's open circuits in words. */
function keptAway(id: string, figures: Figures): string[] {
  const circuits = figures.providers().get(id)!.breaker.report();
  const open = circuits.filter(({ state }) => state === 'open');
  return open.map(({ model, isStream, halfOpenAtMs }) => {
    const answers = model !== undefined && `${answersOf(isStream === true)} of ${model}`;
    return join([answers, `kept away until ${wallClock(halfOpenAtMs)}`], ' ');
  });
}

/** Returns a number as text, and a million or more as `4.1 M`. */
const formatShort = (value: number) =>
  value < 1e6 ? formatCount(value) : `${formatCount(Math.round(value / 1e5) / 10)} M`;

/** Returns the used part of a client's limits, and the limit that refuses now. */
function usedLimitsOf(client: string, figures: Figures, { lasting }: Situation) {
  const refusing = lasting.find((one) => one.client === client)?.causes[0] ?? '';
  const used = figures.usedOf(client).map(({ limit, unit, used: count, capacity }) => {
    const isRefusing = refusing.includes(limit.replace('client_', ''));
    const icon = isRefusing || count >= capacity ? 'warn' : 'bar';
    const share = Math.min(1, count / capacity);
    const left = `, ${formatShort(Math.max(0, capacity - count))} left`;
    const text = `${formatShort(count)} of ${formatShort(capacity)}`;
    return { icon, unit, share, text: 'period' in LIMITS[limit] ? text + left : text };
  });
  const isShown = refusing === '' || used.some(({ icon }) => icon === 'warn');
  const text = refusing.replace(`clients.${client}`, '').replace(/^[.:] */, '');
  const other = { icon: 'warn', unit: '', share: 1, text };
  const all = isShown ? used : [other, ...used];
  return all.length > 0 ? all : undefined;
}

/** Returns the providers that would be asked for a model, if there are several. */
function askedChainOf(name: string, config: Config, situation: Situation): Chain | undefined {
  const { providers } = config;
  const alias = aliasFor(name, config);
  const known = new Map(providers.registered.map((one) => [one.id, one]));
  const targets =
    alias?.targets.map((target) => targetFor(target, alias, name)) ??
    [targetNamed(name, providers, known) ?? []].flat();
  const asked = new Map<string, string>();
  for (const { providerId, model: named } of [...targets, ...providers.fallback.map(parseTarget)]) {
    const provider = known.get(providerId);
    if (!provider || asked.has(providerId)) continue;
    const [first = ''] = asked.values();
    asked.set(providerId, named || (provider.defaultModel ?? first));
  }
  if (asked.size < 2) return undefined;
  return Array.from(asked, ([id, model]) => [iconOf(id, model, situation), id]);
}

/** Returns a provider's icon for a model: `bad` while the model fails there. */
function iconOf(id: string, model: string, { lasting }: Situation): Icon {
  const fails = ({ models, provider }: Notice) =>
    provider === id && models && (models.length === 0 || models.includes(model));
  return lasting.some(fails) ? 'bad' : 'good';
}

/**
 * Returns a time of `performance.now()` as a time of day in whole seconds, so that it stays equal.
 */
function wallClock(atMs: number): string {
  const time = Date.now() + atMs - performance.now();
  return new Date(Math.round(time / 1000) * 1000).toISOString();
}
