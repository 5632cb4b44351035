/** The chat completion request: untrusted bytes in, a validated request out, its bytes otherwise untouched. */

import { isUtf8 } from 'node:buffer';

import { invalidRequest } from './errors.ts';
import { jsonSyntaxError, parseJson, scanJson } from './json-scan.ts';

export interface ChatRequest {
  /** As the client wrote it: `<provider_id>/<model_name>` or an alias. */
  readonly model: string;
  readonly stream: boolean;
  /** The client's bytes with only the `model` value replaced. */
  withModel(model: string): Buffer;
}

/**
 * Reads the body of `POST /v1/chat/completions` (interface, Resources). Fields beyond the documented
 * ones are not looked at. Throws `invalidRequest` for anything that is not such a request.
 */
export function parseChatRequest(bytes: Buffer): ChatRequest {
  if (!isUtf8(bytes)) throw invalidRequest('request body is not valid UTF-8');
  const { model: modelRange } = scanJson(bytes);
  const body = parseJson(bytes.toString('utf8'));
  if (body === undefined) throw jsonSyntaxError(bytes);
  if (!isRecord(body)) throw invalidRequest('request body must be a JSON object');

  const { model, stream, messages } = body;
  if (typeof model !== 'string' || model === '' || modelRange === undefined) {
    throw invalidRequest('"model" must be a non-empty string');
  }
  if (stream !== undefined && typeof stream !== 'boolean') {
    throw invalidRequest('"stream" must be a boolean');
  }
  if (!Array.isArray(messages) || messages.length === 0) {
    throw invalidRequest('"messages" must be a non-empty array');
  }
  messages.forEach(checkMessage);

  const before = bytes.subarray(0, modelRange.start);
  const after = bytes.subarray(modelRange.end);
  return {
    model,
    stream: stream === true,
    withModel: (name) => Buffer.concat([before, Buffer.from(JSON.stringify(name)), after]),
  };
}

function checkMessage(message: unknown, index: number): void {
  const where = `"messages[${index}]`;
  if (!isRecord(message)) throw invalidRequest(`${where}" must be an object`);
  const { role, content, name } = message;
  if (typeof role !== 'string') throw invalidRequest(`${where}.role" must be a string`);
  const isAbsent = content === undefined || content === null;
  if (isAbsent && role !== 'assistant') throw invalidRequest(`${where}.content" is required`);
  if (!isAbsent && typeof content !== 'string' && !isArrayOfRecords(content)) {
    throw invalidRequest(`${where}.content" must be a string or an array of parts`);
  }
  if (name !== undefined && typeof name !== 'string') {
    throw invalidRequest(`${where}.name" must be a string`);
  }
}

function isArrayOfRecords(value: unknown): boolean {
  return Array.isArray(value) && value.every(isRecord);
}

function isRecord(value: unknown): value is Record<string, unknown> & {
  model?: unknown;
  stream?: unknown;
  messages?: unknown;
  role?: unknown;
  content?: unknown;
  name?: unknown;
} {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
