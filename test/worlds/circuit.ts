/**
 * What docs/behaviour.md#circuits says of a provider's rest, as the set of all states that what was seen allows: where the page is silent
 * the set has several, and what the gateway does then leaves some of them.
 */

const FAILURES_TO_REST = 3;
const REST_MS = 10_000;
const LONGEST_REST_MS = 60_000;
/** Closer than that, either may have come first. */
const CLOSE_MS = 0.01;

interface State {
  /** In a row, no more than count. */
  readonly failures: number;
  readonly restMs: number;
  readonly untilMs: number;
  /** The request that probes it. */
  readonly probe: unknown;
}

const REACHABLE: State = { failures: 0, restMs: REST_MS, untilMs: 0, probe: undefined };

export class Circuit {
  #states: readonly State[] = [REACHABLE];
  /** All that have been one. */
  readonly #probes = new Set<unknown>();

  #change(next: (state: State) => readonly State[]): void {
    const states: State[] = [];
    for (const state of this.#states.flatMap(next)) {
      const isThere = states.some(
        ({ failures, restMs, untilMs, probe }) =>
          failures === state.failures &&
          restMs === state.restMs &&
          untilMs === state.untilMs &&
          probe === state.probe,
      );
      if (!isThere) states.push(state);
    }
    this.#states = states;
  }

  failure(atMs: number): void {
    this.#change((state) => failed(state, atMs));
  }

  success(): void {
    this.#change(() => [REACHABLE]);
  }

  /** Something that may count, or end the row. */
  maybe(atMs: number, what: readonly ('failure' | 'success')[]): void {
    this.#change((state) => [
      state,
      ...(what.includes('failure') ? failed(state, atMs) : []),
      ...(what.includes('success') ? [REACHABLE] : []),
    ]);
  }

  /** A stream that probes has gone on for ten seconds; `isSeen`: data has come then. */
  lasted(probe: unknown, isSeen: boolean): void {
    this.#change((state) => {
      if (state.probe === probe && isSeen) return [REACHABLE];
      return this.#probes.has(probe) ? [state, REACHABLE] : [state];
    });
  }

  /** The probe was over without a result. */
  gone(probe: unknown, atMs: number): void {
    const over = { untilMs: atMs, probe: undefined };
    this.#change((state) => (state.probe === probe ? [{ ...state, ...over }] : [state]));
  }

  /** A plain 500, which is neither a failure nor a success: of a probe it may be no result. */
  unknown(probe: unknown, atMs: number): void {
    this.#change((state) =>
      state.probe === probe ? [state, { ...state, untilMs: atMs, probe: undefined }] : [state],
    );
  }

  mayRest(atMs: number): boolean {
    return this.#states.some((state) => rests(state, atMs) !== false);
  }

  mustRest(atMs: number): boolean {
    return this.#states.every((state) => rests(state, atMs) === true);
  }

  /** It has failed so often that a request may be a probe. */
  mayProbe(): boolean {
    return this.#states.some(({ failures }) => failures >= FAILURES_TO_REST);
  }

  mustProbe(): boolean {
    return this.#states.every(({ failures }) => failures >= FAILURES_TO_REST);
  }

  /** It was asked, as somebody who may be kept away, or after all others have failed. */
  asked(atMs: number, probe: unknown, isGuarded: boolean): void {
    this.#change((state) => {
      if (isGuarded && rests(state, atMs) === true) return [];
      if (state.failures < FAILURES_TO_REST) return [state];
      this.#probes.add(probe);
      const probed = { ...state, untilMs: atMs + REST_MS, probe };
      return isGuarded ? [probed] : [state, probed];
    });
  }

  skipped(atMs: number): void {
    this.#change((state) => (rests(state, atMs) === false ? [] : [state]));
  }

  /** Nothing allows what was seen. */
  get isImpossible(): boolean {
    return this.#states.length === 0;
  }
}

function failed(state: State, atMs: number): State[] {
  const failures = Math.min(FAILURES_TO_REST, state.failures + 1);
  // "After each failed probe twice as long, up to 60 s."
  const isProbed = state.probe !== undefined;
  const restMs = isProbed ? Math.min(LONGEST_REST_MS, 2 * state.restMs) : state.restMs;
  const next = { failures, restMs, untilMs: atMs + restMs, probe: undefined };
  // One that was sent before the rest began.
  const isResting = state.failures === FAILURES_TO_REST && atMs < state.untilMs;
  return isResting ? [next, state] : [next];
}

/** Undefined: it may just have ended. */
function rests({ failures, untilMs }: State, atMs: number): boolean | undefined {
  if (failures < FAILURES_TO_REST) return false;
  return Math.abs(atMs - untilMs) < CLOSE_MS ? undefined : atMs < untilMs;
}
