/** `GET /v1/models`: every provider's models and the aliases, under the names a client sends back. */

import { Deadline } from '../lib/cancellation.ts';
import type { Answer } from '../lib/messages.ts';
import { readAll } from '../lib/chunk-buffer.ts';
import { parseUntrustedJson } from '../lib/untrusted-json.ts';
import type { Provider } from '../upstream/provider.ts';
import type { Transport } from '../upstream/transport.ts';

const FETCH_TIMEOUT_MS = 3000;
const FRESH_MS = 300_000;
/** A provider that failed is not asked again by each of a burst of requests. */
const FRESH_AFTER_FAILURE_MS = 10_000;
const MAX_LIST_BYTES = 8_388_608;

interface ModelListSettings {
  readonly providers: ReadonlyMap<string, Provider>;
  readonly aliases: ReadonlyMap<string, string>;
  readonly transport: Transport;
  /** A monotonic clock in milliseconds. */
  readonly now: () => number;
}

/** One provider's list as last fetched. */
interface CachedList {
  names: readonly string[];
  freshUntilMs: number;
  /** The fetch under way: requests that come meanwhile wait for it. */
  fetching?: Promise<void> | undefined;
}

/**
 * Returns the answer's maker. A provider that fails keeps its last list, or contributes its
 * `default_model` alone: the answer is never an error.
 */
export function createModelList(settings: ModelListSettings): () => Promise<Answer> {
  const { providers, aliases, transport, now } = settings;
  const cache = new Map<string, CachedList>();

  async function namesOf(provider: Provider): Promise<readonly string[]> {
    if (provider.models) return provider.models;
    const cached = cache.get(provider.id) ?? { names: [], freshUntilMs: -Infinity };
    cache.set(provider.id, cached);
    if (now() >= cached.freshUntilMs) {
      cached.fetching ??= refresh(provider, cached);
      await cached.fetching;
    }
    return cached.names;
  }

  async function refresh(provider: Provider, cached: CachedList): Promise<void> {
    try {
      cached.names = await fetchNames(provider, transport);
      cached.freshUntilMs = now() + FRESH_MS;
    } catch {
      cached.freshUntilMs = now() + FRESH_AFTER_FAILURE_MS;
    } finally {
      cached.fetching = undefined;
    }
  }

  return async () => {
    const lists = await Promise.all(
      [...providers.values()].map(async (provider) => {
        const names = new Set(await namesOf(provider));
        if (provider.defaultModel) names.add(provider.defaultModel);
        return [...names].map((name) => toEntry(`${provider.id}/${name}`, provider.id));
      }),
    );
    const aliasEntries = [...aliases]
      .map(([alias, target]) => toEntry(alias, target.slice(0, target.indexOf('/'))))
      .filter(({ owned_by }) => providers.has(owned_by));
    return {
      status: 200,
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ object: 'list', data: [...lists.flat(), ...aliasEntries] }),
    };
  };
}

/** `created` is required of an entry and not known for most. */
function toEntry(id: string, provider: string) {
  return { id, object: 'model', created: 0, owned_by: provider };
}

async function fetchNames(provider: Provider, transport: Transport): Promise<string[]> {
  const deadline = new Deadline();
  deadline.arm(FETCH_TIMEOUT_MS, () => new Error('model list timed out'));
  try {
    const reply = await transport.send(provider.modelListRequest(), deadline);
    const bytes = reply.status === 200 ? await readAll(reply.body, MAX_LIST_BYTES) : undefined;
    const json = bytes && parseUntrustedJson(bytes.toString('utf8'), MAX_LIST_BYTES);
    if (json === undefined) throw new Error(`no usable model list, status ${reply.status}`);
    return provider.readModelList(json);
  } finally {
    // Also lets go of a body that was not read to its end.
    deadline.end({ abandon: true });
  }
}
