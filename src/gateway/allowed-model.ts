/** Resolves the models that a client may name, and no others. */

import type { ClientSettings } from '../config/config.ts';
import { GatewayError } from '../lib/errors.ts';
import { mayName } from '../policy/model-access.ts';
import { resolveModel, type Candidates, type ModelNameSettings } from './model-name.ts';

/**
 * Resolves a `model` value as `resolveModel` does. The client's `models` must have the name as it was sent, or, if it is
 * no alias, as `<provider_id>/<model_name>`. Throws `notFound` for every other name, whether or not it would resolve:
 * the client does not learn what there is.
 */
export function resolveAllowed(
  name: string,
  settings: ModelNameSettings,
  client: ClientSettings | undefined,
): Candidates {
  if (mayName(client, name)) return resolveModel(name, settings);
  const candidates = settings.config.aliases.has(name) ? undefined : tryToResolve(name, settings);
  if (candidates) {
    const [{ provider, model }] = candidates;
    if (mayName(client, `${provider.id}/${model}`)) return candidates;
  }
  throw new GatewayError('notFound', 'Resource not found');
}

function tryToResolve(name: string, settings: ModelNameSettings): Candidates | undefined {
  try {
    return resolveModel(name, settings);
  } catch (thrown) {
    if (thrown instanceof GatewayError) return undefined;
    throw thrown;
  }
}
