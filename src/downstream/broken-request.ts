/** Refusal of what Node's HTTP parser rejects: the documented error object in place of Node's empty answer. */

import { randomUUID } from 'node:crypto';
import { STATUS_CODES } from 'node:http';

import { invalidRequest, type GatewayError } from '../lib/errors.ts';
import type { Answer } from '../lib/attempt.ts';
import type { Connection } from './connection.ts';
import { toAddress } from './request-head.ts';

/** Status and text by the code of the parser's error; any other is a plain 400. */
const PARSER_ERRORS = new Map([
  ['HPE_HEADER_OVERFLOW', { status: 431, text: 'request headers are too large' }],
  ['HPE_CHUNK_EXTENSIONS_OVERFLOW', { status: 413, text: 'chunk extensions are too large' }],
  ['ERR_HTTP_REQUEST_TIMEOUT', { status: 408, text: 'request was not received in time' }],
]);
const OTHER_ERROR = { status: 400, text: 'request is not valid HTTP' };
/** The client closed its sending side inside a request: it counts as gone. */
const ENDED_EARLY = 'HPE_INVALID_EOF_STATE';

type TextAnswer = Answer & { readonly body: string };
/** Returns the answer to a request that never became a call. `remote` is the address of the connection's other end. */
export type AnswerBroken = (
  refusal: GatewayError,
  requestId: string,
  remote: string | undefined,
) => TextAnswer;

/**
 * Ends a connection on which the parser failed with the error `code`; node:http reports each later packet too.
 * If a request is being worked on, its call answers, and the connection closes after it: with the refusal if its
 * own body is broken. A request that was answered before its body broke gets no second answer.
 */
export function refuseBrokenRequest(
  code: string | undefined,
  connection: Connection,
  answer: AnswerBroken,
): void {
  const { socket } = connection;
  const isGone = code === 'ECONNRESET' || (code === ENDED_EARLY && connection.isBusy);
  const isOver = !connection.isBusy && (!socket.writable || connection.isAnsweredEarly);
  if (isGone || isOver) {
    socket.destroy();
    return;
  }
  const { status, text } = PARSER_ERRORS.get(code ?? '') ?? OTHER_ERROR;
  const refusal = invalidRequest(text, { status, headers: { connection: 'close' } });
  if (connection.isBusy) {
    connection.closeAfterQueue(refusal);
    return;
  }
  const requestId = randomUUID();
  const refused = answer(refusal, requestId, toAddress(socket.remoteAddress ?? ''));
  socket.end(serialize(refused, requestId), () => socket.destroy());
}

function serialize({ status, headers, body }: TextAnswer, requestId: string): string {
  const lines = Object.entries({
    ...headers,
    'x-request-id': requestId,
    date: new Date().toUTCString(),
    'content-length': Buffer.byteLength(body),
  }).map(([name, value]) => `${name}: ${value}\r\n`);
  return `HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n${lines.join('')}\r\n${body}`;
}
