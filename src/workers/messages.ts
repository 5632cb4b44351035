/** What the main thread and its workers tell each other. */

import type { Config, PackedConfig } from '../config/config.ts';
import type { CLIENT_LIMITS } from '../downstream/call.ts';
import type { FinishedRequest } from '../lib/request-facts.ts';
import type { SharedBlocks, ThreadPlace } from '../lib/shared-memory.ts';
import type { LoopDelay } from '../lib/thread-figures.ts';

/** What a worker starts with. */
export interface WorkerData {
  readonly place: ThreadPlace;
  readonly config: PackedConfig;
  /** What the main thread's check of the transport has led to. */
  readonly upstream: Config['server']['upstream'];
  /** Of the parts that stay over reloads. */
  readonly blocks: SharedBlocks;
  /** Of the settings. */
  readonly generationBlocks: SharedBlocks;
  readonly isTerminal: boolean;
  readonly colour: boolean;
  readonly clientLimits: typeof CLIENT_LIMITS;
}

export interface Address {
  readonly port: number;
  readonly host: string;
}

/** What the main thread asks a worker to do. */
export type Command =
  | ({ readonly type: 'listen' } & Address)
  | { readonly type: 'use'; readonly config: PackedConfig; readonly blocks: SharedBlocks }
  | {
      readonly type: 'drain';
      readonly delayMs: number;
      readonly timeoutMs: number;
      readonly reason: string;
    }
  /** The drain ends at once. */
  | { readonly type: 'cut' };

/** The reply to a command: what it has led to. */
export interface Reply {
  /** Of `listen`. */
  readonly port?: number;
  /** Of `listen`: Node's error with its code, which an error loses on its way. */
  readonly error?: { readonly message: string };
  /** Of `drain`. */
  readonly finished?: number;
  readonly cut?: number;
}

export type ToWorker =
  | { readonly type: 'command'; readonly call: number; readonly command: Command }
  /** All threads send the same memory to clients. */
  | { readonly type: 'models'; readonly call: number; readonly body: SharedArrayBuffer };

export type FromWorker =
  | { readonly type: 'reply'; readonly call: number; readonly reply: Reply }
  /** Log lines and finished requests of one turn of the event loop. */
  | { readonly type: 'batch'; readonly lines: string; readonly requests: FinishedRequest[] }
  /** Asks for the list of all models, or of those that a client may name. */
  | {
      readonly type: 'models';
      readonly call: number;
      readonly models: readonly string[] | undefined;
    }
  | { readonly type: 'loopDelay'; readonly loopDelay: LoopDelay }
  /** An exception was not caught: the worker accepts no more connections, finishes its requests and ends. */
  | { readonly type: 'failed' };
