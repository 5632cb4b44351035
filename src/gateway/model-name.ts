/** Resolves a `model` value to the providers to ask, and what to ask each for. */

import type { ClientSettings, Config } from '../config/config.ts';
import { MAX_NAME_CHARACTERS } from '../lib/attempt.ts';
import { GatewayError, invalidRequest } from '../lib/errors.ts';
import { escapeControlCharacters } from '../lib/secrets.ts';
import { mayName } from '../policy/authentication.ts';
import type { Provider } from '../upstream/provider.ts';

/** A provider, and the model to ask it for. */
export interface Candidate {
  readonly provider: Provider;
  readonly model: string;
}

export type Candidates = readonly [requested: Candidate, ...others: Candidate[]];

export interface ModelNameSettings {
  readonly config: Config;
  readonly providers: ReadonlyMap<string, Provider>;
}

/**
 * Resolves a `model` value: an alias, to those of its targets whose providers are registered;
 * `<provider_id>/<model_name>`, split at the first slash; a provider's id alone for its default model; any other name
 * for the primary provider. The client's `models` must have the name as it was sent, or, if it is no alias, as
 * `<provider_id>/<model_name>`. Throws `unknownProvider` or `invalidRequest`; to a client with `models` `notFound` for
 * every other name, whether or not it would resolve: it does not learn what there is.
 */
export function resolveModel(
  name: string,
  settings: ModelNameSettings,
  client: ClientSettings | undefined,
): Candidates {
  const targets = settings.config.aliases.get(name);
  if (!mayName(client, name)) {
    const candidate = targets ? undefined : tryToCandidate(name, settings);
    if (candidate && mayName(client, `${candidate.provider.id}/${candidate.model}`))
      return [candidate];
    const reason = 'model not allowed for this client';
    throw new GatewayError('notFound', 'Resource not found', { reason });
  }
  if (targets === undefined) return [toCandidate(name, settings)];
  const registered = targets.filter((target) => settings.providers.has(providerIdOf(target)));
  const [first = targets[0]!, ...others] = registered;
  return [toCandidate(first, settings), ...others.map((other) => toCandidate(other, settings))];
}

function tryToCandidate(name: string, settings: ModelNameSettings): Candidate | undefined {
  try {
    return toCandidate(name, settings);
  } catch (thrown) {
    if (thrown instanceof GatewayError) return undefined;
    throw thrown;
  }
}

/** Adds each fallback that is not among the candidates, with its own default model. */
export function withFallbacks(candidates: Candidates, fallbacks: readonly Provider[]): Candidates {
  const others = fallbacks.filter((one) => candidates.every(({ provider }) => provider !== one));
  if (others.length === 0) return candidates;
  const [{ model }] = candidates;
  return [
    ...candidates,
    ...others.map((provider) => ({ provider, model: provider.defaultModel ?? model })),
  ];
}

/** Returns the provider's id in the target of an alias, which always has a slash. */
export function providerIdOf(target: string): string {
  return target.slice(0, target.indexOf('/'));
}

function toCandidate(target: string, { config, providers }: ModelNameSettings): Candidate {
  const { primary } = config.providers;
  const slash = target.indexOf('/');
  const isWholeName = slash < 0 && !providers.has(target);
  if (slash === 0 || (isWholeName && primary === undefined)) {
    throw invalidRequest('"model" must have the form "<provider_id>/<model_name>"');
  }
  const providerId = isWholeName ? primary! : slash < 0 ? target : target.slice(0, slash);
  const provider = providers.get(providerId);
  if (provider === undefined) {
    const shown = escapeControlCharacters(providerId, MAX_NAME_CHARACTERS);
    throw new GatewayError('unknownProvider', shown);
  }
  const named = isWholeName ? target : slash < 0 ? '' : target.slice(slash + 1);
  const model = named || provider.defaultModel;
  if (!model) throw invalidRequest(`provider ${providerId} has no default_model; name a model`);
  return { provider, model };
}
