/**
 * `GET /v1/models`: the models of all providers, and the aliases, by their names for clients.
 * `GET /v1/models/{id}`: an entry of that list.
 */

import type { Tenant } from '../config/config.ts';
import { missingModels } from '../config/named-models.ts';
import { aliasFor, registeredTargets, wildcardNamesOf } from '../config/aliases-section.ts';
import { describeCause } from '../request/cause.ts';
import { Deadline } from '../lib/cancellation.ts';
import { readAll } from '../lib/memory/byte-source.ts';
import { memberOf, parseUntrustedJson } from '../lib/json.ts';
import { matches } from '../lib/pattern.ts';
import { mayName } from '../policy/authentication.ts';
import { cutText } from '../lib/secrets.ts';
import { readFault } from '../protocol/error-body.ts';
import { type ListedModel, readModelList } from '../protocol/model-list.ts';
import { MAX_WORDS_CHARACTERS, pageWordsOf } from '../protocol/page-words.ts';
import { readStatusFault } from '../upstream/answers/open-answer.ts';
import type { Provider } from '../upstream/connections/provider.ts';
import type { Transport } from '../upstream/connections/transport.ts';
import type { CachedList, ProviderState } from './provider-state.ts';
import type { Services } from './services.ts';

const FETCH_TIMEOUT_MS = 3000;
const FRESH_MS = 300_000;
/** How long a failed provider is not asked again, so that a burst of requests asks it once. */
const FRESH_AFTER_FAILURE_MS = 10_000;
const MAX_LIST_BYTES = 4_194_304;
/** A model with a longer name is left out. */
const MAX_LISTED_NAME_CHARACTERS = 512;

interface ModelListServices extends Omit<Services, 'modelList'> {
  /** Called with a provider's model names when its list was fetched. */
  readonly onModels?: ((provider: string, names: readonly string[]) => void) | undefined;
}

/**
 * Serves `GET /v1/models` and `GET /v1/models/{id}`. If the list of a provider cannot be fetched,
 * its last list and its `default_model` are used.
 */
export class ModelList {
  readonly #services: ModelListServices;
  /**
   * The bodies, by a tenant's `models` as JSON; undefined is the key for all models. Clients share
   * them, so that a client that does not read holds no copy.
   */
  readonly #bodies = new Map<string | undefined, Buffer>();

  constructor(services: ModelListServices) {
    this.#services = services;
  }

  /**
   * Returns the body for `GET /v1/models` with the tenant's models, or with all models. Never
   * rejects.
   */
  async bodyFor(tenant?: Tenant): Promise<Buffer> {
    await this.#updateAll();
    const key = JSON.stringify(tenant?.models) as string | undefined;
    let body = this.#bodies.get(key);
    if (!body) {
      const data = listEntries(this.#services).filter(({ id }) => mayName(tenant, id));
      body = Buffer.from(JSON.stringify({ object: 'list', data }));
      this.#bodies.set(key, body);
    }
    return body;
  }

  /**
   * Returns an entry of the tenant's list as JSON; undefined if the list does not have it. Never
   * rejects.
   */
  async entryFor(id: string, tenant?: Tenant): Promise<string | undefined> {
    if (!mayName(tenant, id)) return undefined;
    await this.#updateAll();
    const entry = listEntries(this.#services).find((one) => one.id === id);
    return entry && JSON.stringify(entry);
  }

  async #updateAll(): Promise<void> {
    const { providers } = this.#services;
    await Promise.all([...providers.values()].map((provider) => this.#update(provider)));
  }

  async #update(provider: ProviderState): Promise<void> {
    const { modelList, models } = provider;
    if (models || performance.now() < modelList.staleAtMs) return;
    modelList.fetching ??= this.#refresh(provider);
    await modelList.fetching;
  }

  async #refresh(provider: ProviderState): Promise<void> {
    const { incidents, logger, onModels, transport } = this.#services;
    const { id, keyPool, modelList: cached, subject } = provider;
    let cause: string | undefined;
    try {
      const keys = keyPool?.keysToTry() ?? [0];
      const list = await fetchModelList(provider, keys, transport, FETCH_TIMEOUT_MS);
      if (typeof list === 'number') throw new Error(`status ${list}`);
      cached.models = this.#withoutLongNames(list, id, cached)
        .filter(({ name }) => this.#isShown(name))
        .map((model) => {
          const details = Object.entries(model.details).filter(([, value]) => this.#isShown(value));
          return { ...model, details: Object.fromEntries(details) };
        });
      const names = cached.models.map(({ name }) => name);
      onModels?.(id, names);
      this.#warnOfMissing(id, names, cached);
      this.#bodies.clear();
    } catch (thrown) {
      const failure = thrown as Error;
      cause = describeCause(failure.cause ?? failure) ?? failure.message;
    }
    const models = cached.models.length;
    logger.log('debug', 'model list fetched', { provider: id, cause, models });
    incidents.reportState('model_list', cause, subject);
    cached.isUp = cause === undefined;
    cached.staleAtMs = performance.now() + (cached.isUp ? FRESH_MS : FRESH_AFTER_FAILURE_MS);
    cached.fetching = undefined;
  }

  /** Logs a warning about long names, unless the former list had any. */
  #withoutLongNames(list: readonly ListedModel[], provider: string, cached: CachedList) {
    const kept = list.filter(({ name }) => name.length <= MAX_LISTED_NAME_CHARACTERS);
    const models = list.length - kept.length;
    if (models > 0 && !cached.leftOut) {
      const cause = `names of more than ${MAX_LISTED_NAME_CHARACTERS} characters`;
      this.#services.logger.log('warn', 'models are left out', { provider, models, cause });
    }
    cached.leftOut = models;
    return kept;
  }

  /** Returns false for a value with a key in it. Clients must not see it. */
  #isShown(value: unknown): boolean {
    const text = JSON.stringify(value);
    return this.#services.redact(text) === text;
  }

  /**
   * Logs a warning for each model named in a setting but missing in its provider's list, unless the
   * former list lacked it too.
   */
  #warnOfMissing(id: string, names: readonly string[], cached: CachedList): void {
    const { config, logger } = this.#services;
    const missing = missingModels(config, id, names);
    const isKnown = ({ setting, model }: (typeof missing)[number]) =>
      cached.missing?.some((one) => one.setting === setting && one.model === model);
    for (const one of missing) {
      if (!isKnown(one)) logger.log('warn', 'model is not listed', { ...one });
    }
    cached.missing = missing;
  }
}

/**
 * Returns entries for each provider's known models, then for aliases with a registered target, then
 * for the models that wildcard aliases lead to. A model whose id is also an alias is left out,
 * because the name leads to the alias's targets. A model in its provider's `hide_models` is left
 * out too, but not an exact alias of it.
 */
function listEntries({ providers, config }: ModelListServices) {
  const modelEntries = [...providers.values()].flatMap((provider) => {
    const { defaultModel, modelList, models } = provider;
    const listed = new Map(modelList.models.map((model) => [model.name, model]));
    const names = new Set(models ?? listed.keys());
    if (defaultModel) names.add(defaultModel);
    return [...names].map((name) => toEntry(provider, name, listed.get(name)));
  });
  const byId = new Map(modelEntries.map((entry) => [entry.id, entry]));
  const aliasEntries = [...config.aliases.values()].flatMap((alias) => {
    const [target] = registeredTargets(alias, providers);
    if (target === undefined) return [];
    const provider = providers.get(target.providerId)!;
    const entry = byId.get(target.name) ?? toEntry(provider, target.model);
    return { ...entry, id: alias.name };
  });
  const isHidden = ({ id, owned_by: owner }: (typeof modelEntries)[number]) =>
    providers
      .get(owner)!
      .hideModels?.some((pattern) => matches(pattern, id.slice(owner.length + 1)));
  const shown = modelEntries.filter((entry) => !isHidden(entry));
  const wildcardEntries = shown.flatMap((entry) =>
    wildcardNamesOf(entry.id, config).map((id) => ({ ...entry, id })),
  );
  return [...shown.filter(({ id }) => !aliasFor(id, config)), ...aliasEntries, ...wildcardEntries];
}

/**
 * Returns an entry with its first members in OpenAI's order. Details from the settings win over the
 * provider's details.
 */
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

/** The error of `fetchModelList` when its time has passed. */
export const NO_LIST_IN_TIME = new Error('no answer in time');

/**
 * Fetches a provider's list, with its keys in turn until the provider accepts a key. A refused key
 * begins no cooldown, because the key may be valid only for completions. For an undefined key no
 * key is sent. Returns the list, or the last response's status; of an error that of `readFault`.
 * Throws a `TransportError`, `NO_LIST_IN_TIME`, or as `readModelList`. `limitMs` bounds the whole
 * call.
 */
export async function fetchModelList(
  provider: Provider,
  keys: Iterable<number | undefined>,
  transport: Transport,
  limitMs: number,
): Promise<ListedModel[] | number> {
  const limit = new Deadline();
  limit.arm(limitMs, () => NO_LIST_IN_TIME);
  let status = 0;
  try {
    for (const key of keys) {
      const deadline = new Deadline(limit);
      try {
        const reply = await transport.send(provider.modelListRequest(key), deadline);
        status = reply.status;
        if (status === 200) {
          const bytes = await readAll(reply.body, MAX_LIST_BYTES);
          return parseModelList(bytes?.toString('utf8') ?? '');
        }
        // Only a 400 refuses the key by its words, so the bodies of other errors are not read.
        const hasWords = status === 400;
        const fault = hasWords
          ? await readStatusFault(reply, deadline)
          : readFault(undefined, status);
        status = fault.status;
        if (fault.blame !== 'key' && status !== 429) break;
      } finally {
        // Also ends an unread response.
        deadline.abandon();
      }
    }
    return status;
  } finally {
    limit.stop();
  }
}

/** Throws as `readModelList`, for a page with its words. */
function parseModelList(text: string): ListedModel[] {
  const page = cutText(pageWordsOf(text) ?? '', MAX_WORDS_CHARACTERS);
  if (page !== '') throw new Error(`not a model list: 200, ${page}`);
  return readModelList(parseUntrustedJson(text, MAX_LIST_BYTES));
}
