/** Decides which providers may answer a `model` value, and in which order. */

import type { AliasSettings, Tenant } from '../config/config.ts';
import {
  aliasFor,
  registeredTargets,
  targetFor,
  targetNamed,
  type Target,
} from '../config/aliases-section.ts';
import type { Call } from '../downstream/call.ts';
import { MAX_NAME_CHARACTERS, type RequestHistory } from '../request/history.ts';
import { GatewayError, invalidRequest } from '../lib/errors.ts';
import { escapeControlCharacters, type Redactor } from '../lib/secrets.ts';
import { mayName } from '../policy/authentication.ts';
import type { FirstTokenTimes } from '../policy/first-token-times.ts';
import type { ProviderState } from './provider-state.ts';
import type { Services } from './services.ts';

/** A provider, and the model to request from it. */
export interface Candidate {
  readonly provider: ProviderState;
  /** The model's name in circuits, incidents and lines. */
  readonly model: string;
  /** The name to send; absent if `model` is this name, because it has no key to hide. */
  readonly sentModel?: string;
  /** The endpoint's operation: each endpoint of a model has a circuit of its own. */
  readonly operation: string;
  readonly isStream: boolean;
  /** True if the gateway has chosen this candidate among the targets of a balanced alias. */
  readonly isBalanced: boolean;
  /** Takes the time of each stream's first token if `balance = "fastest"` has this target. */
  readonly times?: FirstTokenTimes | undefined;
}

/** Matches the header even if it was sent twice. */
const OFF = /\boff\b/i;

/**
 * Returns the candidates for this `model`, in the order to ask them:
 * - for an alias, else for a wildcard alias that matches, its targets with registered providers: in
 *   order, balanced or weighted;
 * - for `<provider_id>/<model_name>`, split at the first slash, that provider;
 * - for a provider's id, that provider with its default model;
 * - for any other name, the primary provider.
 *
 * Then come the fallbacks that are not yet candidates. Each is asked for its `default_model`, or
 * for the first candidate's model if it has none. Embeddings have no fallbacks. With
 * `x-gateway-fallback: off` only the first candidate is asked, as for a request that belongs to one
 * organisation.
 *
 * A tenant with `models` may name an alias if the list has it, and a model if the list has it as
 * sent or as `<provider_id>/<model_name>`. Fallbacks are exempt. Any other name is refused with
 * `notFound`, like a name that does not exist, so that the tenant does not learn the settings.
 * Throws `unknownProvider` or `invalidRequest`.
 */
export function candidatesFor(
  name: string,
  call: Call,
  services: Services,
  tenant: Tenant | undefined,
): Candidate[] {
  const alias = aliasFor(name, services.config);
  const mayAsk =
    mayName(tenant, name) || (!alias && mayName(tenant, fullNameOf(name, services, call.history)));
  if (!mayAsk) {
    throw new GatewayError('notFound', 'Resource not found', { check: 'model_not_allowed' });
  }
  const ordered = alias
    ? candidatesOf(alias, name, call, services)
    : [toCandidate(soleTargetOf(name, services), services, call.history)];
  // The client wants an answer from the named model, or none; or no other organisation has what the
  // request refers to.
  const isOff = OFF.test(String(call.headers['x-gateway-fallback']));
  const { affinity, endpoint, redactKey } = call.history;
  const isSole = isOff || affinity === 'organisation';
  const chosen = isSole ? ordered.slice(0, 1) : ordered;
  if (!isSole && !endpoint.ignoresFallback) addFallbacks(chosen, services.fallbacks);
  return redactKey ? chosen.map((candidate) => withoutKey(candidate, redactKey)) : chosen;
}

/**
 * Returns the candidates for the alias's registered targets, in the order to ask them. If no target
 * is registered, throws the fault of the first target.
 */
function candidatesOf(
  alias: AliasSettings,
  name: string,
  call: Call,
  services: Services,
): Candidate[] {
  const registered = registeredTargets(alias, services.providers);
  const targets = registered.length > 0 ? registered : alias.targets.slice(0, 1);
  const candidates = targets.map((target) =>
    toCandidate(targetFor(target, alias, name), services, call.history),
  );
  const balance = services.balances.get(alias);
  if (!balance) return candidates;
  const states = targets.map(({ name: target }, index) => {
    const candidate = candidates[index]!;
    const { provider } = candidate;
    const isCircuitOpen = provider.breaker.stateOf(candidate) === 'open';
    const times = provider.firstTokenTimes.get(target);
    return { name: target, provider, isCircuitOpen, times };
  });
  const indices = balance.order(states, call, call.history.stream === true);
  return [...new Set(indices)].map((index) => {
    return { ...candidates[index]!, isBalanced: true, times: states[index]!.times };
  });
}

/** Hides the request's own key in the model's name, because circuits and incidents outlive it. */
function withoutKey(candidate: Candidate, redactKey: Redactor): Candidate {
  const model = redactKey(candidate.model);
  return model === candidate.model
    ? candidate
    : { ...candidate, model, sentModel: candidate.model };
}

/**
 * Returns `<provider_id>/<model_name>` for a name that is no alias; the name itself without a
 * provider.
 */
function fullNameOf(name: string, services: Services, history: RequestHistory): string {
  try {
    const { provider, model } = toCandidate(soleTargetOf(name, services), services, history);
    return `${provider.id}/${model}`;
  } catch {
    return name;
  }
}

function addFallbacks(candidates: Candidate[], fallbacks: readonly ProviderState[]): void {
  const { isStream, model: asked, operation } = candidates[0]!;
  for (const provider of fallbacks) {
    if (candidates.some((one) => one.provider === provider)) continue;
    const model = provider.defaultModel ?? asked;
    candidates.push({ provider, model, operation, isStream, isBalanced: false });
  }
}

function toCandidate(
  { providerId, model: named }: Target,
  services: Services,
  { endpoint: { operation }, stream }: RequestHistory,
): Candidate {
  const provider = services.providers.get(providerId);
  if (provider === undefined) {
    const shown = escapeControlCharacters(providerId, MAX_NAME_CHARACTERS);
    throw new GatewayError('unknownProvider', shown);
  }
  const model = named || provider.defaultModel;
  if (!model) throw invalidRequest(`provider ${providerId} has no default_model; name a model`);
  return { provider, model, operation, isStream: stream === true, isBalanced: false };
}

/** Returns the target of a name that is no alias. */
function soleTargetOf(name: string, { config, providers }: Services): Target {
  const target = targetNamed(name, config.providers, providers);
  if (target) return target;
  throw invalidRequest('"model" must have the form "<provider_id>/<model_name>"');
}
