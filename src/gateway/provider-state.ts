/** A provider, and what the gateway has learnt of it from the answers to its requests. */

import { allAliases } from '../config/aliases-section.ts';
import type { Config } from '../config/config.ts';
import type { missingModels } from '../config/named-models.ts';
import { type Incidents, Subject } from '../incidents/incidents.ts';
import type { Logger } from '../lib/log.ts';
import type { Redactor } from '../lib/secrets.ts';
import { CircuitBreaker } from '../policy/circuit-breaker.ts';
import { FirstTokenTimes } from '../policy/first-token-times.ts';
import { KeyPool } from '../policy/key-pool.ts';
import type { Limiter } from '../policy/limiter.ts';
import type { ListedModel } from '../protocol/model-list.ts';
import { createOpenAIProvider, type Provider } from '../upstream/connections/provider.ts';

/**
 * A provider of a snapshot of the settings. A reload that leaves the provider's settings as they
 * were keeps its parts. Otherwise the provider gets new parts, so that the results of requests in
 * flight reach only the former parts.
 */
export interface ProviderState extends Provider {
  readonly breaker: CircuitBreaker;
  /** Undefined for a provider with a single key. */
  readonly keyPool: KeyPool | undefined;
  readonly modelList: CachedList;
  /** The tries, the states and the incident of the provider. */
  readonly subject: Subject;
  /** By the target of an alias with `balance = "fastest"`, as in the settings. */
  readonly firstTokenTimes: ReadonlyMap<string, FirstTokenTimes>;
  /** Each snapshot has its own, because the limits of `[rate_limit]` may change alone. */
  readonly limiter: Limiter;
}

export interface CachedList {
  models: readonly ListedModel[];
  /** Models named in the settings but missing in the latest list. Each was logged as a warning. */
  missing?: ReturnType<typeof missingModels>;
  /** How many models the latest list had with a name that is too long. */
  leftOut?: number;
  /** A request from then on fetches the list again. */
  staleAtMs: number;
  /** Whether the last fetch succeeded; undefined before the first fetch. */
  isUp?: boolean;
  /** The fetch under way. Other requests wait for it too. */
  fetching?: Promise<void> | undefined;
}

interface Shared {
  readonly incidents: Incidents;
  readonly logger: Logger;
  readonly redact: Redactor;
}

type ProvidersById = ReadonlyMap<string, ProviderState>;

/** Creates the providers of a snapshot. */
export function createProviders(
  config: Config,
  shared: Shared,
  limiters: ReadonlyMap<string, Limiter>,
  former?: ProvidersById,
): ProvidersById {
  const fastest = allAliases(config).filter(({ balance }) => balance === 'fastest');
  const targets = fastest.flatMap((alias) => alias.targets);
  const providers = config.providers.registered.map((settings): ProviderState => {
    const provider = createOpenAIProvider(settings);
    const before = former?.get(provider.id);
    const kept =
      before?.digest === provider.digest ? before : withNewParts(provider, shared, !former);
    const own = targets.filter(({ providerId }) => providerId === provider.id);
    const timesOf = (target: string) => kept.firstTokenTimes.get(target) ?? new FirstTokenTimes();
    const firstTokenTimes = new Map(own.map(({ name }) => [name, timesOf(name)]));
    return { ...kept, firstTokenTimes, limiter: limiters.get(provider.id)! };
  });
  return new Map(providers.map((provider) => [provider.id, provider]));
}

function withNewParts(
  provider: Provider,
  { incidents, logger, redact }: Shared,
  isOfStart: boolean,
): Omit<ProviderState, 'limiter'> {
  const breaker = new CircuitBreaker(provider.id, logger, redact);
  const subject = new Subject(provider.id, breaker, isOfStart);
  const onRefused = (keys: string | undefined) =>
    incidents.reportState('key_refused', keys, subject);
  const hasKeys = provider.apiKeys.length > 1;
  return {
    ...provider,
    breaker,
    keyPool: hasKeys ? new KeyPool(provider, logger, onRefused) : undefined,
    modelList: { models: [], staleAtMs: -Infinity },
    subject,
    firstTokenTimes: new Map(),
  };
}

/** Ends the circuits and the incidents of providers whose parts `next` has not kept. */
export function disposeFormer(
  former: ProvidersById,
  next: ProvidersById,
  incidents: Incidents,
): void {
  for (const { breaker, id, subject } of former.values()) {
    if (next.get(id)?.subject === subject) continue;
    breaker.dispose();
    incidents.dispose(subject);
  }
}
