/** Reads `[providers]`: which providers are registered, with what settings, and why others are not. */

import { didYouMean } from '../lib/did-you-mean.ts';
import { Secret } from '../lib/secrets.ts';
import { checkKey } from './api-keys.ts';
import { BUILT_IN_PROVIDERS, keyVariableOf } from './built-in-providers.ts';
import { MAX_SECONDS, type SectionReader } from './section-reader.ts';

/** A provider that is enabled and has a key. */
export interface ProviderSettings {
  readonly id: string;
  /** Without a trailing slash. */
  readonly baseUrl: string;
  /** One at least, to be used in turn. */
  readonly apiKeys: readonly Secret[];
  /** Sent with each request, names in lower case. */
  readonly headers: Readonly<Record<string, Secret>>;
  readonly defaultModel: string | undefined;
  readonly timeoutMs: number;
  readonly retries: number;
  /** Listed by hand: the list is not fetched from the provider. */
  readonly models: readonly string[] | undefined;
}

interface SkippedProvider {
  readonly id: string;
  readonly reason: string;
  /** The file has a section for it, so the operator probably wants it. */
  readonly isConfigured: boolean;
}

export interface Providers {
  readonly registered: readonly ProviderSettings[];
  /** Known, but without a key or switched off. */
  readonly skipped: readonly SkippedProvider[];
  readonly primary: string | undefined;
  readonly fallback: readonly string[];
}

interface ProviderContext {
  readonly env: Readonly<Record<string, string | undefined>>;
  /** What applies to providers without such a setting of their own. */
  readonly server: { readonly timeoutMs: number; readonly retries: number };
}

/** The range of `retries`, for the server and for one provider. */
export const RETRIES_RANGE = { min: 0, max: 10 } as const;

export function readProviders(section: SectionReader, context: ProviderContext): Providers {
  const primary = section.string('primary');
  const fallback = section.strings('fallback') ?? [];
  const registered: ProviderSettings[] = [];
  const skipped: SkippedProvider[] = [];
  const configured = section.remainingSections();
  for (const id of new Set([...configured, ...BUILT_IN_PROVIDERS.keys()])) {
    const own = section.section(id);
    const result = readProvider(id, own, context);
    if (typeof result === 'string') {
      skipped.push({ id, reason: result, isConfigured: configured.includes(id) });
      own.dropFromResolved();
    } else {
      registered.push(result);
    }
  }

  const known = [...registered, ...skipped].map(({ id }) => id);
  const named = fallback.map((id) => ['fallback', id]);
  if (primary !== undefined) named.push(['primary', primary]);
  for (const [key = '', id = ''] of named) {
    if (!known.includes(id))
      section.problem(key, `no such provider "${id}"${didYouMean(id, known)}`);
    else if (skipped.some((provider) => provider.id === id)) {
      section.warning(key, `provider "${id}" is not registered`);
    }
  }
  return { registered, skipped, primary, fallback: [...new Set(fallback)] };
}

/** Reads one provider. Returns its settings, or the reason why it is not registered. */
function readProvider(
  id: string,
  section: SectionReader,
  { env, server }: ProviderContext,
): ProviderSettings | string {
  if (!/^[A-Za-z0-9._-]{1,64}$/.test(id)) {
    section.problem('', 'a provider id is 1 to 64 letters, digits, ".", "_" or "-"');
  }
  const enabled = section.boolean('enabled', { default: true });
  const keyVariable = keyVariableOf(id);
  // An empty key counts as not set, like an empty variable.
  const ownKeys = [section.string('api_key') ?? '', ...(section.strings('api_keys') ?? [])]
    .map((key) => key.trim())
    .filter((key) => key !== '');
  const apiKeys = ownKeys.length > 0 ? ownKeys : [(env[keyVariable] ?? '').trim()];
  const timeout = { min: 1, max: MAX_SECONDS, default: server.timeoutMs / 1000 };
  const settings = {
    id,
    baseUrl: readBaseUrl(id, section),
    apiKeys: apiKeys.map((key) => new Secret(key)),
    headers: readHeaders(section),
    defaultModel: section.string('default_model') || undefined,
    timeoutMs: 1000 * section.integer('timeout', timeout),
    retries: section.integer('retries', { ...RETRIES_RANGE, default: server.retries }),
    models: section.strings('models'),
  };

  if (!enabled) return 'enabled = false';
  if (apiKeys[0] === '') return `no api_key and no ${keyVariable}`;
  const variable = ownKeys.length > 0 ? undefined : keyVariable;
  for (const key of apiKeys) checkKey(key, { section, setting: 'api_key', variable });
  return settings;
}

function readHeaders(section: SectionReader): Readonly<Record<string, Secret>> {
  const headers = [...section.stringTable('headers')];
  return Object.fromEntries(
    headers.map(([name, value]) => [name.toLowerCase(), new Secret(value)]),
  );
}

function readBaseUrl(id: string, section: SectionReader): string {
  const text = section.string('base_url', { default: BUILT_IN_PROVIDERS.get(id)?.baseUrl });
  if (text === undefined) {
    const hint = didYouMean(id, [...BUILT_IN_PROVIDERS.keys()]);
    section.problem('base_url', `required: "${id}" is not a built-in provider${hint}`);
    return '';
  }
  const url = URL.canParse(text) ? new URL(text) : undefined;
  const isPlain = url && !url.username && !url.password && !/[?#\s]/.test(text);
  if (!isPlain || !/^https?:$/.test(url.protocol)) {
    section.problem('base_url', 'expected an http or https URL without user, query or fragment');
  } else if (/\/chat\/completions\/*$/.test(text)) {
    section.problem('base_url', 'leave out /chat/completions: the gateway appends it');
  }
  return text.replace(/\/+$/, '');
}
