// oxlint-disable no-underscore-dangle -- the names are Node's
/**
 * A connection to the gateway without a network: the members of `net.Socket` used by node:http, and
 * a client's end.
 */

import type { Server } from 'node:http';
import { Duplex } from 'node:stream';

/** The bytes held by both kernels while the client does not read. */
const KERNEL_BYTES = 65_536;

/** The client's side. */
export interface ClientEnd {
  readonly onBytes: (bytes: Buffer) => void;
  /** Called when the gateway has closed its sending side, or the whole connection. */
  readonly onEnd: (how: 'end' | 'reset') => void;
}

/** Whether the server's port is open. */
export function isListening(server: Server): boolean {
  return (server as unknown as { _handle: unknown })._handle !== null;
}

type Done = (error?: Error | null) => void;

/** The members of net.Server changed by its connections. */
type Counted = Server & { _connections: number; _emitCloseIfDrained: () => void };

export const connectionsOf = (server: Server) => (server as Counted)._connections;

export class MemorySocket extends Duplex {
  readonly remoteAddress: string;
  bytesRead = 0;
  #takenBytes = 0;
  readonly #server: Counted;
  readonly #client: ClientEnd;
  readonly #inbound: (Buffer | null)[] = [];
  #isReading = false;
  /** The bytes held while the client does not read, and the callback for when it has taken them. */
  #held: Buffer[] = [];
  #heldBytes = 0;
  #onRoom: (() => void) | undefined;
  #ending: 'end' | 'reset' | undefined;
  #isClientReading = true;
  #timer: NodeJS.Timeout | undefined;

  constructor(server: Server, client: ClientEnd, remoteAddress: string) {
    super({ allowHalfOpen: true });
    this.#server = server as Counted;
    this.#client = client;
    this.remoteAddress = remoteAddress;
    this.#server._connections += 1;
    server.emit('connection', this);
  }

  /** Takes bytes from the client; null for its FIN. */
  receive(bytes: Buffer | null): void {
    if (this.destroyed) return;
    this.#inbound.push(bytes);
    if (this.#isReading) this._read();
  }

  /** Resets the connection from the client's side. */
  reset(): void {
    const error = Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' });
    if (!this.destroyed) this.destroy(error);
  }

  /** Sets whether the client reads. */
  clientReads(isReading: boolean): void {
    this.#isClientReading = isReading;
    if (!isReading) return;
    const held = this.#held;
    this.#held = [];
    this.#heldBytes = 0;
    for (const bytes of held) this.#client.onBytes(bytes);
    const onRoom = this.#onRoom;
    this.#onRoom = undefined;
    onRoom?.();
    if (this.#ending) this.#client.onEnd(this.#ending);
  }

  /** As in net.Socket, includes bytes waiting to be written. */
  get bytesWritten(): number {
    return this.#takenBytes + this.writableLength;
  }

  override _read(): void {
    const bytes = this.#inbound.shift();
    this.#isReading = bytes === undefined;
    if (bytes === undefined) return;
    this.bytesRead += bytes?.length ?? 0;
    this.#active();
    this.push(bytes);
  }

  override _write(bytes: Buffer, _: BufferEncoding, done: Done): void {
    this.#active();
    const finish = () => {
      this.#takenBytes += bytes.length;
      done();
    };
    if (this.#isClientReading) this.#client.onBytes(bytes);
    else {
      this.#held.push(bytes);
      this.#heldBytes += bytes.length;
    }
    if (this.#heldBytes <= KERNEL_BYTES) finish();
    else this.#onRoom = finish;
  }

  override _writev(
    chunks: { readonly chunk: Buffer; readonly encoding: BufferEncoding }[],
    done: Done,
  ): void {
    const parts = chunks.map(({ chunk, encoding }) =>
      typeof chunk === 'string' ? Buffer.from(chunk, encoding) : chunk,
    );
    this._write(Buffer.concat(parts), 'utf8', done);
  }

  override _final(done: Done): void {
    this.#endClient('end');
    done();
  }

  override _destroy(error: Error | null, done: Done): void {
    clearTimeout(this.#timer);
    if (!this.writableFinished) this.#endClient('reset');
    done(error);
    this.#server._connections -= 1;
    this.#server._emitCloseIfDrained();
  }

  /** Ends the client's side after the held bytes. */
  #endClient(how: 'end' | 'reset'): void {
    if (this.#held.length > 0) this.#ending = how;
    else this.#client.onEnd(how);
  }

  destroySoon(): void {
    if (this.writable) this.end();
    if (this.writableFinished) this.destroy();
    else this.once('finish', () => this.destroy());
  }

  setTimeout(ms: number, onTimeout?: () => void): this {
    clearTimeout(this.#timer);
    this.#timer = ms > 0 ? setTimeout(() => this.emit('timeout'), ms) : undefined;
    if (onTimeout) this.once('timeout', onTimeout);
    return this;
  }

  #active(): void {
    this.#timer?.refresh();
  }

  setNoDelay = () => this;
  setKeepAlive = () => this;
}
