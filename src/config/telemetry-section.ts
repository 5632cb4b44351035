/**
 * Reads `[telemetry]` and OpenTelemetry's environment variables, as its specification describes
 * them: where spans are sent, with which headers and resource, and which requests are sampled.
 */

import { isPrivate } from '../lib/loopback.ts';
import { Secret } from '../lib/secret.ts';
import { VERSION } from '../lib/version.ts';
import { HEADER_NAME, HEADER_VALUE } from './header-names.ts';
import type { Env } from './read-values.ts';
import type { SettingValues } from './setting-values.ts';

/** The settings of traces. */
export type TraceSettings = NonNullable<ReturnType<typeof readTelemetry>>;

/** OpenTelemetry's default for OTLP over HTTP. */
const DEFAULT_ENDPOINT = 'http://localhost:4318';
const TRACES_PATH = '/v1/traces';
/** The root samplers and their ratios; that of `traceidratio` is `OTEL_TRACES_SAMPLER_ARG`. */
const SAMPLERS = new Map([
  ['always_on', 1],
  ['always_off', 0],
  ['traceidratio', undefined],
]);
const DEFAULT_SAMPLER = 'parentbased_always_on';
const PARENT_BASED = /^parentbased_/;

/** Returns the settings of traces, or undefined if traces are off: then no variable is read. */
export function readTelemetry(values: SettingValues, env: Env) {
  if (!values.section('telemetry').traces) return undefined;
  // An empty variable counts as unset, as OpenTelemetry's specification says.
  const firstOf = (...names: string[]) => names.find((name) => env[name]);
  const headersName = firstOf('OTEL_EXPORTER_OTLP_TRACES_HEADERS', 'OTEL_EXPORTER_OTLP_HEADERS');
  const headers = readPairs(values, headersName, env).map(([name, value]) => {
    const text = `the value of "${name}" must be visible ASCII, spaces and tabs`;
    if (!HEADER_VALUE.test(value)) values.problem(headersName!, text, headersName);
    // A value may be an ordinary word.
    return [name, new Secret(value, { isKey: false })] as const;
  });
  const attributes = readPairs(values, firstOf('OTEL_RESOURCE_ATTRIBUTES'), env);
  const named = env['OTEL_SERVICE_NAME'];
  return {
    endpoint: readEndpoint(values, env, headers.length > 0),
    headers,
    /** Attributes of the process by their names. Later ones win. */
    resource: new Map([
      ['service.name', 'inference-gateway'],
      ['service.version', VERSION],
      ...attributes,
      ...(named ? [['service.name', named] as const] : []),
    ]),
    sampler: readSampler(values, env),
  };
}

/** Returns the URL for spans. No message quotes the URL, because it may hold a key. */
function readEndpoint(values: SettingValues, env: Env, hasHeaders: boolean): string {
  const ofTraces = 'OTEL_EXPORTER_OTLP_TRACES_ENDPOINT';
  const name = env[ofTraces] ? ofTraces : 'OTEL_EXPORTER_OTLP_ENDPOINT';
  const text = env[name] || DEFAULT_ENDPOINT;
  const url = URL.canParse(text) ? new URL(text) : undefined;
  // fetch refuses a URL with a user.
  if (!url || !/^https?:$/.test(url.protocol) || url.username || url.password) {
    values.problem(name, 'expected an http or https URL without user', name);
    return '';
  }
  if (name !== ofTraces) url.pathname = url.pathname.replace(/\/$/, '') + TRACES_PATH;
  if (url.protocol === 'http:' && hasHeaders && !isPrivate(url.hostname)) {
    values.warning(name, 'headers are sent in clear text beyond a private network; use https://');
  }
  return url.href;
}

/**
 * Returns the pairs of `name=value,name=value`, with percent-encoded values decoded. Reports each
 * item that is no pair, without its text, because the text may be a key.
 */
function readPairs(values: SettingValues, variable: string | undefined, env: Env) {
  if (variable === undefined) return [];
  const items = env[variable]!.split(',').filter((item) => item.trim() !== '');
  return items.flatMap((item, at): [name: string, value: string][] => {
    const [, name = '', value = ''] = /^([^=]+)=(.*)$/s.exec(item.trim()) ?? [];
    if (HEADER_NAME.test(name.trimEnd().toLowerCase())) {
      try {
        return [[name.trimEnd(), decodeURIComponent(value.trimStart())]];
      } catch {
        // The percent-encoding is wrong.
      }
    }
    const text = `item ${at + 1} is not name=value, with a percent-encoded value`;
    values.problem(variable, text, variable);
    return [];
  });
}

/**
 * Returns how many of the root requests are sampled, and whether a client's `traceparent` decides
 * instead. OpenTelemetry's specification wants a warning for an unknown value, and the default.
 */
function readSampler(values: SettingValues, env: Env) {
  let name = env['OTEL_TRACES_SAMPLER']?.toLowerCase() || DEFAULT_SAMPLER;
  if (!SAMPLERS.has(name.replace(PARENT_BASED, ''))) {
    const known = [...SAMPLERS.keys()].flatMap((one) => [one, `parentbased_${one}`]).join(', ');
    values.warning('OTEL_TRACES_SAMPLER', `${DEFAULT_SAMPLER} is used; known: ${known}`);
    name = DEFAULT_SAMPLER;
  }
  const ratio = SAMPLERS.get(name.replace(PARENT_BASED, '')) ?? readRatio(values, env);
  return { ratio, isParentBased: PARENT_BASED.test(name) };
}

function readRatio(values: SettingValues, env: Env): number {
  const text = env['OTEL_TRACES_SAMPLER_ARG'] || '1';
  const ratio = Number(text);
  if (ratio >= 0 && ratio <= 1) return ratio;
  values.warning('OTEL_TRACES_SAMPLER_ARG', 'expected a number from 0 to 1; 1 is used');
  return 1;
}
