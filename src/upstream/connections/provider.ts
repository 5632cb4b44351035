/**
 * Builds the requests to a provider. Bodies pass in the protocol of the client's endpoint, so
 * providers differ only in paths and headers.
 */

import { BUILT_IN_PROVIDERS } from '../../config/built-in-providers.ts';
import type { ProviderSettings } from '../../config/config.ts';
import { digestOf } from '../../lib/secret.ts';
import type { Endpoint } from '../../protocol/endpoint.ts';
import { ENDPOINTS } from '../../protocol/endpoints.ts';
import { ANTHROPIC_VERSION } from '../../protocol/messages.ts';
import { USER_AGENT } from '../../lib/version.ts';
import { fixedHeaders, type UpstreamRequest } from './upstream-request.ts';

interface RequestOptions
  extends
    Required<Pick<UpstreamRequest, 'body' | 'heldBody' | 'isStream'>>,
    Pick<UpstreamRequest, 'reconnect'> {
  readonly endpoint: Endpoint;
  readonly key: number | undefined;
  /** Headers that always pass from the client, names and values in turn. */
  readonly forwarded: readonly string[];
}

/** A registered provider. */
export type Provider = ReturnType<typeof createOpenAIProvider>;

/** Creates a provider that serves OpenAI's protocol at `settings.baseUrl`. */
export function createOpenAIProvider(settings: ProviderSettings) {
  const { id, baseUrl, tls } = settings;
  const { origin, pathname } = new URL(baseUrl);
  const basePath = pathname.replace(/\/$/, '');
  const { keyHeader = settings.keyHeader, modelListQuery = '' } = BUILT_IN_PROVIDERS.get(id) ?? {};
  const paths = byEndpoint(basePath);
  const openAIHeaders = jsonHeaders(origin, headersByKey(settings));
  const otherHeaders = keyHeader
    ? jsonHeaders(origin, headersByKey(settings, keyHeader))
    : openAIHeaders;

  return {
    ...settings,
    /** Scheme, host and port. */
    origin,
    /** Changes if a reload changes the settings. */
    digest: digestOf(settings),
    /** The URLs of the endpoints, for the log. They have no query: `base_url` may have none. */
    urls: byEndpoint(origin + basePath),

    /** Builds a request that names a model. `key` is the index of the key to send. */
    request(options: RequestOptions): UpstreamRequest {
      const { complete, stream } = options.endpoint.ownProtocol ? otherHeaders : openAIHeaders;
      return {
        method: 'POST',
        origin,
        tls,
        path: paths.get(options.endpoint)!,
        fixed: (options.isStream ? stream : complete)[options.key ?? 0]!,
        headers: options.forwarded,
        body: options.body,
        heldBody: options.heldBody,
        isStream: options.isStream,
        reconnect: options.reconnect,
      };
    },

    /** @param key - index of the key to send; with undefined, the request contains no key */
    modelListRequest: (key: number | undefined): UpstreamRequest => ({
      method: 'GET',
      origin,
      tls,
      path: `${basePath}/models${modelListQuery}`,
      fixed: fixedHeaders(origin, modelListHeaders(settings, key, keyHeader)),
      headers: [],
    }),
  };
}

function jsonHeaders(origin: string, byKey: readonly Record<string, string>[]) {
  const withAccept = (accept: string) =>
    byKey.map((one) =>
      fixedHeaders(origin, { ...one, 'content-type': 'application/json', accept }),
    );
  return { complete: withAccept('application/json'), stream: withAccept('text/event-stream') };
}

function byEndpoint(base: string): ReadonlyMap<Endpoint, string> {
  return new Map(ENDPOINTS.map((endpoint) => [endpoint, base + endpoint.path]));
}

/** A provider that takes the key in a header of its own gets it there too. */
function modelListHeaders(
  settings: ProviderSettings,
  key: number | undefined,
  keyHeader: string | undefined,
): Record<string, string> {
  const version = keyHeader && { 'anthropic-version': ANTHROPIC_VERSION };
  const accept = { ...version, accept: 'application/json' };
  if (key === undefined) return { ...accept, 'user-agent': USER_AGENT };
  const own = keyHeader && { [keyHeader]: settings.apiKeys[key]!.reveal() };
  return { ...accept, ...headersByKey(settings)[key], ...own };
}

function headersByKey(
  { apiKeys, headers }: ProviderSettings,
  keyHeader?: string,
): Record<string, string>[] {
  const fixed: Record<string, string> = Object.fromEntries(
    Object.entries(headers).map(([name, value]) => [name, value.reveal()]),
  );
  // `fixed` has no `authorization`, because settings may not name it (config/providers-section.ts).
  return apiKeys.map((apiKey) => ({
    'user-agent': USER_AGENT,
    ...fixed,
    ...(keyHeader
      ? { [keyHeader]: apiKey.reveal() }
      : { authorization: `Bearer ${apiKey.reveal()}` }),
    // A compressed answer could not be passed on byte for byte.
    'accept-encoding': 'identity',
  }));
}
