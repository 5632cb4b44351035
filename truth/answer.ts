/** What a program that uses the SDKs of OpenAI or Anthropic would make of an answer. */

import { brotliDecompressSync, gunzipSync, inflateSync } from 'node:zlib';

import type { Client } from './case.ts';
import { ENDPOINTS, type Choices, type Endpoint, type Json } from './endpoints.ts';
import { bodyOf, headerOf, type Message } from './http.ts';

export interface Answer {
  readonly message: Message;
  readonly status: number;
  /** The body without its content coding. */
  readonly body: string;
  /** Why a program sees that the answer has failed. */
  readonly failure?: string;
  /** Why this is no usable answer, although no SDK raises an error. */
  readonly unusable?: string;
  readonly choices: Readonly<Choices>;
  /** What ended a stream: `[DONE]`, or an event. */
  readonly end?: string;
  /** Whether an event had no choices. A loop over `choices[0]` fails there. */
  readonly hasEventWithoutChoices: boolean;
}

/** Reads an answer as the SDKs do, with the little that has come of it. */
export function readAnswer(message: Message, { stream, endpoint }: Client): Answer {
  const { body, problem } = decode(message);
  const { status } = message;
  const choices: Choices = new Map();
  const base = { message, status, body, choices, hasEventWithoutChoices: false };
  if (problem !== undefined) return { ...base, unusable: problem };
  const isRedirect = status >= 300 && status < 400 && headerOf(message, 'location') !== undefined;
  if (isRedirect) return { ...base, unusable: 'a redirect that the client would follow' };
  if (status < 200 || status > 299) return { ...base, failure: `status ${status}` };
  const incomplete = message.isWhole ? undefined : `incomplete${describe(message.broken)}`;
  const row = ENDPOINTS[endpoint ?? 'chat'];
  const read = stream ? readEvents(body, row, choices) : readJson(message, body, row, choices);
  const failure = read.failure ?? incomplete;
  return { ...base, ...read, ...(failure === undefined ? {} : { failure: clip(failure, 102) }) };
}

const describe = (reason: string | undefined) => (reason === undefined ? '' : ` (${reason})`);

const DECODERS: Readonly<Record<string, (bytes: Buffer) => Buffer>> = {
  gzip: gunzipSync,
  'x-gzip': gunzipSync,
  deflate: inflateSync,
  br: brotliDecompressSync,
};

function decode(message: Message): { body: string; problem?: string } {
  const bytes = bodyOf(message);
  const coding = headerOf(message, 'content-encoding')?.toLowerCase() ?? 'identity';
  if (coding === 'identity' || !message.isWhole) return { body: bytes.toString() };
  const decoder = DECODERS[coding];
  try {
    if (decoder) return { body: decoder(bytes).toString() };
  } catch {
    // The body is not what its header says.
  }
  return { body: bytes.toString(), problem: `the body is no ${coding}` };
}

/** openai-node gives a text in the place of an object for any other content type. */
const JSON_TYPE = /^application\/(?:json|[\w.-]+\+json)\b/i;

function readJson(
  message: Message,
  body: string,
  { readAnswer: read }: Endpoint,
  choices: Choices,
): Partial<Answer> {
  const type = headerOf(message, 'content-type') ?? 'no content type';
  if (body === '') return { unusable: 'an empty body' };
  if (!JSON_TYPE.test(type)) return { unusable: `${clip(body, 30)} as ${type}` };
  const json = parse(body);
  if (json === undefined) return { unusable: `no JSON: ${clip(body, 30)}` };
  const { failure, lacks } = read(json, choices);
  if (failure !== undefined) return { failure };
  return lacks === undefined ? {} : { unusable: `JSON without ${lacks}` };
}

function parse(text: string): Json | undefined {
  try {
    const json: unknown = JSON.parse(text);
    return typeof json === 'object' && json !== null ? (json as Json) : undefined;
  } catch {
    return undefined;
  }
}

/**
 * Reads events as the SDKs for Python and Node do: JSON that cannot be parsed raises, and OpenAI's
 * read nothing after `[DONE]`. An event without the blank line at its end is dropped.
 */
function readEvents(body: string, endpoint: Endpoint, choices: Choices): Partial<Answer> {
  let hasEventWithoutChoices = false;
  let end: string | undefined;
  const events = eventsOf(body).filter(({ name }) => endpoint.isRead(name));
  for (const { name, data } of events) {
    if (data.startsWith('[DONE]')) {
      end ??= endpoint.needsEnd ? undefined : '[DONE]';
      break;
    }
    const json = parse(data);
    if (json === undefined) return { failure: `an event that is no JSON: ${data}` };
    const read = endpoint.readEvent(json, choices, name);
    if (read.failure !== undefined) return { failure: read.failure };
    if (read.lacks !== undefined) hasEventWithoutChoices = true;
    end = read.end ?? end;
  }
  if (events.length === 0) return { unusable: `no events but ${clip(body) || 'nothing'}` };
  if (end === undefined)
    return { hasEventWithoutChoices, ...(endpoint.needsEnd ? { unusable: 'no end' } : {}) };
  return { hasEventWithoutChoices, end };
}

/** Whether a stream's bytes so far hold an error event, after which an SDK reads no more. */
export function hasErrorEvent(body: string, { endpoint = 'chat' }: Client): boolean {
  return readEvents(body, ENDPOINTS[endpoint], new Map()).failure !== undefined;
}

/** Returns the name and the data of each event that has its blank line. */
function eventsOf(body: string): { name: string | undefined; data: string }[] {
  const events: { name: string | undefined; data: string }[] = [];
  let name: string | undefined;
  let data: string[] = [];
  const lines = body.replace(/^\ufeff/, '').split(/\r\n|\n|\r/);
  // The last line has no line end.
  for (const line of lines.slice(0, -1)) {
    if (line === '') {
      if (data.length > 0) events.push({ name, data: data.join('\n') });
      data = [];
      name = undefined;
    } else if (line.startsWith('data:')) data.push(line.slice(5).replace(/^ /, ''));
    else if (line.startsWith('event:')) name = line.slice(6).replace(/^ /, '');
  }
  return events;
}

/** Shortens a text to fit into a line. */
export function clip(text: string, length = 90): string {
  const line = text.replaceAll(/\s+/g, ' ').trim();
  return line.length > length ? `${line.slice(0, length - 1)}…` : line;
}
