import type { Call } from './call.ts';
export function createRemoteAddress(_: readonly string[]): (call: Call) => string | undefined {
  return (call) => call.peerAddress;
}
