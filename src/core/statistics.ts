/**
 * Statistics for evaluations: 95 % confidence intervals (how other tasks of the same kind would turn out), paired differences, pass@k.
 * Tasks are the independent units: repeated attempts at one task never count as more tasks. No result is ever NaN.
 */

type Interval = readonly [low: number, high: number];

const COVERAGE = 0.95;
/** The two-sided normal quantile for that coverage. */
const Z = 1.959963984540054;
/** Above this many degrees of freedom, the asymptotic expansion is exact to nine digits. */
const MANY = 200;

/** Wilson interval of a proportion from n independent attempts; n need not be an integer. [0, 1] if there are none. */
export function wilson(share: number, n: number): Interval {
  if (!(n > 0)) return [0, 1];
  const centre = (share + (Z * Z) / (2 * n)) / (1 + (Z * Z) / n);
  const half = (Z * Math.sqrt((share * (1 - share)) / n + (Z * Z) / (4 * n * n))) / (1 + (Z * Z) / n);
  return [share <= 0 ? 0 : Math.max(0, centre - half), share >= 1 ? 1 : Math.min(1, centre + half)];
}

/**
 * Interval of the mean success rate over tasks, with `tries` attempts each. A Wilson interval with the effective number of independent
 * attempts that explains the spread between tasks, reduced if there are too few tasks to estimate that spread (Korn and Graubard's
 * correction). At least the number of tasks, which is the plain Wilson interval for one attempt each.
 */
export function sharesInterval(shares: readonly number[], tries: number): Interval {
  const n = shares.length;
  if (n === 0) return [0, 1];
  const mean = meanOf(shares);
  const single = mean * (1 - mean);
  // If all attempts agree, their correlation within a task is unknown; the conservative assumption is full correlation.
  if (single < 1e-12 || n === 1) return wilson(mean, n);
  const between = shares.reduce((sum, share) => sum + (share - mean) ** 2, 0) / n;
  const effective = Math.min(n * tries, (n * single) / between) * (Z / studentQuantile(n - 1)) ** 2;
  return wilson(mean, Math.max(n, effective));
}

/** Student interval of a mean. Null if there is no usable spread: fewer than two values, all values equal, or overflow. */
export function meanInterval(values: readonly number[]): Interval | null {
  const n = values.length;
  if (n < 2) return null;
  const mean = meanOf(values);
  const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (n - 1);
  const half = studentQuantile(n - 1) * Math.sqrt(variance / n);
  // Rounding leaves a little spread in equal values; an overflow carries no information either.
  const isUsable = Number.isFinite(half) && half > 1e-12 * values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  return isUsable ? [mean - half, mean + half] : null;
}

export function meanOf(values: readonly number[]): number {
  if (values.length === 0) return 0;
  const sum = values.reduce((total, value) => total + value, 0);
  // A sum of finite numbers can overflow. Dividing first is less exact, so it is only the fallback.
  return Number.isFinite(sum) ? sum / values.length : values.reduce((mean, value) => mean + value / values.length, 0);
}

/** The two-sided 95 % quantile of Student's t. */
export function studentQuantile(freedom: number): number {
  if (freedom > MANY) {
    const terms = [
      (Z ** 3 + Z) / 4,
      (5 * Z ** 5 + 16 * Z ** 3 + 3 * Z) / 96,
      (3 * Z ** 7 + 19 * Z ** 5 + 17 * Z ** 3 - 15 * Z) / 384,
    ];
    return terms.reduce((sum, term, i) => sum + term / freedom ** (i + 1), Z);
  }
  let low = Z;
  let high = 13;
  for (let i = 0; i < 80; i++) {
    const middle = (low + high) / 2;
    if (studentWithin(middle, freedom) < COVERAGE) low = middle;
    else high = middle;
  }
  return (low + high) / 2;
}

/** P(−t < T < t) of Student's t with integer degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4). */
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

// Paired differences compare two measurements task by task, which removes the variation in task difficulty.

/** Maximum number of additions for the exact distribution. */
const MOST_WORK = 20_000_000;

/**
 * 95 % interval of the mean difference of proportions, each from −1 to 1, after Agresti and Min: adds two pseudo-tasks, one without a
 * difference and one half better, half worse. So equal measurements of few tasks do not look certain.
 */
export function shareDifferenceInterval(differences: readonly number[]): Interval {
  if (differences.length === 0) return [-1, 1];
  const n = differences.length + 2;
  const mean = differences.reduce((sum, difference) => sum + difference, 0) / n;
  const square = (differences.reduce((sum, difference) => sum + difference ** 2, 0) + 1) / n;
  const half = Z * Math.sqrt((square - mean ** 2) / n);
  return [Math.max(-1, mean - half), Math.min(1, mean + half)];
}

/**
 * Two-sided p-value of the sign-flip test: the probability of a sum at least this far from 0 if each sign were random. For differences of
 * −1, 0 and 1 it is McNemar's exact test. Expects integers. Exact, except for very many and large values, where it uses the normal
 * approximation.
 */
export function signFlipChance(differences: readonly number[]): number {
  const sizes = differences.map(Math.abs).filter((size) => size > 0);
  if (sizes.length === 0) return 1;
  const unit = sizes.reduce(divisor);
  const steps = sizes.map((size) => size / unit);
  const reach = steps.reduce((sum, step) => sum + step, 0);
  const seen = Math.abs(differences.reduce((sum, difference) => sum + difference, 0)) / unit;
  if (reach * steps.length > MOST_WORK) return normalTails(seen / Math.sqrt(steps.reduce((sum, step) => sum + step ** 2, 0)));
  // Each flip changes the sum by twice the size. `chances[i]` is the probability of the sum −reach + 2i.
  let chances = new Float64Array(reach + 1);
  chances[0] = 1;
  for (const step of steps) {
    const next = chances.map((chance) => chance / 2);
    for (let i = step; i <= reach; i++) next[i] = (next[i] ?? 0) + (chances[i - step] ?? 0) / 2;
    chances = next;
  }
  const isFar = (i: number) => Math.abs(2 * i - reach) >= seen - 1e-9;
  return Math.min(
    1,
    chances.reduce((sum, chance, i) => (isFar(i) ? sum + chance : sum), 0),
  );
}

function divisor(a: number, b: number): number {
  return b === 0 ? a : divisor(b, a % b);
}

/** P(|Z| > z) of the standard normal (Abramowitz and Stegun 7.1.26, to 1e-7). */
function normalTails(z: number): number {
  const t = 1 / (1 + (0.3275911 * z) / Math.SQRT2);
  const polynomial = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  return polynomial * Math.exp(-(z * z) / 2);
}

// Unbiased pass@k estimates from n attempts, counting draws without replacement (https://arxiv.org/abs/2107.03374).

/** Probability that at least one of k attempts, drawn from n of which c succeeded, is a success. */
export function passAtK(n: number, c: number, k: number): number {
  return 1 - drawn(n, n - c, k);
}

/** "pass^k": probability that all k attempts, drawn from n of which c succeeded, are successes. */
export function passHatK(n: number, c: number, k: number): number {
  return drawn(n, c, k);
}

/** Probability that k draws from n, without replacement, all fall among m of them. Throws RangeError if k > n rather than extrapolate. */
function drawn(n: number, m: number, k: number): number {
  if (k > n) throw new RangeError(`${k} of ${n} tries cannot be drawn`);
  if (m < k) return 0;
  let chance = 1;
  for (let i = 0; i < k; i++) chance *= (m - i) / (n - i);
  return chance;
}
