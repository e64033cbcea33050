/**
 * Row-wise layers: RMSNorm, rotary positions and SwiGLU, each with its backward; and moving rows about.
 *
 * Backward kernels add to parameter gradients, and say of each activation gradient whether they add or overwrite.
 */
import { addRow, at, dot, exp4, loadPart, one4, scaleRow, storePart, sum4 } from './simd';

/** y = x / rms(x) · gain. Keeps 1/rms per row for the backward. */
export function rmsNorm(x: usize, gain: usize, y: usize, inverse: usize, rows: i32, width: i32, epsilon: f32): void {
  for (let r = 0; r < rows; r++) {
    const scale: f32 = 1 / sqrt<f32>(dot(x, x, width) / <f32>width + epsilon);
    store<f32>(at(inverse, r), scale);
    const s = f32x4.splat(scale);
    let i = 0;
    for (; i + 4 <= width; i += 4) {
      v128.store(at(y, i), f32x4.mul(f32x4.mul(v128.load(at(x, i)), s), v128.load(at(gain, i))));
    }
    for (; i < width; i++) store<f32>(at(y, i), load<f32>(at(x, i)) * scale * load<f32>(at(gain, i)));
    x = at(x, width);
    y = at(y, width);
  }
}

/** dx += …, dGain += … */
export function rmsNormBackward(
  x: usize, gain: usize, inverse: usize, dy: usize, dx: usize, dGain: usize, rows: i32, width: i32,
): void {
  for (let r = 0; r < rows; r++) {
    const scale = load<f32>(at(inverse, r));
    const s = f32x4.splat(scale);
    let sum = f32x4.splat(0);
    let i = 0;
    for (; i + 4 <= width; i += 4) {
      const product = f32x4.mul(v128.load(at(dy, i)), v128.load(at(x, i)));
      sum = f32x4.add(sum, f32x4.mul(product, v128.load(at(gain, i))));
      v128.store(at(dGain, i), f32x4.add(v128.load(at(dGain, i)), f32x4.mul(product, s)));
    }
    let total = sum4(sum);
    for (; i < width; i++) {
      const product = load<f32>(at(dy, i)) * load<f32>(at(x, i));
      total += product * load<f32>(at(gain, i));
      store<f32>(at(dGain, i), load<f32>(at(dGain, i)) + product * scale);
    }
    const pull = total * scale * scale * scale / <f32>width;
    const p = f32x4.splat(pull);
    for (i = 0; i + 4 <= width; i += 4) {
      const straight = f32x4.mul(f32x4.mul(v128.load(at(dy, i)), v128.load(at(gain, i))), s);
      const change = f32x4.sub(straight, f32x4.mul(v128.load(at(x, i)), p));
      v128.store(at(dx, i), f32x4.add(v128.load(at(dx, i)), change));
    }
    for (; i < width; i++) {
      const change = load<f32>(at(dy, i)) * load<f32>(at(gain, i)) * scale - load<f32>(at(x, i)) * pull;
      store<f32>(at(dx, i), load<f32>(at(dx, i)) + change);
    }
    x = at(x, width);
    dy = at(dy, width);
    dx = at(dx, width);
  }
}

/** Normalises each of `heads` heads of every row by itself; `inverse` gets one entry per row and head. */
export function headNorm(
  x: usize, xStride: i32, gain: usize, y: usize, yStride: i32, inverse: usize, rows: i32, heads: i32, headDim: i32, epsilon: f32,
): void {
  for (let r = 0; r < rows; r++) rmsNorm(at(x, r * xStride), gain, at(y, r * yStride), at(inverse, r * heads), heads, headDim, epsilon);
}

/** Overwrites the heads of `d` by their gradient before the norm; dGain += …  `space` is for one row of all heads. */
export function headNormBackward(
  x: usize, xStride: i32, gain: usize, inverse: usize, d: usize, dStride: i32, dGain: usize, rows: i32, heads: i32, headDim: i32,
  space: usize,
): void {
  for (let r = 0; r < rows; r++) {
    const row = at(d, r * dStride);
    memory.fill(space, 0, <usize>(heads * headDim) << 2);
    rmsNormBackward(at(x, r * xStride), gain, at(inverse, r * heads), row, space, dGain, heads, headDim);
    memory.copy(row, space, <usize>(heads * headDim) << 2);
  }
}

/** Adds one row to each row. */
export function addToRows(rows: usize, row: usize, count: i32, width: i32): void {
  for (let r = 0; r < count; r++) addRow(at(rows, r * width), row, width);
}

/** sum += each row, in order. */
export function sumRows(rows: usize, sum: usize, count: i32, width: i32): void {
  for (let r = 0; r < count; r++) addRow(sum, at(rows, r * width), width);
}

export function scaleFloats(p: usize, factor: f32, count: i32): void {
  scaleRow(p, factor, count);
}

/**
 * Rotates the first `heads` heads of each row by its position, in place: element j with element j + headDim/2, as Hugging Face's
 * rotate_half does. `direction` −1 undoes it, which is also its backward. Tables are [position][headDim/2].
 */
export function rope(
  rows: usize, count: i32, width: i32, heads: i32, headDim: i32, positions: usize, cosines: usize, sines: usize, direction: f32,
): void {
  const half = headDim >> 1;
  const sign = f32x4.splat(direction);
  for (let r = 0; r < count; r++) {
    const position = load<i32>(at(positions, r));
    const cosine = at(cosines, position * half);
    const sine = at(sines, position * half);
    for (let h = 0; h < heads; h++) {
      const low = at(rows, r * width + h * headDim);
      const high = at(low, half);
      let j = 0;
      for (; j + 4 <= half; j += 4) {
        const c = v128.load(at(cosine, j));
        const s = f32x4.mul(sign, v128.load(at(sine, j)));
        const a = v128.load(at(low, j));
        const b = v128.load(at(high, j));
        v128.store(at(low, j), f32x4.sub(f32x4.mul(a, c), f32x4.mul(b, s)));
        v128.store(at(high, j), f32x4.add(f32x4.mul(b, c), f32x4.mul(a, s)));
      }
      for (; j < half; j++) {
        const c = load<f32>(at(cosine, j));
        const s = direction * load<f32>(at(sine, j));
        const a = load<f32>(at(low, j));
        const b = load<f32>(at(high, j));
        store<f32>(at(low, j), a * c - b * s);
        store<f32>(at(high, j), b * c + a * s);
      }
    }
  }
}

@inline
function sigmoid4(x: v128): v128 {
  const one = one4();
  return f32x4.div(one, f32x4.add(one, exp4(f32x4.neg(x))));
}

@inline
function gated(gate: v128, up: v128): v128 {
  return f32x4.mul(f32x4.mul(gate, sigmoid4(gate)), up);
}

/** Rows [gate | up] of 2·width floats become rows silu(gate)·up of width floats. */
export function swiglu(gateUp: usize, y: usize, rows: i32, width: i32): void {
  for (let r = 0; r < rows; r++) {
    const up = at(gateUp, width);
    let i = 0;
    for (; i + 8 <= width; i += 8) {
      const y0 = gated(v128.load(at(gateUp, i)), v128.load(at(up, i)));
      const y1 = gated(v128.load(at(gateUp, i), 16), v128.load(at(up, i), 16));
      v128.store(at(y, i), y0);
      v128.store(at(y, i), y1, 16);
    }
    for (; i + 4 <= width; i += 4) v128.store(at(y, i), gated(v128.load(at(gateUp, i)), v128.load(at(up, i))));
    if (i < width) {
      const left = width - i;
      storePart(at(y, i), gated(loadPart(at(gateUp, i), left, 0), loadPart(at(up, i), left, 0)), left);
    }
    gateUp = at(gateUp, width * 2);
    y = at(y, width);
  }
}

@inline
function gateSlope(gate: v128, up: v128, dy: v128, sigmoid: v128): v128 {
  const one = one4();
  const silu = f32x4.mul(gate, sigmoid);
  return f32x4.mul(f32x4.mul(dy, up), f32x4.mul(sigmoid, f32x4.add(one, f32x4.sub(gate, silu))));
}

/** Overwrites dGateUp. */
export function swigluBackward(gateUp: usize, dy: usize, dGateUp: usize, rows: i32, width: i32): void {
  for (let r = 0; r < rows; r++) {
    const up = at(gateUp, width);
    const dUp = at(dGateUp, width);
    let i = 0;
    // Two vectors at a time, all loads before all stores, so that they can be merged.
    for (; i + 8 <= width; i += 8) {
      const g0 = v128.load(at(gateUp, i));
      const g1 = v128.load(at(gateUp, i), 16);
      const d0 = v128.load(at(dy, i));
      const d1 = v128.load(at(dy, i), 16);
      const u0 = v128.load(at(up, i));
      const u1 = v128.load(at(up, i), 16);
      const s0 = sigmoid4(g0);
      const s1 = sigmoid4(g1);
      const dg0 = gateSlope(g0, u0, d0, s0);
      const dg1 = gateSlope(g1, u1, d1, s1);
      const du0 = f32x4.mul(d0, f32x4.mul(g0, s0));
      const du1 = f32x4.mul(d1, f32x4.mul(g1, s1));
      v128.store(at(dGateUp, i), dg0);
      v128.store(at(dGateUp, i), dg1, 16);
      v128.store(at(dUp, i), du0);
      v128.store(at(dUp, i), du1, 16);
    }
    for (; i + 4 <= width; i += 4) {
      const g = v128.load(at(gateUp, i));
      const d = v128.load(at(dy, i));
      const s = sigmoid4(g);
      v128.store(at(dGateUp, i), gateSlope(g, v128.load(at(up, i)), d, s));
      v128.store(at(dUp, i), f32x4.mul(d, f32x4.mul(g, s)));
    }
    if (i < width) {
      const left = width - i;
      const g = loadPart(at(gateUp, i), left, 0);
      const d = loadPart(at(dy, i), left, 0);
      const s = sigmoid4(g);
      storePart(at(dGateUp, i), gateSlope(g, loadPart(at(up, i), left, 0), d, s), left);
      storePart(at(dUp, i), f32x4.mul(d, f32x4.mul(g, s)), left);
    }
    gateUp = at(gateUp, width * 2);
    dGateUp = at(dGateUp, width * 2);
    dy = at(dy, width);
  }
}

/** out[i] = table[indices[i]] */
export function gatherRows(table: usize, indices: usize, count: i32, width: i32, out: usize): void {
  for (let i = 0; i < count; i++) {
    memory.copy(at(out, i * width), at(table, load<i32>(at(indices, i)) * width), <usize>width << 2);
  }
}

/** table[indices[i]] += rows[i], in ascending i. */
export function scatterAddRows(table: usize, indices: usize, count: i32, width: i32, rows: usize): void {
  for (let i = 0; i < count; i++) addRow(at(table, load<i32>(at(indices, i)) * width), at(rows, i * width), width);
}

export function fillZero(p: usize, count: i32): void {
  memory.fill(p, 0, <usize>count << 2);
}

export function copyFloats(to: usize, from: usize, count: i32): void {
  memory.copy(to, from, <usize>count << 2);
}
