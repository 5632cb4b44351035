/** The format of a case (README.md explains it), and its reader. */

import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

import { ENDPOINTS, type EndpointName } from './endpoints.ts';

/** A text, or its parts. */
export type Text = string | readonly string[];

/** Something that the provider does. Each has exactly one of the first group of members. */
export interface Step {
  readonly answer?: string;
  readonly head?: string;
  readonly completion?: Text;
  readonly delta?: string | Readonly<Record<string, unknown>>;
  readonly finish?: string;
  /** An event that has its `type` as its name: one of the endpoint's `events`, or a whole one. */
  readonly event?: string | { readonly type: string; readonly [name: string]: unknown };
  readonly data?: Text;
  readonly chunk?: Text;
  readonly send?: Text;
  readonly last_chunk?: true;
  readonly pause_ms?: number;
  readonly wait?: 'gone';
  readonly then?: 'close' | 'reset';

  readonly headers?: readonly string[];
  readonly body?: Text;
  /** Members of a `completion` beside its own, as they are sent. */
  readonly members?: string;
  /** The content type of a `completion`. */
  readonly type?: string;
  readonly gzip?: true;
  /** Adds a header with so many bytes. */
  readonly long_header_bytes?: number;
  /** How long `${long}` is in this step's texts. */
  readonly long_bytes?: number;
  /** The extension of the chunk that this step sends. */
  readonly extension?: string;
  /** The index of the choice, or of the content block, of a `delta` or a `finish`. */
  readonly choice?: number;
  /** Bytes to leave away at the end. */
  readonly without_last_bytes?: number;
  /** Sends so many bytes at a time. */
  readonly slice_bytes?: number;
  /** Only if the request's body holds this text. */
  readonly if_asked?: string;
}

export interface Client {
  /** `chat` by default. */
  readonly endpoint?: EndpointName;
  readonly stream?: boolean;
  /** Members beside the model, the prompt and `stream`: a text is inserted as it is. */
  readonly members?: string | Readonly<Record<string, unknown>>;
  /** In the place of the whole body. */
  readonly body?: Text;
  readonly headers?: readonly string[];
  readonly long_header_bytes?: number;
  readonly http?: '1.0';
  readonly framing?: 'length' | 'chunked' | 'chunked with extensions';
  /** Waits for `100 Continue` for a second before it sends the body. */
  readonly expect_continue?: true;
  /** The words of its requests. By default one: `hello`. */
  readonly requests?: readonly string[];
  /** Sends all requests in one write on one connection. Else each has a connection of its own. */
  readonly pipelined?: true;
  readonly pause_between_ms?: number;
  readonly half_closes?: true;
  /** Reads on behind an error event, where an SDK closes the connection. */
  readonly reads_on?: true;
  readonly leaves?: {
    readonly when: 'half the request is sent' | 'the provider waits' | 'the first text has come';
    readonly by: 'close' | 'reset';
  };
}

/** What an answer must be. All members must hold. */
export interface Rules {
  readonly failure?: true;
  readonly status?: number | string | readonly number[];
  readonly whole?: true;
  /** The answer has no end, by its framing. */
  readonly incomplete?: true;
  readonly text?: string;
  readonly texts?: readonly string[];
  readonly text_length?: number;
  readonly finish?: string | null;
  readonly tool_arguments?: string;
  readonly reasoning?: string;
  readonly contains?: readonly string[];
  readonly lacks?: readonly string[];
  readonly headers?: Readonly<Record<string, string>>;
  readonly lacks_headers?: readonly string[];
  readonly no_event_without_choices?: true;
  readonly first_text_within_ms?: number;
  /** The gateway closed the connection; without any answer, if `answers` is absent. */
  readonly closed?: true;
  /** How many whole answers there are, if not one for each request. */
  readonly answers?: number;
}

export interface ProviderSees {
  /** A number, or the least and the most. */
  readonly requests?: number | readonly [number, number];
  readonly body_contains?: readonly string[];
  readonly message?: string;
  readonly lacks?: readonly string[];
  readonly headers?: Readonly<Record<string, string>>;
  readonly lacks_headers?: readonly string[];
  readonly elsewhere_lacks?: readonly string[];
  readonly client_gone_within_ms?: number;
}

export interface Case {
  /** The file's name without `.json`. */
  readonly id: string;
  readonly name: string;
  readonly group: string;
  readonly why: string;
  readonly otherwise: string;
  readonly client: Client;
  /** Steps, or a list of steps for each request in turn; `down`: nothing listens at the port. */
  readonly provider: readonly Step[] | readonly (readonly Step[])[] | 'down';
  /** Alternatives. Each has the rules of all answers, or those of each answer in turn. */
  readonly client_may_get: readonly (Rules | readonly Rules[])[];
  /** Texts that are nowhere in what the client gets. */
  readonly client_never_gets?: readonly string[];
  readonly provider_sees?: ProviderSees;
  /** Not tried if clients send the provider's key themselves, because then nobody can lose it. */
  readonly needs_own_key?: true;
  /** The longest time for the whole case. */
  readonly limit_seconds?: number;
}

/** The groups in the order of the tables. */
export const GROUPS = [
  'A provider cuts an answer',
  'A provider reports an error',
  'A provider refuses or is down',
  'The client leaves',
  'Streams arrive whole and at once',
  'Numbers, unknown fields and text',
  'Keys and headers',
  'HTTP of the provider',
  'HTTP of the client',
  '/v1/responses',
  '/v1/messages',
] as const;

/**
 * Reads the cases of this folder, by group and then by name. Throws an error that names a file with
 * a mistake.
 */
export function readCases(folder: string): Case[] {
  const cases = readdirSync(folder)
    .filter((name) => name.endsWith('.json'))
    .map((name) => parseCase(name.slice(0, -5), readFileSync(join(folder, name), 'utf8')));
  const place = ({ group }: Case) => GROUPS.indexOf(group as (typeof GROUPS)[number]);
  return cases.toSorted((a, b) => place(a) - place(b) || (a.id < b.id ? -1 : 1));
}

const MEMBERS = {
  case: `name group why otherwise client provider client_may_get client_never_gets provider_sees
    needs_own_key limit_seconds`,
  client: `endpoint stream members body headers long_header_bytes http framing expect_continue
    requests pipelined pause_between_ms half_closes reads_on leaves`,
  step: `answer head completion delta finish event data chunk send last_chunk pause_ms wait then
    headers body members type gzip long_header_bytes long_bytes extension choice without_last_bytes
    slice_bytes if_asked`,
  rules: `failure status whole incomplete text texts text_length finish tool_arguments reasoning
    contains lacks headers lacks_headers no_event_without_choices first_text_within_ms closed answers`,
  provider: `requests body_contains message lacks headers lacks_headers elsewhere_lacks
    client_gone_within_ms`,
} as const;

/**
 * Parses a case's file. Throws if a member is unknown or missing, because a rule with a misspelt
 * name would hold for every gateway.
 */
export function parseCase(id: string, text: string): Case {
  const fail = (problem: string) => {
    throw new Error(`cases/${id}.json: ${problem}`);
  };
  const check = (value: object, kind: keyof typeof MEMBERS) => {
    const known = MEMBERS[kind].split(/\s+/);
    const unknown = Object.keys(value).filter((name) => !known.includes(name));
    if (unknown.length > 0) fail(`unknown in a ${kind}: ${unknown.join(', ')}`);
  };
  const one = JSON.parse(text) as Omit<Case, 'id'>;
  check(one, 'case');
  for (const name of ['name', 'why', 'otherwise', 'client', 'provider', 'client_may_get'] as const)
    if (one[name] === undefined) fail(`${name} is missing`);
  if (!(GROUPS as readonly string[]).includes(one.group)) fail(`unknown group: ${one.group}`);
  check(one.client, 'client');
  const endpoint = ENDPOINTS[one.client.endpoint ?? 'chat'];
  if (endpoint === undefined) fail(`unknown endpoint: ${one.client.endpoint}`);
  for (const step of one.provider === 'down' ? [] : one.provider.flat()) {
    check(step, 'step');
    if (typeof step.event === 'string' && !Object.hasOwn(endpoint.events, step.event))
      fail(`unknown event: ${step.event}`);
  }
  const alternatives = one.client_may_get.flat();
  for (const rules of alternatives) check(rules, 'rules');
  check(one.provider_sees ?? {}, 'provider');
  if (alternatives.some((rules) => Object.keys(rules).length === 0)) fail('an empty rule');
  if (one.client_may_get.length === 0 && !one.provider_sees) fail('it has no rule');
  return { id, ...one };
}

const TIMES = /_(?:ms|seconds)$/;

/** Returns the case with all its times multiplied. */
export function slowDown<T>(part: T, factor: number): T {
  if (Array.isArray(part)) return part.map((one: unknown) => slowDown(one, factor)) as T;
  if (typeof part !== 'object' || part === null) return part;
  const members = Object.entries(part).map(([name, value]) => [
    name,
    TIMES.test(name) && typeof value === 'number' ? value * factor : slowDown(value, factor),
  ]);
  return Object.fromEntries(members) as T;
}

export const textOf = (text: Text): string => (typeof text === 'string' ? text : text.join(''));
