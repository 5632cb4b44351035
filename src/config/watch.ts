/** Notices that the settings' files have changed, for `[server] watch`. */

import { statSync, type BigIntStats } from 'node:fs';
import { stat } from 'node:fs/promises';

const POLL_MS = 1000;
/** After this many polls a file that changes all the time is read nevertheless. */
const MAX_UNSETTLED_POLLS = 10;

/**
 * The files of the settings: gateway.toml, the files in `${file:...}` and the certificates. Asks
 * for their states each second while it watches. fs.watch() would miss replaced links, as
 * Kubernetes makes them, and changes on other machines.
 */
export class SettingsFiles {
  #known: readonly string[] = [];
  /** The state of each watched file, from just before it was read. */
  #states: ReadonlyMap<string, string> = new Map();
  /** The changed states that the last poll has found. */
  #unsettled: string | undefined;
  #unsettledPolls = 0;
  #timer: NodeJS.Timeout | undefined;

  /**
   * Calls `read`, which passes each file to `onFile` before it reads the file. If it throws, the
   * files of the last good reading stay watched too, because any of them may be mended.
   */
  read<T>(read: (onFile: (path: string) => void) => T): T {
    const states = new Map<string, string>();
    const onFile = (path: string) => {
      if (!states.has(path)) states.set(path, stateNow(path));
    };
    // The states are taken before `read`, because a wrong file keeps the rest from being read.
    const known = this.#known.map((path) => [path, stateNow(path)] as const);
    try {
      const result = read(onFile);
      this.#known = [...states.keys()];
      this.#states = states;
      return result;
    } catch (error) {
      this.#states = new Map([...states, ...known]);
      throw error;
    }
  }

  /**
   * Calls `onChange` when a file has changed and stays the same for a second, or after ten seconds
   * of changes.
   */
  watch(onChange: () => void): void {
    this.#timer ??= setTimeout(() => void this.#poll(onChange), POLL_MS).unref();
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  async #poll(onChange: () => void): Promise<void> {
    const timer = this.#timer;
    const isDue = await this.#isReloadDue();
    // `stop` was called during the poll.
    if (this.#timer !== timer) return;
    this.#timer = undefined;
    this.watch(onChange);
    if (isDue) onChange();
  }

  /** Returns true if a file has changed, and its writer has probably finished. */
  async #isReloadDue(): Promise<boolean> {
    const states = this.#states;
    const changes: string[] = [];
    // The files wait for each other, because a mount that hangs then takes a single thread of
    // Node's pool, and name lookups need the pool too.
    for (const [path, before] of states) {
      const now = await stat(path, { bigint: true }).then(toState, toFailure);
      if (now !== before) changes.push(path, now);
    }
    const found = changes.join('\n');
    // No file has changed, or a signal has caused a reload during the poll.
    if (found === '' || states !== this.#states) {
      this.#forget();
      return false;
    }
    if (found === this.#unsettled || this.#unsettledPolls === MAX_UNSETTLED_POLLS) {
      this.#forget();
      return true;
    }
    this.#unsettled = found;
    this.#unsettledPolls += 1;
    return false;
  }

  #forget(): void {
    this.#unsettled = undefined;
    this.#unsettledPolls = 0;
  }
}

function stateNow(path: string): string {
  try {
    return toState(statSync(path, { bigint: true }));
  } catch (error) {
    return toFailure(error as NodeJS.ErrnoException);
  }
}

/** The text differs after each write and each replacement, also by a link. */
function toState({ dev, ino, size, mtimeNs, ctimeNs }: BigIntStats): string {
  return [dev, ino, size, mtimeNs, ctimeNs].join();
}

function toFailure({ code = '' }: NodeJS.ErrnoException): string {
  return code;
}
