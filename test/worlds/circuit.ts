/**
 * A model of a provider's circuit (docs/behaviour.md#circuits): the possible states, by everything
 * seen so far. Where the documents leave a choice, several states are possible, and later events
 * rule some out.
 */

const FAILURES_TO_REST = 3;
const REST_MS = 10_000;
const LONGEST_REST_MS = 60_000;
/** Events closer than this may have come in either order. */
const CLOSE_MS = 0.01;

interface State {
  /** The failures in a row, up to the count at which the provider rests. */
  readonly failures: number;
  readonly restMs: number;
  readonly untilMs: number;
  /** The request that probes the provider. */
  readonly probe: unknown;
}

const REACHABLE: State = { failures: 0, restMs: REST_MS, untilMs: 0, probe: undefined };

export class Circuit {
  #states: readonly State[] = [REACHABLE];
  /** All requests that were ever a probe. */
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

  failure(atMs: number, request: unknown): void {
    this.#change((state) => this.#failed(state, atMs, request));
  }

  /** While a probe is under way, an older request's late failure changes nothing. */
  #failed(state: State, atMs: number, request: unknown): State[] {
    if (state.probe !== undefined && !this.#probes.has(request)) return [state];
    return failed(state, atMs);
  }

  success(): void {
    this.#change(() => [REACHABLE]);
  }

  /** A result that may count as a failure or a success, or not. */
  maybe(atMs: number, what: readonly ('failure' | 'success')[], request?: unknown): void {
    this.#change((state) => [
      state,
      ...(what.includes('failure') ? this.#failed(state, atMs, request) : []),
      ...(what.includes('success') ? [REACHABLE] : []),
    ]);
  }

  /** A probing stream has lasted ten seconds. `isSeen`: data has come at that time. */
  lasted(probe: unknown, isSeen: boolean): void {
    this.#change((state) => {
      if (state.probe === probe && isSeen) return [REACHABLE];
      return this.#probes.has(probe) ? [state, REACHABLE] : [state];
    });
  }

  /** The probe ended without a result. */
  gone(probe: unknown, atMs: number): void {
    const over = { untilMs: atMs, probe: undefined };
    this.#change((state) => (state.probe === probe ? [{ ...state, ...over }] : [state]));
  }

  /** A plain 500: neither failure nor success, and possibly not the probe's result. */
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

  /** Whether the failures may make a request a probe. */
  mayProbe(): boolean {
    return this.#states.some(({ failures }) => failures >= FAILURES_TO_REST);
  }

  mustProbe(): boolean {
    return this.#states.every(({ failures }) => failures >= FAILURES_TO_REST);
  }

  /** The provider was asked. `isGuarded`: the circuit could have kept the request away. */
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

  /** Whether no state fits the events. */
  get isImpossible(): boolean {
    return this.#states.length === 0;
  }
}

function failed(state: State, atMs: number): State[] {
  const failures = Math.min(FAILURES_TO_REST, state.failures + 1);
  // The documents: "After each failed probe twice as long, up to 60 s."
  const isProbed = state.probe !== undefined;
  const restMs = isProbed ? Math.min(LONGEST_REST_MS, 2 * state.restMs) : state.restMs;
  const next = { failures, restMs, untilMs: atMs + restMs, probe: undefined };
  // A request sent before the rest began may fail during it.
  const isResting = state.failures === FAILURES_TO_REST && atMs < state.untilMs;
  return isResting ? [next, state] : [next];
}

/** Whether the provider rests; undefined if the rest ends right now. */
function rests({ failures, untilMs }: State, atMs: number): boolean | undefined {
  if (failures < FAILURES_TO_REST) return false;
  return Math.abs(atMs - untilMs) < CLOSE_MS ? undefined : atMs < untilMs;
}
