/** Random test data, the same on every day. `TEST_SEED=<seed>` makes other data. */

/** The seed if the environment has no TEST_SEED. */
export const SEED = 1;

export interface Random {
  /** A fraction from 0 up to but not including 1. */
  readonly next: () => number;
  /** A whole number from `min` to `max`, both included. */
  integer(min: number, max: number): number;
  pick<T>(values: readonly T[]): T;
  /** True once in `n` times on average. */
  oneIn(n: number): boolean;
}

/** Creates a mulberry32 generator. */
export function createRandom(seed: number): Random {
  let state = seed >>> 0;
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  const integer = (min: number, max: number) => min + Math.floor(next() * (max - min + 1));
  return {
    next,
    integer,
    pick: (values) => values[integer(0, values.length - 1)]!,
    oneIn: (n) => integer(1, n) === 1,
  };
}

/** Runs `check` with a seeded generator. An error's message gets the seed. */
export async function withRandom(check: (random: Random) => unknown): Promise<void> {
  const seed = Number(process.env['TEST_SEED'] ?? SEED);
  try {
    await check(createRandom(seed));
  } catch (error) {
    if (error instanceof Error) error.message += `\n(repeat with TEST_SEED=${seed})`;
    throw error;
  }
}
