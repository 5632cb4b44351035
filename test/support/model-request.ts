import { ModelRequestParser } from '../../src/protocol/model-request.ts';
import type { ModelRequest } from '../../src/protocol/model-request.ts';

/** Parses a chat request whose body arrives in these chunks. */
export function parseModelRequest(...chunks: readonly Buffer[]): ModelRequest {
  const parser = new ModelRequestParser();
  for (const chunk of chunks) parser.push(chunk);
  return parser.finish({ parts: chunks });
}
