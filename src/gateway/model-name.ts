/** Resolves a `model` value to a provider and its model. */

import type { Config } from '../config/config.ts';
import { GatewayError, invalidRequest } from '../lib/errors.ts';
import { escapeControlCharacters } from '../lib/secrets.ts';
import type { Provider } from '../upstream/provider.ts';

export const MAX_ECHOED_CHARACTERS = 128;

/** A provider, and the model to ask it for. */
export interface Candidate {
  readonly provider: Provider;
  readonly model: string;
}

export interface ModelNameSettings {
  readonly config: Config;
  readonly providers: ReadonlyMap<string, Provider>;
}

/**
 * Resolves a `model` value (interface, What the service does, 2, 3 and 7): an alias;
 * `<provider_id>/<model_name>`, split at the first slash; a provider's id alone for its default model;
 * any other name for the primary provider. Throws `unknownProvider` or `invalidRequest`.
 */
export function resolveModel(name: string, { config, providers }: ModelNameSettings): Candidate {
  const { primary } = config.providers;
  const target = config.aliases.get(name)?.[0] ?? name;
  const slash = target.indexOf('/');
  const isWholeName = slash < 0 && !providers.has(target);
  if (isWholeName && primary === undefined) {
    throw invalidRequest('"model" must have the form "<provider_id>/<model_name>"');
  }
  const providerId = isWholeName ? primary! : slash < 0 ? target : target.slice(0, slash);
  const provider = providers.get(providerId);
  if (provider === undefined) {
    const shown = escapeControlCharacters(providerId, MAX_ECHOED_CHARACTERS);
    throw new GatewayError('unknownProvider', shown);
  }
  const named = isWholeName ? target : slash < 0 ? '' : target.slice(slash + 1);
  const model = named || provider.defaultModel;
  if (!model) throw invalidRequest(`provider ${providerId} has no default_model; name a model`);
  return { provider, model };
}
