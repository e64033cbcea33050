/**
 * The innermost loops: a tile of C, 6 rows by 16 columns, or a strip of one row, as a sum over k in ascending order.
 *
 * A tile's sums stay in registers. Where the engine merges neighbouring 128-bit operations into 256-bit ones, 6×16 fills the registers;
 * where it does not, twice 6×8 does. Both, and the strip, compute each element by the same operations in the same order, so that
 * which one is used never shows in a result. Everything that must be bit-equal in sampling and training rests on this.
 *
 * Steps and strides are bytes here, unlike elsewhere: they are added to addresses in the innermost loop.
 */
import { at, fma } from './simd';

export const MR: i32 = 6;
export const NR: i32 = 16;

let wide: bool = false;
let aside: usize = 0;

/** Whether neighbouring vector operations are merged; decides between equal ways of computing. */
export function setWide(on: bool): void {
  wide = on;
}

/** Floats that `setTileScratch` needs. */
export const TILE_FLOATS: i32 = MR * NR;

export function setTileScratch(scratch: usize): void {
  aside = scratch;
}

// Both loads before both stores: otherwise the two halves cannot be merged.
@inline
function put2(c: usize, left: v128, right: v128, accumulate: bool): void {
  if (accumulate) {
    const oldLeft = v128.load(c);
    const oldRight = v128.load(c, 16);
    v128.store(c, f32x4.add(oldLeft, left));
    v128.store(c, f32x4.add(oldRight, right), 16);
  } else {
    v128.store(c, left);
    v128.store(c, right, 16);
  }
}

/** Rows past `rows` repeat the last one: computed, never stored by the caller, and nothing outside A is read. */
@inline
function rowAt(a: usize, aRow: usize, rows: i32, i: i32): usize {
  return a + aRow * <usize>min(i, rows - 1);
}

function tile16(
  rows: i32, a: usize, aRow: usize, aStep: usize, b: usize, bStep: usize, K: i32, c: usize, cRow: usize, accumulate: bool,
): void {
  let a0 = a;
  let a1 = rowAt(a, aRow, rows, 1);
  let a2 = rowAt(a, aRow, rows, 2);
  let a3 = rowAt(a, aRow, rows, 3);
  let a4 = rowAt(a, aRow, rows, 4);
  let a5 = rowAt(a, aRow, rows, 5);
  const zero = f32x4.splat(0);
  let c00 = zero, c01 = zero, c02 = zero, c03 = zero;
  let c10 = zero, c11 = zero, c12 = zero, c13 = zero;
  let c20 = zero, c21 = zero, c22 = zero, c23 = zero;
  let c30 = zero, c31 = zero, c32 = zero, c33 = zero;
  let c40 = zero, c41 = zero, c42 = zero, c43 = zero;
  let c50 = zero, c51 = zero, c52 = zero, c53 = zero;
  for (let k = K; k > 0; k--) {
    const b0 = v128.load(b);
    const b1 = v128.load(b, 16);
    const b2 = v128.load(b, 32);
    const b3 = v128.load(b, 48);
    let s = v128.load32_splat(a0);
    c00 = fma(s, b0, c00);
    c01 = fma(s, b1, c01);
    c02 = fma(s, b2, c02);
    c03 = fma(s, b3, c03);
    s = v128.load32_splat(a1);
    c10 = fma(s, b0, c10);
    c11 = fma(s, b1, c11);
    c12 = fma(s, b2, c12);
    c13 = fma(s, b3, c13);
    s = v128.load32_splat(a2);
    c20 = fma(s, b0, c20);
    c21 = fma(s, b1, c21);
    c22 = fma(s, b2, c22);
    c23 = fma(s, b3, c23);
    s = v128.load32_splat(a3);
    c30 = fma(s, b0, c30);
    c31 = fma(s, b1, c31);
    c32 = fma(s, b2, c32);
    c33 = fma(s, b3, c33);
    s = v128.load32_splat(a4);
    c40 = fma(s, b0, c40);
    c41 = fma(s, b1, c41);
    c42 = fma(s, b2, c42);
    c43 = fma(s, b3, c43);
    s = v128.load32_splat(a5);
    c50 = fma(s, b0, c50);
    c51 = fma(s, b1, c51);
    c52 = fma(s, b2, c52);
    c53 = fma(s, b3, c53);
    a0 += aStep;
    a1 += aStep;
    a2 += aStep;
    a3 += aStep;
    a4 += aStep;
    a5 += aStep;
    b += bStep;
  }
  put2(c, c00, c01, accumulate);
  put2(c + 32, c02, c03, accumulate);
  c += cRow;
  put2(c, c10, c11, accumulate);
  put2(c + 32, c12, c13, accumulate);
  c += cRow;
  put2(c, c20, c21, accumulate);
  put2(c + 32, c22, c23, accumulate);
  c += cRow;
  put2(c, c30, c31, accumulate);
  put2(c + 32, c32, c33, accumulate);
  c += cRow;
  put2(c, c40, c41, accumulate);
  put2(c + 32, c42, c43, accumulate);
  c += cRow;
  put2(c, c50, c51, accumulate);
  put2(c + 32, c52, c53, accumulate);
}

function tile8(
  rows: i32, a: usize, aRow: usize, aStep: usize, b: usize, bStep: usize, K: i32, c: usize, cRow: usize, accumulate: bool,
): void {
  let a0 = a;
  let a1 = rowAt(a, aRow, rows, 1);
  let a2 = rowAt(a, aRow, rows, 2);
  let a3 = rowAt(a, aRow, rows, 3);
  let a4 = rowAt(a, aRow, rows, 4);
  let a5 = rowAt(a, aRow, rows, 5);
  const zero = f32x4.splat(0);
  let c00 = zero, c01 = zero, c10 = zero, c11 = zero, c20 = zero, c21 = zero;
  let c30 = zero, c31 = zero, c40 = zero, c41 = zero, c50 = zero, c51 = zero;
  for (let k = K; k > 0; k--) {
    const b0 = v128.load(b);
    const b1 = v128.load(b, 16);
    let s = v128.load32_splat(a0);
    c00 = fma(s, b0, c00);
    c01 = fma(s, b1, c01);
    s = v128.load32_splat(a1);
    c10 = fma(s, b0, c10);
    c11 = fma(s, b1, c11);
    s = v128.load32_splat(a2);
    c20 = fma(s, b0, c20);
    c21 = fma(s, b1, c21);
    s = v128.load32_splat(a3);
    c30 = fma(s, b0, c30);
    c31 = fma(s, b1, c31);
    s = v128.load32_splat(a4);
    c40 = fma(s, b0, c40);
    c41 = fma(s, b1, c41);
    s = v128.load32_splat(a5);
    c50 = fma(s, b0, c50);
    c51 = fma(s, b1, c51);
    a0 += aStep;
    a1 += aStep;
    a2 += aStep;
    a3 += aStep;
    a4 += aStep;
    a5 += aStep;
    b += bStep;
  }
  put2(c, c00, c01, accumulate);
  put2(c + cRow, c10, c11, accumulate);
  put2(c + cRow * 2, c20, c21, accumulate);
  put2(c + cRow * 3, c30, c31, accumulate);
  put2(c + cRow * 4, c40, c41, accumulate);
  put2(c + cRow * 5, c50, c51, accumulate);
}

/**
 * A full tile of C (+)= A·B: element (i, k) of A lies at a + i·aRow + k·aStep, row k of B is 16 floats at b + k·bStep. All six rows of
 * C are written; where `rows` is less than six, the others repeat the last row of A.
 */
export function multiplyTile(
  rows: i32, a: usize, aRow: usize, aStep: usize, b: usize, bStep: usize, K: i32, c: usize, cRow: usize, accumulate: bool,
): void {
  if (wide) {
    tile16(rows, a, aRow, aStep, b, bStep, K, c, cRow, accumulate);
  } else {
    tile8(rows, a, aRow, aStep, b, bStep, K, c, cRow, accumulate);
    tile8(rows, a, aRow, aStep, b + 32, bStep, K, c + 32, cRow, accumulate);
  }
}

/** `multiplyTile` for a tile that sticks out of C: computed aside, then only its inside is stored. */
export function multiplyEdge(
  rows: i32, columns: i32, a: usize, aRow: usize, aStep: usize, b: usize, bStep: usize, K: i32, c: usize, cRow: usize, accumulate: bool,
): void {
  multiplyTile(rows, a, aRow, aStep, b, bStep, K, aside, NR << 2, false);
  for (let i = 0; i < rows; i++) {
    for (let j = 0; j < columns; j++) {
      const target = at(c, j) + cRow * <usize>i;
      const value = load<f32>(at(aside, i * NR + j));
      store<f32>(target, accumulate ? load<f32>(target) + value : value);
    }
  }
}

/** One row of C, 32 columns in two halves of 16: those of B lie `bHalf` bytes apart, those of C one after the other. */
export function multiplyStrip(a: usize, b: usize, bStep: usize, bHalf: usize, K: i32, c: usize, accumulate: bool): void {
  const zero = f32x4.splat(0);
  let c0 = zero, c1 = zero, c2 = zero, c3 = zero, c4 = zero, c5 = zero, c6 = zero, c7 = zero;
  let right = b + bHalf;
  for (let k = K; k > 0; k--) {
    const s = v128.load32_splat(a);
    c0 = fma(s, v128.load(b), c0);
    c1 = fma(s, v128.load(b, 16), c1);
    c2 = fma(s, v128.load(b, 32), c2);
    c3 = fma(s, v128.load(b, 48), c3);
    c4 = fma(s, v128.load(right), c4);
    c5 = fma(s, v128.load(right, 16), c5);
    c6 = fma(s, v128.load(right, 32), c6);
    c7 = fma(s, v128.load(right, 48), c7);
    a += 4;
    b += bStep;
    right += bStep;
  }
  put2(c, c0, c1, accumulate);
  put2(c + 32, c2, c3, accumulate);
  put2(c + 64, c4, c5, accumulate);
  put2(c + 96, c6, c7, accumulate);
}

/** One row of C, 16 columns. */
export function multiplyHalfStrip(a: usize, b: usize, bStep: usize, K: i32, c: usize, accumulate: bool): void {
  const zero = f32x4.splat(0);
  let c0 = zero, c1 = zero, c2 = zero, c3 = zero;
  for (let k = K; k > 0; k--) {
    const s = v128.load32_splat(a);
    c0 = fma(s, v128.load(b), c0);
    c1 = fma(s, v128.load(b, 16), c1);
    c2 = fma(s, v128.load(b, 32), c2);
    c3 = fma(s, v128.load(b, 48), c3);
    a += 4;
    b += bStep;
  }
  put2(c, c0, c1, accumulate);
  put2(c + 32, c2, c3, accumulate);
}
