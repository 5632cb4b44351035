/** What a program that uses OpenAI's SDKs would make of an answer. */

import { brotliDecompressSync, gunzipSync, inflateSync } from 'node:zlib';

import { bodyOf, headerOf, type Message } from './http.ts';

type Json = Readonly<Record<string, unknown>>;

export interface Choice {
  text: string;
  reasoning: string;
  toolArguments: string;
  finish: string | null;
}

export interface Answer {
  readonly message: Message;
  readonly status: number;
  /** The body without its content coding. */
  readonly body: string;
  /** Why a program sees that the answer has failed. */
  readonly failure?: string;
  /** Why this is no usable answer, although no SDK raises an error. */
  readonly unusable?: string;
  readonly choices: ReadonlyMap<number, Choice>;
  /** Whether a stream ended with `[DONE]`. */
  readonly isDone: boolean;
  /** Whether an event had no choices. A loop over `choices[0]` fails there. */
  readonly hasEventWithoutChoices: boolean;
}

/** Reads an answer as the SDKs do, with the little that has come of it. */
export function readAnswer(message: Message, isStream: boolean): Answer {
  const { body, problem } = decode(message);
  const { status } = message;
  const choices = new Map<number, Choice>();
  const base = { message, status, body, choices, isDone: false, hasEventWithoutChoices: false };
  if (problem !== undefined) return { ...base, unusable: problem };
  const isRedirect = status >= 300 && status < 400 && headerOf(message, 'location') !== undefined;
  if (isRedirect) return { ...base, unusable: 'a redirect that the client would follow' };
  if (status < 200 || status > 299) return { ...base, failure: `status ${status}` };
  const incomplete = message.isWhole ? undefined : `incomplete${describe(message.broken)}`;
  const read = isStream ? readEvents(body, choices) : readCompletion(message, body, choices);
  const failure = read.failure ?? incomplete;
  return { ...base, ...read, ...(failure === undefined ? {} : { failure }) };
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

/** The status of an answer's reading: what `readAnswer` adds to the base. */
interface Reading {
  readonly failure?: string;
  readonly unusable?: string;
  readonly isDone?: boolean;
  readonly hasEventWithoutChoices?: boolean;
}

/** openai-node gives a text in the place of an object for any other content type. */
const JSON_TYPE = /^application\/(?:json|[\w.-]+\+json)\b/i;

function readCompletion(message: Message, body: string, choices: Map<number, Choice>): Reading {
  const type = headerOf(message, 'content-type') ?? 'no content type';
  if (body === '') return { unusable: 'an empty body' };
  if (!JSON_TYPE.test(type)) return { unusable: `${clip(body, 30)} as ${type}` };
  const json = parse(body);
  if (json === undefined) return { unusable: `no JSON: ${clip(body, 30)}` };
  if (!Array.isArray(json['choices'])) return { unusable: 'JSON without choices' };
  addChoices(json['choices'], 'message', choices);
  return {};
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
 * Reads events as OpenAI's SDKs for Python and Node do: only an event with a top-level `error`
 * raises in both, JSON that cannot be parsed raises, and nothing is read after `[DONE]`. An event
 * without the blank line at its end is dropped.
 */
function readEvents(body: string, choices: Map<number, Choice>): Reading {
  let hasEventWithoutChoices = false;
  const events = eventsOf(body);
  for (const data of events) {
    if (data.startsWith('[DONE]')) return { isDone: true, hasEventWithoutChoices };
    const json = parse(data);
    if (json === undefined) return { failure: `an event that is no JSON: ${clip(data)}` };
    if (json['error']) return { failure: `error event ${clip(JSON.stringify(json['error']))}` };
    const list: unknown = json['choices'];
    if (!Array.isArray(list) || list.length === 0) hasEventWithoutChoices = true;
    else addChoices(list, 'delta', choices);
  }
  return {
    isDone: false,
    hasEventWithoutChoices,
    ...(events.length === 0 ? { unusable: `no events but ${clip(body) || 'nothing'}` } : {}),
  };
}

/** Whether a stream's bytes so far hold an error event, after which an SDK reads no more. */
export function hasErrorEvent(body: string): boolean {
  return readEvents(body, new Map()).failure !== undefined;
}

/** Returns the data of each event that has its blank line. */
function eventsOf(body: string): string[] {
  const events: string[] = [];
  let data: string[] = [];
  const lines = body.replace(/^\ufeff/, '').split(/\r\n|\n|\r/);
  // The last line has no line end.
  for (const line of lines.slice(0, -1)) {
    if (line === '') {
      if (data.length > 0) events.push(data.join('\n'));
      data = [];
    } else if (line.startsWith('data:')) data.push(line.slice(5).replace(/^ /, ''));
  }
  return events;
}

function addChoices(list: unknown[], part: 'message' | 'delta', choices: Map<number, Choice>) {
  for (const one of list as Json[]) {
    const index = typeof one['index'] === 'number' ? one['index'] : 0;
    const empty: Choice = { text: '', reasoning: '', toolArguments: '', finish: null };
    const choice = choices.get(index) ?? empty;
    choices.set(index, choice);
    const delta = (one[part] ?? {}) as Json;
    if (typeof delta['content'] === 'string') choice.text += delta['content'];
    if (typeof delta['reasoning_content'] === 'string')
      choice.reasoning += delta['reasoning_content'];
    for (const call of (delta['tool_calls'] ?? []) as Json[]) {
      const given = (call['function'] as Json | undefined)?.['arguments'];
      if (typeof given === 'string') choice.toolArguments += given;
    }
    if (typeof one['finish_reason'] === 'string') choice.finish = one['finish_reason'];
  }
}

/** Shortens a text to fit into a line. */
export function clip(text: string, length = 90): string {
  const line = text.replaceAll(/\s+/g, ' ').trim();
  return line.length > length ? `${line.slice(0, length - 1)}…` : line;
}
