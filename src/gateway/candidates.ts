/** Which providers may answer a `model` value, and in which order. */

import type { Tenant } from '../config/config.ts';
import type { Call } from '../downstream/call.ts';
import { MAX_NAME_CHARACTERS } from '../request/history.ts';
import { GatewayError, invalidRequest } from '../lib/errors.ts';
import { escapeControlCharacters } from '../lib/secrets.ts';
import { mayName } from '../policy/authentication.ts';
import type { Provider } from '../upstream/provider.ts';
import { balanced } from './balance.ts';
import type { Services } from './services.ts';

/** A provider, and the model to ask it for. */
export interface Candidate {
  readonly provider: Provider;
  readonly model: string;
  /** The gateway has chosen it among several that are alike. */
  readonly isBalanced: boolean;
}

/** Also of a header that was sent twice. */
const OFF = /\boff\b/i;

/**
 * Returns who may answer the request for this `model`, in the order in which they are asked:
 * - of an alias those of its targets whose providers are registered, in order, balanced or
 * weighted;
 * - for `<provider_id>/<model_name>`, split at the first slash, that provider;
 * - for a provider's id, that one with its default model;
 * - for any other name the primary provider; and behind them each fallback that is not among them,
 * with its own default model, or with the first one's if it has none. With `x-gateway-fallback:
 * off` only the first.
 *
 * The tenant's `models` must have the name as it was sent, or, if it is no alias, as
 * `<provider_id>/<model_name>`; they do not bind fallbacks. Throws `unknownProvider` or
 * `invalidRequest`; to a tenant with `models` `notFound` for every other name, so that it does not
 * learn what there is.
 */
export function candidatesFor(
  name: string,
  call: Call,
  services: Services,
  tenant: Tenant | undefined,
): Candidate[] {
  const alias = services.config.aliases.get(name);
  if (!mayName(tenant, name) && (alias || !mayName(tenant, fullNameOf(name, services)))) {
    throw new GatewayError('notFound', 'Resource not found', { check: 'model_not_allowed' });
  }
  const candidates = alias ? targetsOf(alias.targets, services) : [toCandidate(name, services)];
  const isInOrder = !alias || alias.balance === 'order';
  const ordered = isInOrder ? candidates : balanced(candidates, alias, call, services);
  // The client wants the answer of the one that it has named, or none.
  if (OFF.test(String(call.headers['x-gateway-fallback']))) return ordered.slice(0, 1);
  return withFallbacks(ordered, services.fallbacks);
}

/**
 * Returns `<provider_id>/<model_name>` for a name that is no alias; the name if it stands for
 * nobody.
 */
function fullNameOf(name: string, services: Services): string {
  try {
    const { provider, model } = toCandidate(name, services);
    return `${provider.id}/${model}`;
  } catch {
    return name;
  }
}

/**
 * Returns the candidates of the targets that are registered. If there are none, throws the fault of
 * the first.
 */
function targetsOf(targets: readonly string[], services: Services): Candidate[] {
  const registered = targets.filter((target) => services.providers.has(providerIdOf(target)));
  const names = registered.length > 0 ? registered : targets.slice(0, 1);
  return names.map((one) => toCandidate(one, services));
}

/** Puts each fallback that is not among the candidates behind them. */
function withFallbacks(candidates: Candidate[], fallbacks: readonly Provider[]): Candidate[] {
  const { model } = candidates[0]!;
  for (const provider of fallbacks) {
    if (candidates.some((one) => one.provider === provider)) continue;
    candidates.push({ provider, model: provider.defaultModel ?? model, isBalanced: false });
  }
  return candidates;
}

/** Returns the provider's id in the target of an alias, which always has a slash. */
export function providerIdOf(target: string): string {
  return target.slice(0, target.indexOf('/'));
}

function toCandidate(target: string, { config, providers }: Services): Candidate {
  const { primary } = config.providers;
  const slash = target.indexOf('/');
  const isForPrimary = slash < 0 && !providers.has(target);
  if (slash === 0 || (isForPrimary && primary === undefined)) {
    throw invalidRequest('"model" must have the form "<provider_id>/<model_name>"');
  }
  const providerId = isForPrimary ? primary! : slash < 0 ? target : target.slice(0, slash);
  const provider = providers.get(providerId);
  if (provider === undefined) {
    const shown = escapeControlCharacters(providerId, MAX_NAME_CHARACTERS);
    throw new GatewayError('unknownProvider', shown);
  }
  const named = isForPrimary ? target : slash < 0 ? '' : target.slice(slash + 1);
  const model = named || provider.defaultModel;
  if (!model) throw invalidRequest(`provider ${providerId} has no default_model; name a model`);
  return { provider, model, isBalanced: false };
}
