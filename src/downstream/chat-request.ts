/** The chat completion request: untrusted bytes in, a validated request out, its bytes otherwise untouched. */

import { isUtf8 } from 'node:buffer';

import { invalidRequest } from '../lib/errors.ts';
import { JsonScanner } from '../lib/json-scanner.ts';
import type { ChatRequest } from '../lib/messages.ts';

/** It is decoded and encoded again, for each try: 30 MB of escapes would take a second. */
const MAX_MODEL_BYTES = 2_097_152;

/**
 * Reads the body of `POST /v1/chat/completions` (interface, Resources). Throws `invalidRequest` for anything
 * that is not such a request.
 */
export function parseChatRequest(bytes: Buffer): ChatRequest {
  if (!isUtf8(bytes)) throw invalidRequest('request body is not valid UTF-8');
  const json = new JsonScanner(bytes);
  const members = new Map<string, { kind: string; start: number; end: number }>();
  let hasMessages = false;
  let fault: string | undefined;
  const isObject = json.takeObject((name) => {
    if (name === 'messages') {
      hasMessages = true;
      fault = takeMessages(json) ?? fault;
      return;
    }
    const kind = json.kind();
    const start = json.offset;
    json.skip();
    if (name !== 'model' && name !== 'stream') return;
    // The bytes are forwarded, and an upstream may take the other one of the two.
    if (members.has(name)) fault = `duplicate member "${name}"`;
    members.set(name, { kind, start, end: json.offset });
  });
  json.end();
  if (!isObject) throw invalidRequest('request body must be a JSON object');

  const { kind, start, end } = members.get('model') ?? { kind: 'none', start: 0, end: 0 };
  if (end - start > MAX_MODEL_BYTES) throw invalidRequest('"model" is too long');
  const model = kind === 'string' ? String(JSON.parse(bytes.toString('utf8', start, end))) : '';
  if (model === '') throw invalidRequest('"model" must be a non-empty string');
  const stream = members.get('stream')?.kind ?? 'false';
  if (stream !== 'true' && stream !== 'false') throw invalidRequest('"stream" must be a boolean');
  if (!hasMessages) throw invalidRequest(NO_MESSAGES);
  if (fault) throw invalidRequest(fault);

  const before = bytes.subarray(0, start);
  const after = bytes.subarray(end);
  return {
    model,
    stream: stream === 'true',
    bodyWithModel: (name) => [before, Buffer.from(JSON.stringify(name)), after],
  };
}

const NO_MESSAGES = '"messages" must be a non-empty array';

/** Returns what is wrong with them. */
function takeMessages(json: JsonScanner): string | undefined {
  let count = 0;
  let fault: string | undefined;
  json.takeArray(() => {
    const own = takeMessage(json);
    if (own) fault ??= `"messages[${count}]${own}`;
    count += 1;
  });
  return count === 0 ? NO_MESSAGES : fault;
}

/** Returns what is wrong with it. A member that is there twice counts as the last of the two. */
function takeMessage(json: JsonScanner): string | undefined {
  let role: string | undefined;
  let content = 'none' as ContentKind;
  let isNameWrong = false;
  const isObject = json.takeObject((name) => {
    const isString = json.kind() === 'string';
    if (name === 'content') content = takeContent(json);
    else if (name === 'role' && isString) role = json.takeShortString();
    else {
      if (name === 'role') role = undefined;
      if (name === 'name') isNameWrong = !isString;
      json.skip();
    }
  });
  if (!isObject) return '" must be an object';
  if (role === undefined) return '.role" must be a string';
  if (content === 'none' && role !== 'assistant') return '.content" is required';
  if (content === 'wrong') return '.content" must be a string or an array of parts';
  return isNameWrong ? '.name" must be a string' : undefined;
}

/** `null` is none. */
type ContentKind = 'none' | 'usable' | 'wrong';

function takeContent(json: JsonScanner): ContentKind {
  const kind = json.kind();
  let areObjects = true;
  json.takeArray(() => {
    areObjects &&= json.kind() === 'object';
    json.skip();
  });
  if (kind === 'null') return 'none';
  return kind === 'string' || (kind === 'array' && areObjects) ? 'usable' : 'wrong';
}
