/** Resolves the models that a client may name, and no others. */

import type { ClientSettings } from '../config/config.ts';
import { GatewayError } from '../lib/errors.ts';
import { mayName } from '../policy/model-access.ts';
import { resolveModel, type Candidate, type ModelNameSettings } from './model-name.ts';

/**
 * Resolves a `model` value as `resolveModel` does. The client's `models` must have the name as it was sent, or, if it is
 * no alias, as `<provider_id>/<model_name>`. Throws `notFound` for every other name, whether or not it would resolve:
 * the client does not learn what there is.
 */
export function resolveAllowed(
  name: string,
  settings: ModelNameSettings,
  client: ClientSettings | undefined,
): Candidate {
  if (mayName(client, name)) return resolveModel(name, settings);
  const candidate = settings.config.aliases.has(name) ? undefined : tryToResolve(name, settings);
  if (candidate && mayName(client, `${candidate.provider.id}/${candidate.model}`)) return candidate;
  throw new GatewayError('notFound', 'Resource not found');
}

function tryToResolve(name: string, settings: ModelNameSettings): Candidate | undefined {
  try {
    return resolveModel(name, settings);
  } catch (thrown) {
    if (thrown instanceof GatewayError) return undefined;
    throw thrown;
  }
}
