/**
 * Confidence intervals, 95 %, for what was measured on some tasks: what would other tasks of the same kind have given?
 *
 * Tasks are the independent units. Several tries of one task say more about that task and little about the next, so they never count as
 * so many tasks. Pure functions; nothing here is ever NaN.
 */

/** Lower and upper end. */
export type Interval = readonly [low: number, high: number];

const COVERAGE = 0.95;
/** Standard deviations of a normal distribution to either side that hold that much. */
export const Z = 1.959963984540054;
/** From here on the expansion for many degrees of freedom is exact to nine digits. */
const MANY = 200;

/** Wilson's interval of a share seen in n independent tries; n need not be whole. With nothing seen, everything is possible. */
export function wilson(share: number, n: number): Interval {
  if (!(n > 0)) return [0, 1];
  const centre = (share + (Z * Z) / (2 * n)) / (1 + (Z * Z) / n);
  const half = (Z * Math.sqrt((share * (1 - share)) / n + (Z * Z) / (4 * n * n))) / (1 + (Z * Z) / n);
  return [share <= 0 ? 0 : Math.max(0, centre - half), share >= 1 ? 1 : Math.min(1, centre + half)];
}

/**
 * Of the mean of the tasks' shares, each of `tries` tries. Wilson's interval with as many tries as independent ones would have had to be
 * for the spread between tasks, fewer where there are too few tasks to judge that spread by (Korn and Graubard's correction). Never
 * fewer than there are tasks: that is Wilson's own interval where each was tried once.
 */
export function sharesInterval(shares: readonly number[], tries: number): Interval {
  const n = shares.length;
  if (n === 0) return [0, 1];
  const mean = meanOf(shares);
  const single = mean * (1 - mean);
  // Where every try ended the same way, how much tries of one task have in common cannot be seen: the cautious answer is "everything".
  if (single < 1e-12 || n === 1) return wilson(mean, n);
  const between = shares.reduce((sum, share) => sum + (share - mean) ** 2, 0) / n;
  const effective = Math.min(n * tries, (n * single) / between) * (Z / studentQuantile(n - 1)) ** 2;
  return wilson(mean, Math.max(n, effective));
}

/** Student's interval of a mean. Null where there is no spread to judge by: fewer than two values, or all of them equal. */
export function meanInterval(values: readonly number[]): Interval | null {
  const n = values.length;
  if (n < 2) return null;
  const mean = meanOf(values);
  const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (n - 1);
  const half = studentQuantile(n - 1) * Math.sqrt(variance / n);
  // Rounding leaves a little spread in values that are equal; what overflows says nothing either.
  const isUsable = Number.isFinite(half) && half > 1e-12 * values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  return isUsable ? [mean - half, mean + half] : null;
}

/** 0 for no values. */
export function meanOf(values: readonly number[]): number {
  if (values.length === 0) return 0;
  const sum = values.reduce((total, value) => total + value, 0);
  // The sum of finite numbers need not be finite; dividing first is not as exact, so only then.
  return Number.isFinite(sum) ? sum / values.length : values.reduce((mean, value) => mean + value / values.length, 0);
}

/** How many standard errors to either side of a mean hold 95 %, with so many degrees of freedom. */
export function studentQuantile(freedom: number): number {
  if (freedom > MANY) {
    const terms = [
      (Z ** 3 + Z) / 4,
      (5 * Z ** 5 + 16 * Z ** 3 + 3 * Z) / 96,
      (3 * Z ** 7 + 19 * Z ** 5 + 17 * Z ** 3 - 15 * Z) / 384,
    ];
    return terms.reduce((sum, term, i) => sum + term / freedom ** (i + 1), Z);
  }
  let [low, high] = [Z, 13];
  for (let i = 0; i < 80; i++) {
    const middle = (low + high) / 2;
    if (studentWithin(middle, freedom) < COVERAGE) low = middle;
    else high = middle;
  }
  return (low + high) / 2;
}

/** Chance that Student's t lies between −t and t, for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4). */
function studentWithin(t: number, freedom: number): number {
  const angle = Math.atan(t / Math.sqrt(freedom));
  const cosine = Math.cos(angle);
  const isOdd = freedom % 2 === 1;
  let term = isOdd ? cosine : 1;
  let sum = 0;
  for (let k = isOdd ? 1 : 0; k <= freedom - 2; k += 2) {
    sum += term;
    term *= (cosine * cosine * (k + 1)) / (k + 2);
  }
  return isOdd ? (2 / Math.PI) * (angle + Math.sin(angle) * sum) : Math.sin(angle) * sum;
}
