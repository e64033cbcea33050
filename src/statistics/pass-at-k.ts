/**
 * From how often a task was solved in n tries to how often it would be in k: without bias, by counting draws without replacement
 * (https://arxiv.org/abs/2107.03374). More tries than there were cannot be drawn: k above n throws, it is never guessed.
 */

/** Chance that at least one of k tries, drawn from n of which c were successful, is a success. */
export function passAtK(n: number, c: number, k: number): number {
  return 1 - drawn(n, n - c, k);
}

/** Chance that all k tries, drawn from n of which c were successful, are successes: "pass^k". */
export function passHatK(n: number, c: number, k: number): number {
  return drawn(n, c, k);
}

/** Chance that k draws from n, without replacement, are all among m of them. */
function drawn(n: number, m: number, k: number): number {
  if (k > n) throw new RangeError(`${k} of ${n} tries cannot be drawn`);
  if (m < k) return 0;
  let chance = 1;
  for (let i = 0; i < k; i++) chance *= (m - i) / (n - i);
  return chance;
}
