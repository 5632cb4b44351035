/** `GET /v1/models`: the models of all providers and the aliases, by the names that clients send back. */

import type { ClientSettings, Config } from '../config/config.ts';
import { describeCause } from '../request/cause.ts';
import { Deadline, type Cancellation } from '../lib/cancellation.ts';
import { readAll } from '../lib/byte-source.ts';
import type { Logger } from '../lib/log.ts';
import type { Redactor } from '../lib/secrets.ts';
import { memberOf, parseUntrustedJson } from '../lib/json.ts';
import { isKeyStatus, type KeyPool } from '../policy/key-pool.ts';
import { mayName } from '../policy/authentication.ts';
import type { Incidents } from '../policy/incidents.ts';
import { type ListedModel, readModelList } from '../upstream/listed-models.ts';
import type { Provider } from '../upstream/provider.ts';
import type { Transport } from '../upstream/transport.ts';
import { providerIdOf } from './candidates.ts';

const FETCH_TIMEOUT_MS = 3000;
const FRESH_MS = 300_000;
/** A burst of requests asks a provider that failed only once. */
const FRESH_AFTER_FAILURE_MS = 10_000;
const MAX_LIST_BYTES = 4_194_304;

/**
 * Returns the body of `GET /v1/models`: the models that the client may name; all without a client. Asks the providers whose
 * lists are not known, or old. Never rejects.
 */
export type ModelList = (client?: Pick<ClientSettings, 'models'>) => Promise<Buffer>;

interface ModelListServices {
  readonly providers: ReadonlyMap<string, Provider>;
  readonly config: Pick<Config, 'aliases'>;
  readonly keyPools: ReadonlyMap<string, KeyPool>;
  readonly transport: Transport;
  readonly logger: Logger;
  readonly redact: Redactor;
  readonly incidents: Incidents;
  /** Takes the names of a provider's models, as that provider has listed them. */
  readonly onModels?: ((provider: string, names: readonly string[]) => void) | undefined;
  /** The lists of the providers. It outlives a reload for providers whose settings are the same. */
  readonly modelLists: ModelListCache;
}

export type ModelListCache = WeakMap<Provider, CachedList>;

interface CachedList {
  models: readonly ListedModel[];
  /** On the clock of `performance.now()`. */
  freshUntilMs: number;
  /** The last fetch succeeded; undefined before the first. If it failed, the log says so. */
  isUp: boolean | undefined;
  /** The fetch under way, which other requests wait for too. */
  fetching?: Promise<void> | undefined;
}

/**
 * Returns a function that makes the list. A provider whose own list fails contributes its last one and its `default_model`.
 */
export function createModelList(services: ModelListServices): ModelList {
  const { providers, incidents, keyPools, transport, logger, redact, onModels, modelLists } =
    services;
  /**
   * Bodies by the models that a client may name, as JSON; with all of them by undefined. As many as the settings have
   * different lists. Clients that do not read hold no copies.
   */
  const bodies = new Map<string | undefined, Buffer>();

  async function updateList(provider: Provider): Promise<void> {
    if (provider.models) return;
    const cached = modelLists.get(provider) ?? {
      models: [],
      freshUntilMs: -Infinity,
      isUp: undefined,
    };
    modelLists.set(provider, cached);
    if (performance.now() < cached.freshUntilMs) return;
    cached.fetching ??= refresh(provider, cached);
    await cached.fetching;
  }

  async function refresh(provider: Provider, cached: CachedList): Promise<void> {
    let failure: Error | undefined;
    try {
      const keys = keyPools.get(provider.id)?.keysToTry() ?? [0];
      const models = await fetchModels(provider, keys, transport);
      // What has a key in it is not shown to clients.
      const isShown = (value: unknown) => {
        const text = JSON.stringify(value);
        return redact(text) === text;
      };
      cached.models = models
        .filter(({ name }) => isShown(name))
        .map((model) => {
          const details = Object.entries(model.details).filter(([, value]) => isShown(value));
          return { ...model, details: Object.fromEntries(details) };
        });
      const names = cached.models.map(({ name }) => name);
      onModels?.(provider.id, names);
      bodies.clear();
    } catch (thrown) {
      failure = thrown as Error;
    }
    const cause = failure && (describeCause(failure.cause ?? failure) ?? failure.message);
    const facts = { provider: provider.id, cause, models: cached.models.length };
    logger.log('debug', 'model list fetched', facts);
    incidents.set('model_list', cause, provider.id);
    cached.isUp = failure === undefined;
    cached.freshUntilMs = performance.now() + (failure ? FRESH_AFTER_FAILURE_MS : FRESH_MS);
    cached.fetching = undefined;
  }

  return async (client) => {
    await Promise.all([...providers.values()].map(updateList));
    const key = JSON.stringify(client?.models) as string | undefined;
    let body = bodies.get(key);
    if (!body) {
      const data = listEntries(services).filter(({ id }) => mayName(client, id));
      body = Buffer.from(JSON.stringify({ object: 'list', data }));
      bodies.set(key, body);
    }
    return body;
  };
}

/** Lists the models that are known of each provider, and then the aliases that lead to a registered one. */
function listEntries({ providers, config, modelLists }: ModelListServices) {
  const modelEntries = [...providers.values()].flatMap((provider) => {
    const { models, defaultModel } = provider;
    const listed = new Map(modelLists.get(provider)?.models.map((model) => [model.name, model]));
    const names = new Set(models ?? listed.keys());
    if (defaultModel) names.add(defaultModel);
    return [...names].map((name) => toEntry(provider, name, listed.get(name)));
  });
  const byId = new Map(modelEntries.map((entry) => [entry.id, entry]));
  const aliasEntries = [...config.aliases].flatMap(([alias, { targets }]) => {
    const target = targets.find((one) => providers.has(providerIdOf(one)));
    if (target === undefined) return [];
    const provider = providers.get(providerIdOf(target))!;
    const entry = byId.get(target) ?? toEntry(provider, target.slice(provider.id.length + 1));
    return { ...entry, id: alias };
  });
  return [...modelEntries, ...aliasEntries];
}

/** The order of the first members is OpenAI's. What the settings say of a model wins over what its provider says. */
function toEntry({ id, modelDetails }: Provider, name: string, model?: ListedModel) {
  return {
    id: `${id}/${name}`,
    object: 'model',
    created: model?.created ?? 0,
    owned_by: id,
    ...model?.details,
    ...(memberOf(modelDetails, name) as ListedModel['details']),
  };
}

/**
 * Asks with one key after the other until one is not refused. A refused one begins no cooldown: it may be a key for
 * completions only. Throws if the provider has no usable list, or none in time.
 */
async function fetchModels(
  provider: Provider,
  keys: Iterable<number>,
  transport: Transport,
): Promise<ListedModel[]> {
  const limit = new Deadline();
  limit.arm(FETCH_TIMEOUT_MS, () => new Error('no answer in time'));
  try {
    let status = 0;
    for (const key of keys) {
      const result = await fetchModelList(provider, key, transport, limit);
      if (typeof result !== 'number') return result;
      status = result;
      if (!isKeyStatus(status)) break;
    }
    throw new Error(`status ${status}`);
  } finally {
    limit.stop();
  }
}

/**
 * Asks with the key at this index, and returns the list, or the status if that is not 200. Throws a `TransportError`, the reason why `limit` is cancelled, or
 * what `readModelList` throws if the answer is no list.
 */
export async function fetchModelList(
  provider: Provider,
  key: number,
  transport: Transport,
  limit: Cancellation,
): Promise<ListedModel[] | number> {
  const deadline = new Deadline(limit);
  try {
    const reply = await transport.send(provider.modelListRequest(key), deadline);
    if (reply.status !== 200) return reply.status;
    const bytes = await readAll(reply.body, MAX_LIST_BYTES);
    const json = bytes && parseUntrustedJson(bytes.toString('utf8'), MAX_LIST_BYTES);
    return readModelList(json);
  } finally {
    // Also ends a reply that was not read to its end.
    deadline.abandon();
  }
}
