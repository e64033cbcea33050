/**
 * Seeded random numbers for making data: same seed, same data, on every machine.
 *
 * Not for sampling from the policy: the engine has a generator of its own.
 */

/** Gives numbers in [0, 1). */
export type Random = () => number;

/** Mulberry32: small, fast, and good enough to draw names and prices. */
export function seededRandom(seed: number): Random {
  let state = seed >>> 0 || 1;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** An integer from `low` to `high`, both included. */
export function integer(random: Random, low: number, high: number): number {
  return low + Math.floor(random() * (high - low + 1));
}

export function pick<T>(random: Random, choices: readonly T[]): T {
  const chosen = choices[Math.floor(random() * choices.length)];
  if (chosen === undefined) throw new RangeError('cannot pick from nothing');
  return chosen;
}
