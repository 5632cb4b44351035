/** Refuses bytes that never become a request, because they are not HTTP or arrive too slowly. */

import { invalidRequest, type GatewayError } from '../lib/errors.ts';
import type { ResponseHeaders } from './client-reply.ts';
import { http } from '../lib/http.ts';

/** The parser's code for a head or a body that has not arrived in time. */
export const TIMED_OUT = 'ERR_HTTP_REQUEST_TIMEOUT';
/** Any other code is a plain 400. */
const PARSER_ERRORS = new Map([
  ['HPE_HEADER_OVERFLOW', { status: 431, text: 'request headers are too large' }],
  ['HPE_CHUNK_EXTENSIONS_OVERFLOW', { status: 413, text: 'chunk extensions are too large' }],
  [TIMED_OUT, { status: 408, text: 'request was not received in time' }],
]);
const OTHER_ERROR = { status: 400, text: 'request is not valid HTTP' };
interface TextAnswer {
  readonly status: number;
  readonly headers: ResponseHeaders;
  readonly body: string;
}

/** Logs bytes that never became a call, and returns their answer. */
export type AnswerBroken = (
  refusal: GatewayError,
  requestId: string,
  remote: string | undefined,
) => TextAnswer;

/** Returns the client's error for a parser error with this code. */
export function brokenRequestError(code: string | undefined): GatewayError {
  const { status, text } = PARSER_ERRORS.get(code ?? '') ?? OTHER_ERROR;
  return invalidRequest(text, { status, headers: { connection: 'close' } });
}

/** Returns the answer as text for the socket. */
export function serialize({ status, headers, body }: TextAnswer, requestId: string): string {
  const lines = Object.entries({
    ...headers,
    'x-request-id': requestId,
    date: new Date().toUTCString(),
    'content-length': Buffer.byteLength(body),
  }).map(([name, value]) => `${name}: ${value}\r\n`);
  return `HTTP/1.1 ${status} ${http.STATUS_CODES[status]}\r\n${lines.join('')}\r\n${body}`;
}
