import { ChatRequestParser } from '../../src/openai/chat-request.ts';
import type { ChatRequest } from '../../src/openai/chat-request.ts';

/** Parses a chat request whose body arrives in these chunks. */
export function parseChatRequest(...chunks: readonly Buffer[]): ChatRequest {
  const parser = new ChatRequestParser();
  for (const chunk of chunks) parser.push(chunk);
  return parser.finish({ parts: chunks });
}
