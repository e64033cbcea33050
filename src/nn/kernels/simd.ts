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

/** e^x within about 1e-7 relative (Cephes polynomial); arguments are clamped to [-87, 88], where the result stays normal. */
@inline
export function exp4(argument: v128): v128 {
  const x = f32x4.max(f32x4.min(argument, f32x4.splat(88)), f32x4.splat(-87));
  const n = f32x4.nearest(f32x4.mul(x, f32x4.splat(1.44269504)));
  // ln 2 in two parts, so that the reduced argument keeps its low bits.
  let r = f32x4.sub(x, f32x4.mul(n, f32x4.splat(0.693359375)));
  r = f32x4.sub(r, f32x4.mul(n, f32x4.splat(-2.1219444e-4)));
  let p = f32x4.splat(1.98756915e-4);
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(1.3981999507e-3));
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(8.3334519073e-3));
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(4.1665795894e-2));
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(1.6666665459e-1));
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(5.0000001201e-1));
  p = f32x4.add(f32x4.add(f32x4.mul(f32x4.mul(r, r), p), r), f32x4.splat(1));
  const power = i32x4.shl(i32x4.add(i32x4.trunc_sat_f32x4_s(n), i32x4.splat(127)), 23);
  return f32x4.mul(p, power);
}

/** Σ a·b over `count` floats, always in the same order. */
@inline
export function dot(a: usize, b: usize, count: i32): f32 {
  let sum = f32x4.splat(0);
  let i = 0;
  for (; i + 4 <= count; i += 4) sum = fma(v128.load(at(a, i)), v128.load(at(b, i)), sum);
  if (i < count) sum = fma(loadPart(at(a, i), count - i, 0), loadPart(at(b, i), count - i, 0), sum);
  return sum4(sum);
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
  for (; i + 4 <= count; i += 4) v128.store(at(row, i), f32x4.mul(v128.load(at(row, i)), f));
  for (; i < count; i++) store<f32>(at(row, i), load<f32>(at(row, i)) * factor);
}

@inline
export function maxOfRow(row: usize, count: i32): f32 {
  let m = f32x4.splat(-Infinity);
  let i = 0;
  for (; i + 4 <= count; i += 4) m = f32x4.max(m, v128.load(at(row, i)));
  let best = max4(m);
  for (; i < count; i++) best = max<f32>(best, load<f32>(at(row, i)));
  return best;
}

/** row = e^(scale·(row − shift)); returns the sum. */
@inline
export function expRow(row: usize, count: i32, scale: f32, shift: f32): f32 {
  const s = f32x4.splat(scale);
  const m = f32x4.splat(shift);
  let sum = f32x4.splat(0);
  let i = 0;
  for (; i + 4 <= count; i += 4) {
    const e = exp4(f32x4.mul(s, f32x4.sub(v128.load(at(row, i)), m)));
    v128.store(at(row, i), e);
    sum = f32x4.add(sum, e);
  }
  let total = sum4(sum);
  if (i < count) {
    const e = exp4(f32x4.mul(s, f32x4.sub(loadPart(at(row, i), count - i, shift), m)));
    storePart(at(row, i), e, count - i);
    for (; i < count; i++) total += load<f32>(at(row, i));
  }
  return total;
}
