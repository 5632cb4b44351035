/**
 * The providers that need no `base_url`. They all speak OpenAI's protocol, so a new provider is a
 * new row.
 */

interface BuiltInProvider {
  readonly baseUrl: string;
  /** The key's environment variable, unless it is `<ID>_API_KEY`. */
  readonly keyVariable?: string;
  /**
   * The header for the key, without `Bearer`, in requests for the model list and of Anthropic's
   * protocol.
   */
  readonly keyHeader?: string;
  /** The query of a request for the model list. */
  readonly modelListQuery?: string;
}

export const BUILT_IN_PROVIDERS: ReadonlyMap<string, BuiltInProvider> = new Map(
  Object.entries<BuiltInProvider>({
    openai: { baseUrl: 'https://api.openai.com/v1' },
    anthropic: {
      baseUrl: 'https://api.anthropic.com/v1',
      // The chat endpoint accepts `Authorization: Bearer`, but all other paths answer it with 401.
      keyHeader: 'x-api-key',
      modelListQuery: '?limit=1000',
    },
    gemini: { baseUrl: 'https://generativelanguage.googleapis.com/v1beta/openai' },
    mistral: { baseUrl: 'https://api.mistral.ai/v1' },
    deepseek: { baseUrl: 'https://api.deepseek.com/v1' },
    groq: { baseUrl: 'https://api.groq.com/openai/v1' },
    together: { baseUrl: 'https://api.together.xyz/v1' },
    fireworks: { baseUrl: 'https://api.fireworks.ai/inference/v1' },
    openrouter: { baseUrl: 'https://openrouter.ai/api/v1' },
    xai: { baseUrl: 'https://api.x.ai/v1' },
    cerebras: { baseUrl: 'https://api.cerebras.ai/v1' },
    nvidia: { baseUrl: 'https://integrate.api.nvidia.com/v1' },
    moonshot: { baseUrl: 'https://api.moonshot.ai/v1' },
    // Two plans from the same vendor, with the same key. Their paths have no /v1.
    zed: { baseUrl: 'https://api.z.ai/api/paas/v4' },
    zed_coding: { baseUrl: 'https://api.z.ai/api/coding/paas/v4', keyVariable: 'ZED_API_KEY' },
    ollama: { baseUrl: 'http://localhost:11434/v1' },
    vllm: { baseUrl: 'http://localhost:8000/v1' },
    lmstudio: { baseUrl: 'http://localhost:1234/v1' },
  }),
);

export function keyVariableOf(id: string): string {
  return BUILT_IN_PROVIDERS.get(id)?.keyVariable ?? fillIn('<ID>_API_KEY', id);
}

/**
 * `pattern` is the setting's `providerEnv`. Only the key of a provider that is not built in has a
 * variable.
 */
export function variableOf(id: string, pattern: string): string | undefined {
  if (pattern === '<ID>_API_KEY') return keyVariableOf(id);
  return BUILT_IN_PROVIDERS.has(id) ? fillIn(pattern, id) : undefined;
}

function fillIn(pattern: string, id: string): string {
  return pattern.replace('<ID>', id.toUpperCase().replace(/[^A-Z0-9]/g, '_'));
}
