/**
 * The settings, and the objects that outlive a request. A reload creates a new `Services` and keeps
 * unchanged parts.
 */

import type { AliasSettings, Tenant, Config } from '../config/config.ts';
import type { Logger } from '../lib/log.ts';
import type { Incidents } from '../incidents/incidents.ts';
import type { Limiters } from '../policy/limiters.ts';
import type { RequestObserver, RequestTrace } from '../request/facts.ts';
import type { AttemptServices } from '../upstream/answers/attempt-context.ts';
import type { Balance } from './balance.ts';
import type { ProviderState } from './provider-state.ts';
import type { RefusalLog } from './refusal-log.ts';

export interface Services extends AttemptServices {
  readonly config: Config;
  readonly providers: ReadonlyMap<string, ProviderState>;
  readonly fallbacks: readonly ProviderState[];
  readonly limiters: Limiters;
  readonly incidents: Incidents;
  readonly balances: ReadonlyMap<AliasSettings, Balance>;
  /** The answers to `GET /v1/models` and `GET /v1/models/{id}`. */
  readonly modelList: {
    bodyFor(tenant?: Tenant): Promise<Buffer>;
    entryFor(id: string, tenant?: Tenant): Promise<string | undefined>;
  };
  readonly logger: Logger;
  readonly refusals: RefusalLog;
  /** Called with each finished request, except good answers to health checks. */
  readonly observe?: RequestObserver | undefined;
  /** Only with `[telemetry] traces`. */
  readonly traces?: { begin(traceparent: unknown): RequestTrace } | undefined;
  /** Warnings already logged, because each is logged only once. */
  readonly warned: Set<string>;
}
