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

/** What a tile or strip does with C: overwrite it, add to it, or go on with the sum that it holds as if there had been no break. */
export const RESUME: i32 = 2;

export const MR: i32 = 6;
export const NR: i32 = 16;

let wide: bool = false;
let aside: usize = 0;
let zeros: usize = 0;

/** Whether neighbouring vector operations are merged; decides between equal ways of computing. */
export function setWide(on: bool): void {
  wide = on;
}

/** Floats that `setTileScratch` needs. */
export const TILE_FLOATS: i32 = MR * NR + 2 * NR;

export function setTileScratch(scratch: usize): void {
  aside = scratch;
  zeros = at(scratch, MR * NR);
  memory.fill(zeros, 0, 2 * NR << 2);
}

// Both loads before both stores: otherwise the two halves cannot be merged.
@inline
function put2(c: usize, left: v128, right: v128, mode: i32): void {
  if (mode == 1) {
    const oldLeft = v128.load(c);
    const oldRight = v128.load(c, 16);
    v128.store(c, f32x4.add(oldLeft, left));
    v128.store(c, f32x4.add(oldRight, right), 16);
  } else {
    v128.store(c, left);
    v128.store(c, right, 16);
  }
}

// What sums begin with is loaded either way, from C or from a row of zeros: neighbouring values that come out of branches cannot be merged.

@inline
function beginsAt(c: usize, mode: i32): usize {
  return mode == RESUME ? c : zeros;
}

/** Rows past `rows` repeat the last one: computed, never stored by the caller, and nothing outside A is read. */
@inline
function rowAt(a: usize, aRow: usize, rows: i32, i: i32): usize {
  return a + aRow * <usize>min(i, rows - 1);
}

function tile16(
  rows: i32, a: usize, aRow: usize, aStep: usize, b: usize, bStep: usize, K: i32, c: usize, cRow: usize, mode: i32,
): void {
  let a0 = a;
  let a1 = rowAt(a, aRow, rows, 1);
  let a2 = rowAt(a, aRow, rows, 2);
  let a3 = rowAt(a, aRow, rows, 3);
  let a4 = rowAt(a, aRow, rows, 4);
  let a5 = rowAt(a, aRow, rows, 5);
  let begin = beginsAt(c, mode);
  const next: usize = mode == RESUME ? cRow : 0;
  let c00 = v128.load(begin), c01 = v128.load(begin, 16), c02 = v128.load(begin, 32), c03 = v128.load(begin, 48);
  begin += next;
  let c10 = v128.load(begin), c11 = v128.load(begin, 16), c12 = v128.load(begin, 32), c13 = v128.load(begin, 48);
  begin += next;
  let c20 = v128.load(begin), c21 = v128.load(begin, 16), c22 = v128.load(begin, 32), c23 = v128.load(begin, 48);
  begin += next;
  let c30 = v128.load(begin), c31 = v128.load(begin, 16), c32 = v128.load(begin, 32), c33 = v128.load(begin, 48);
  begin += next;
  let c40 = v128.load(begin), c41 = v128.load(begin, 16), c42 = v128.load(begin, 32), c43 = v128.load(begin, 48);
  begin += next;
  let c50 = v128.load(begin), c51 = v128.load(begin, 16), c52 = v128.load(begin, 32), c53 = v128.load(begin, 48);
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
  put2(c, c00, c01, mode);
  put2(c + 32, c02, c03, mode);
  c += cRow;
  put2(c, c10, c11, mode);
  put2(c + 32, c12, c13, mode);
  c += cRow;
  put2(c, c20, c21, mode);
  put2(c + 32, c22, c23, mode);
  c += cRow;
  put2(c, c30, c31, mode);
  put2(c + 32, c32, c33, mode);
  c += cRow;
  put2(c, c40, c41, mode);
  put2(c + 32, c42, c43, mode);
  c += cRow;
  put2(c, c50, c51, mode);
  put2(c + 32, c52, c53, mode);
}

function tile8(
  rows: i32, a: usize, aRow: usize, aStep: usize, b: usize, bStep: usize, K: i32, c: usize, cRow: usize, mode: i32,
): void {
  let a0 = a;
  let a1 = rowAt(a, aRow, rows, 1);
  let a2 = rowAt(a, aRow, rows, 2);
  let a3 = rowAt(a, aRow, rows, 3);
  let a4 = rowAt(a, aRow, rows, 4);
  let a5 = rowAt(a, aRow, rows, 5);
  let begin = beginsAt(c, mode);
  const next: usize = mode == RESUME ? cRow : 0;
  let c00 = v128.load(begin), c01 = v128.load(begin, 16);
  begin += next;
  let c10 = v128.load(begin), c11 = v128.load(begin, 16);
  begin += next;
  let c20 = v128.load(begin), c21 = v128.load(begin, 16);
  begin += next;
  let c30 = v128.load(begin), c31 = v128.load(begin, 16);
  begin += next;
  let c40 = v128.load(begin), c41 = v128.load(begin, 16);
  begin += next;
  let c50 = v128.load(begin), c51 = v128.load(begin, 16);
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
  put2(c, c00, c01, mode);
  put2(c + cRow, c10, c11, mode);
  put2(c + cRow * 2, c20, c21, mode);
  put2(c + cRow * 3, c30, c31, mode);
  put2(c + cRow * 4, c40, c41, mode);
  put2(c + cRow * 5, c50, c51, mode);
}

/**
 * A full tile of C (+)= A·B: element (i, k) of A lies at a + i·aRow + k·aStep, row k of B is 16 floats at b + k·bStep. All six rows of
 * C are written; where `rows` is less than six, the others repeat the last row of A.
 */
export function multiplyTile(
  rows: i32, a: usize, aRow: usize, aStep: usize, b: usize, bStep: usize, K: i32, c: usize, cRow: usize, mode: i32,
): void {
  if (wide) {
    tile16(rows, a, aRow, aStep, b, bStep, K, c, cRow, mode);
  } else {
    tile8(rows, a, aRow, aStep, b, bStep, K, c, cRow, mode);
    tile8(rows, a, aRow, aStep, b + 32, bStep, K, c + 32, cRow, mode);
  }
}

/** `multiplyTile` for a tile that sticks out of C: computed aside, then only its inside is stored. It cannot resume. */
export function multiplyEdge(
  rows: i32, columns: i32, a: usize, aRow: usize, aStep: usize, b: usize, bStep: usize, K: i32, c: usize, cRow: usize, mode: i32,
): void {
  multiplyTile(rows, a, aRow, aStep, b, bStep, K, aside, NR << 2, 0);
  for (let i = 0; i < rows; i++) {
    for (let j = 0; j < columns; j++) {
      const target = at(c, j) + cRow * <usize>i;
      const value = load<f32>(at(aside, i * NR + j));
      store<f32>(target, mode == 1 ? load<f32>(target) + value : value);
    }
  }
}

/** One row of C, 32 columns in two halves of 16: those of B lie `bHalf` bytes apart, those of C one after the other. */
export function multiplyStrip(a: usize, b: usize, bStep: usize, bHalf: usize, K: i32, c: usize, mode: i32): void {
  const begin = beginsAt(c, mode);
  let c0 = v128.load(begin), c1 = v128.load(begin, 16), c2 = v128.load(begin, 32), c3 = v128.load(begin, 48);
  let c4 = v128.load(begin, 64), c5 = v128.load(begin, 80), c6 = v128.load(begin, 96), c7 = v128.load(begin, 112);
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
  put2(c, c0, c1, mode);
  put2(c + 32, c2, c3, mode);
  put2(c + 64, c4, c5, mode);
  put2(c + 96, c6, c7, mode);
}

/** One row of C, 16 columns. */
export function multiplyHalfStrip(a: usize, b: usize, bStep: usize, K: i32, c: usize, mode: i32): void {
  const begin = beginsAt(c, mode);
  let c0 = v128.load(begin), c1 = v128.load(begin, 16), c2 = v128.load(begin, 32), c3 = v128.load(begin, 48);
  for (let k = K; k > 0; k--) {
    const s = v128.load32_splat(a);
    c0 = fma(s, v128.load(b), c0);
    c1 = fma(s, v128.load(b, 16), c1);
    c2 = fma(s, v128.load(b, 32), c2);
    c3 = fma(s, v128.load(b, 48), c3);
    a += 4;
    b += bStep;
  }
  put2(c, c0, c1, mode);
  put2(c + 32, c2, c3, mode);
}
