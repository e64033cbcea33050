/**
 * Two measurements of the same tasks, compared task by task: how much better is the second, and could that be chance?
 *
 * Comparing by task removes what makes some tasks harder than others, so small differences are found with few tasks.
 */
import { type Interval, Z } from './intervals.ts';

/** Additions above which the exact distribution is not computed. */
const MOST_WORK = 20_000_000;

/**
 * 95 % interval of the mean of differences of shares, each from −1 to 1. Agresti's and Min's: as if two more tasks had been seen, one
 * without a difference and one half better, half worse. So equal measurements of few tasks do not look certain.
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
 * Chance of a sum at least this far from 0, if each difference were as likely to have the other sign: the sign-flip test, two-sided. For
 * differences of −1, 0 and 1 it is McNemar's exact test. Whole numbers; exact but for very many and large ones, where it is the normal
 * distribution's.
 */
export function signFlipChance(differences: readonly number[]): number {
  const sizes = differences.map(Math.abs).filter((size) => size > 0);
  if (sizes.length === 0) return 1;
  const unit = sizes.reduce(divisor);
  const steps = sizes.map((size) => size / unit);
  const reach = steps.reduce((sum, step) => sum + step, 0);
  const seen = Math.abs(differences.reduce((sum, difference) => sum + difference, 0)) / unit;
  if (reach * steps.length > MOST_WORK) return normalTails(seen / Math.sqrt(steps.reduce((sum, step) => sum + step ** 2, 0)));
  // Sums have steps of two: each flip moves by twice the size. `chances[i]` is that of the sum −reach + 2i.
  let chances = new Float64Array(reach + 1);
  chances[0] = 1;
  for (const step of steps) {
    const next = chances.map((chance) => chance / 2);
    for (let i = step; i <= reach; i++) next[i] = (next[i] ?? 0) + (chances[i - step] ?? 0) / 2;
    chances = next;
  }
  return Math.min(
    1,
    chances.reduce((sum, chance, i) => (Math.abs(2 * i - reach) >= seen - 1e-9 ? sum + chance : sum), 0),
  );
}

function divisor(a: number, b: number): number {
  return b === 0 ? a : divisor(b, a % b);
}

/** Chance of more than z standard deviations to either side (Abramowitz and Stegun 7.1.26, to 1e-7). */
function normalTails(z: number): number {
  const t = 1 / (1 + (0.3275911 * z) / Math.SQRT2);
  const polynomial = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  return polynomial * Math.exp(-(z * z) / 2);
}
