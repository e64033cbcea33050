/**
 * Summing gradient lanes, their square sum, and AdamW, over a range of the flat parameters. Ranges are multiples of four floats.
 */
import { at, sum4 } from './simd';

/**
 * Sums the first `lanes` lanes, `stride` floats apart, into the first, always in the same order. Returns the sum of squares of the
 * result; not finite if any entry is not.
 */
export function sumLanes(gradients: usize, stride: i32, lanes: i32, first: i32, end: i32): f64 {
  let squares: f64 = 0;
  for (let i = first; i < end; i += 4) {
    let address = at(gradients, i);
    let g = v128.load(address);
    for (let lane = 1; lane < lanes; lane++) {
      address = at(address, stride);
      g = f32x4.add(g, v128.load(address));
    }
    v128.store(at(gradients, i), g);
    squares += <f64>sum4(f32x4.mul(g, g));
  }
  return squares;
}

/**
 * AdamW with decoupled decay: p ← p·(1 − rate·decay) − rate · m̂ / (√v̂ + ε). `correction1` and `correction2` are 1 − β^step;
 * `gradientScale` is the
 * clipping factor. The betas come in f64 because 1 − β in f32 would be off by more than the rest of the arithmetic. Returns 0 if all
 * new parameters are finite, not a number otherwise.
 */
export function adamW(
  parameters: usize, gradients: usize, firstMoments: usize, secondMoments: usize, first: i32, end: i32,
  rate: f32, beta1: f64, beta2: f64, epsilon: f32, decay: f32, correction1: f32, correction2: f32, gradientScale: f32,
): f32 {
  const b1 = f32x4.splat(<f32>beta1);
  const b2 = f32x4.splat(<f32>beta2);
  const rest1 = f32x4.splat(<f32>(1 - beta1));
  const rest2 = f32x4.splat(<f32>(1 - beta2));
  const c1 = f32x4.splat(correction1);
  const c2 = f32x4.splat(correction2);
  const keep = f32x4.splat(1 - rate * decay);
  let flaws = f32x4.splat(0);
  for (let i = first; i < end; i += 4) {
    const g = f32x4.mul(v128.load(at(gradients, i)), f32x4.splat(gradientScale));
    const m = f32x4.add(f32x4.mul(v128.load(at(firstMoments, i)), b1), f32x4.mul(g, rest1));
    const v = f32x4.add(f32x4.mul(v128.load(at(secondMoments, i)), b2), f32x4.mul(f32x4.mul(g, g), rest2));
    v128.store(at(firstMoments, i), m);
    v128.store(at(secondMoments, i), v);
    const root = f32x4.add(f32x4.sqrt(f32x4.div(v, c2)), f32x4.splat(epsilon));
    const change = f32x4.mul(f32x4.splat(rate), f32x4.div(f32x4.div(m, c1), root));
    const p = f32x4.sub(f32x4.mul(v128.load(at(parameters, i)), keep), change);
    v128.store(at(parameters, i), p);
    flaws = f32x4.add(flaws, f32x4.sub(p, p));
  }
  return sum4(flaws);
}
