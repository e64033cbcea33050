/**
 * Four-lane building blocks shared by all kernels.
 *
 * Addresses are bytes, lengths are floats. Rows may have any length: the last one to three floats are handled by `loadPart` and
 * `storePart`, which never touch memory outside the row.
 */

/** Address of the index-th float after `base`. */
@inline
export function at(base: usize, index: i32): usize {
  return base + (<usize>index << 2);
}

/** a·b + c. Fused where the build allows it: the only place where the two builds differ. */
@inline
export function fma(a: v128, b: v128, c: v128): v128 {
  if (ASC_FEATURE_RELAXED_SIMD) return f32x4.relaxed_madd(a, b, c);
  else return f32x4.add(f32x4.mul(a, b), c);
}

@inline
export function sum4(v: v128): f32 {
  return f32x4.extract_lane(v, 0) + f32x4.extract_lane(v, 1) + (f32x4.extract_lane(v, 2) + f32x4.extract_lane(v, 3));
}

@inline
export function max4(v: v128): f32 {
  return max<f32>(
    max<f32>(f32x4.extract_lane(v, 0), f32x4.extract_lane(v, 1)),
    max<f32>(f32x4.extract_lane(v, 2), f32x4.extract_lane(v, 3)),
  );
}

/** The first `count` (1 to 3) floats at `p`; the other lanes hold `fill`. */
@inline
export function loadPart(p: usize, count: i32, fill: f32): v128 {
  let v = f32x4.replace_lane(f32x4.splat(fill), 0, load<f32>(p));
  if (count > 1) v = f32x4.replace_lane(v, 1, load<f32>(p, 4));
  if (count > 2) v = f32x4.replace_lane(v, 2, load<f32>(p, 8));
  return v;
}

/** Stores the first `count` (1 to 3) lanes. */
@inline
export function storePart(p: usize, v: v128, count: i32): void {
  store<f32>(p, f32x4.extract_lane(v, 0));
  if (count > 1) store<f32>(p, f32x4.extract_lane(v, 1), 4);
  if (count > 2) store<f32>(p, f32x4.extract_lane(v, 2), 8);
}

/**
 * Constants of `exp4`, in memory: loading one costs the engine a single instruction, writing it into the code costs several each time.
 */
const EXP: usize = memory.data<f32>([
  88, -87, 1.44269504, 12582912, -0.693359375, 2.1219444e-4,
  1.98756915e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1, 1,
]);

/**
 * e^x within about 1e-7 relative (Cephes polynomial); arguments are clamped to [-87, 88], where the result stays normal. NaN stays NaN.
 */
@inline
export function exp4(argument: v128): v128 {
  const x = f32x4.pmax(f32x4.pmin(argument, v128.load32_splat(EXP)), v128.load32_splat(EXP, 4));
  // Adding 1.5·2²³ rounds to a whole number and leaves it in the low bits.
  const shift = v128.load32_splat(EXP, 12);
  const shifted = fma(x, v128.load32_splat(EXP, 8), shift);
  const n = f32x4.sub(shifted, shift);
  // ln 2 in two parts, so that the reduced argument keeps its low bits.
  let r = fma(n, v128.load32_splat(EXP, 16), x);
  r = fma(n, v128.load32_splat(EXP, 20), r);
  let p = v128.load32_splat(EXP, 24);
  p = fma(p, r, v128.load32_splat(EXP, 28));
  p = fma(p, r, v128.load32_splat(EXP, 32));
  p = fma(p, r, v128.load32_splat(EXP, 36));
  p = fma(p, r, v128.load32_splat(EXP, 40));
  p = fma(p, r, v128.load32_splat(EXP, 44));
  p = fma(p, f32x4.mul(r, r), f32x4.add(r, v128.load32_splat(EXP, 48)));
  // Adding n to the exponent's bits multiplies by 2ⁿ.
  return i32x4.add(p, i32x4.shl(shifted, 23));
}

/** 1, from memory for the same reason. */
@inline
export function one4(): v128 {
  return v128.load32_splat(EXP, 48);
}

/** Σ a·b over `count` floats, always in the same order: in four sums that do not wait for each other. */
@inline
export function dot(a: usize, b: usize, count: i32): f32 {
  let s0 = f32x4.splat(0);
  let s1 = s0, s2 = s0, s3 = s0;
  let i = 0;
  for (; i + 16 <= count; i += 16) {
    s0 = fma(v128.load(at(a, i)), v128.load(at(b, i)), s0);
    s1 = fma(v128.load(at(a, i), 16), v128.load(at(b, i), 16), s1);
    s2 = fma(v128.load(at(a, i), 32), v128.load(at(b, i), 32), s2);
    s3 = fma(v128.load(at(a, i), 48), v128.load(at(b, i), 48), s3);
  }
  for (; i + 4 <= count; i += 4) s0 = fma(v128.load(at(a, i)), v128.load(at(b, i)), s0);
  if (i < count) s0 = fma(loadPart(at(a, i), count - i, 0), loadPart(at(b, i), count - i, 0), s0);
  return sum4(f32x4.add(f32x4.add(s0, s1), f32x4.add(s2, s3)));
}

/** row += other */
@inline
export function addRow(row: usize, other: usize, count: i32): void {
  let i = 0;
  for (; i + 4 <= count; i += 4) v128.store(at(row, i), f32x4.add(v128.load(at(row, i)), v128.load(at(other, i))));
  for (; i < count; i++) store<f32>(at(row, i), load<f32>(at(row, i)) + load<f32>(at(other, i)));
}

/** row *= factor */
@inline
export function scaleRow(row: usize, factor: f32, count: i32): void {
  const f = f32x4.splat(factor);
  let i = 0;
  for (; i + 8 <= count; i += 8) {
    const left = v128.load(at(row, i));
    const right = v128.load(at(row, i), 16);
    v128.store(at(row, i), f32x4.mul(left, f));
    v128.store(at(row, i), f32x4.mul(right, f), 16);
  }
  for (; i + 4 <= count; i += 4) v128.store(at(row, i), f32x4.mul(v128.load(at(row, i)), f));
  for (; i < count; i++) store<f32>(at(row, i), load<f32>(at(row, i)) * factor);
}

@inline
export function maxOfRow(row: usize, count: i32): f32 {
  let left = f32x4.splat(-Infinity);
  let right = left;
  let i = 0;
  for (; i + 8 <= count; i += 8) {
    left = f32x4.pmax(left, v128.load(at(row, i)));
    right = f32x4.pmax(right, v128.load(at(row, i), 16));
  }
  for (; i + 4 <= count; i += 4) left = f32x4.pmax(left, v128.load(at(row, i)));
  let best = max4(f32x4.pmax(left, right));
  for (; i < count; i++) best = max<f32>(best, load<f32>(at(row, i)));
  return best;
}

/** row = e^(scale·(row − shift)); returns the sum. Two vectors at a time, so that they can be merged. */
@inline
export function expRow(row: usize, count: i32, scale: f32, shift: f32): f32 {
  const s = f32x4.splat(scale);
  const m = f32x4.splat(shift);
  let left = f32x4.splat(0);
  let right = left;
  let i = 0;
  for (; i + 8 <= count; i += 8) {
    const x0 = v128.load(at(row, i));
    const x1 = v128.load(at(row, i), 16);
    const e0 = exp4(f32x4.mul(s, f32x4.sub(x0, m)));
    const e1 = exp4(f32x4.mul(s, f32x4.sub(x1, m)));
    v128.store(at(row, i), e0);
    v128.store(at(row, i), e1, 16);
    left = f32x4.add(left, e0);
    right = f32x4.add(right, e1);
  }
  if (i + 4 <= count) {
    const e = exp4(f32x4.mul(s, f32x4.sub(v128.load(at(row, i)), m)));
    v128.store(at(row, i), e);
    left = f32x4.add(left, e);
    i += 4;
  }
  let total = sum4(f32x4.add(left, right));
  if (i < count) {
    const e = exp4(f32x4.mul(s, f32x4.sub(loadPart(at(row, i), count - i, shift), m)));
    storePart(at(row, i), e, count - i);
    for (; i < count; i++) total += load<f32>(at(row, i));
  }
  return total;
}
