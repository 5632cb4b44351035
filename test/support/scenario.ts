/** A gateway with its providers. Most tests begin with a scenario. */

import type { TestContext } from 'node:test';

import { providerToml, startGateway, type GatewayOptions, type TestGateway } from './gateway.ts';
import { answerWell, startUpstream, type FakeUpstream, type Script } from './upstream.ts';

/** A provider's script, alone or with further lines for its section. The default answers well. */
export type ProviderSettings = Script | { readonly script?: Script; readonly lines?: string };

export interface ScenarioSettings<Id extends string> extends Omit<GatewayOptions, 'toml'> {
  /** The providers by id, in the file's order; by default `p`, which answers well. */
  readonly providers?: Readonly<Record<Id, ProviderSettings>>;
  /** The lines in `[server]`. */
  readonly server?: string;
  /** The lines in each `[clients.NAME]`, by name. */
  readonly clients?: Readonly<Record<string, string>>;
  readonly fallback?: readonly string[];
  readonly fallbackOn?: readonly number[];
  /** Further sections. */
  readonly more?: string;
}

export type Scenario<Id extends string> = Readonly<Record<Id, FakeUpstream>> & {
  readonly gateway: TestGateway;
  /** The settings, for a reload. */
  readonly toml: string;
  /** How many requests each provider has received, in the order of the settings. */
  readonly asked: () => number[];
};

/** Starts the providers and then the gateway, until the test ends. */
export async function scenario<Id extends string = 'p'>(
  t: TestContext,
  settings: ScenarioSettings<Id> = {},
): Promise<Scenario<Id>> {
  const {
    providers = { p: {} },
    server = '',
    clients = {},
    fallback,
    fallbackOn,
    more = '',
  } = settings;
  const started = await Promise.all(
    Object.entries<ProviderSettings>(providers).map(async ([id, provider]) => {
      const { script, lines } = typeof provider === 'function' ? { script: provider } : provider;
      const upstream = await startUpstream(t, script ?? answerWell);
      return { id, upstream, section: providerToml(upstream, id, lines) };
    }),
  );
  const toml = [
    `[server]\n${server}`,
    ...Object.entries(clients).map(([name, lines]) => `[clients.${name}]\n${lines}`),
    fallback ? `[providers]\nfallback = ${JSON.stringify(fallback)}` : '',
    fallbackOn ? `fallback_on = ${JSON.stringify(fallbackOn)}` : '',
    ...started.map(({ section }) => section),
    more,
  ].join('\n');
  const upstreams = Object.fromEntries(started.map(({ id, upstream }) => [id, upstream]));
  return {
    ...(upstreams as Record<Id, FakeUpstream>),
    gateway: await startGateway(t, { ...settings, toml }),
    toml,
    asked: () => started.map(({ upstream }) => upstream.requests.length),
  };
}

/** Answers a chat completion with the script of its model, and any other request well. */
export function byModel(scripts: Readonly<Record<string, Script>>): Script {
  return (request, response) => {
    const script = request.method === 'POST' ? scripts[modelOf(request)] : undefined;
    return (script ?? answerWell)(request, response);
  };
}

/** Returns the model in a request to a provider. */
export function modelOf({ body }: { readonly body: Buffer }): string {
  return (JSON.parse(body.toString()) as { model: string }).model;
}
