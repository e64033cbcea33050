/**
 * The numbers in a GGUF file's blocks as float32, equal to the last bit to what Python's `gguf` package computes. A block holds 1, 32 or
 * 256 numbers of one row; its layout is that of ggml. Types that are not listed here are refused by who reads the file.
 */
import { fromBfloat16, fromFloat16 } from './safetensors.ts';

interface BlockType {
  /** Numbers in a block. */
  readonly values: number;
  readonly bytes: number;
  /** `from` holds whole blocks, one after the other. */
  decode(from: Uint8Array): Float32Array;
}

export const BLOCK_TYPES: Readonly<Record<string, BlockType>> = {
  F32: { values: 1, bytes: 4, decode: (from) => new Float32Array(new Uint8Array(from).buffer) },
  F16: { values: 1, bytes: 2, decode: (from) => fromFloat16(new Uint16Array(new Uint8Array(from).buffer)) },
  BF16: { values: 1, bytes: 2, decode: (from) => fromBfloat16(new Uint16Array(new Uint8Array(from).buffer)) },
  Q4_0: fewBits({ fifthBit: false, minimum: false }),
  Q4_1: fewBits({ fifthBit: false, minimum: true }),
  Q5_0: fewBits({ fifthBit: true, minimum: false }),
  Q5_1: fewBits({ fifthBit: true, minimum: true }),
  Q8_0: blocksOf(32, 34, decodeQ8),
  Q4_K: superBlock({ fifthBit: false }),
  Q5_K: superBlock({ fifthBit: true }),
  Q6_K: blocksOf(256, 210, decodeQ6K),
};

/** Decodes the block at byte `at` into `out`, from index `to`. */
type DecodeBlock = (from: Uint8Array, at: number, out: Float32Array, to: number) => void;

function blocksOf(values: number, bytes: number, decodeBlock: DecodeBlock): BlockType {
  const decode = (from: Uint8Array): Float32Array => {
    const blocks = from.length / bytes;
    const out = new Float32Array(blocks * values);
    for (let block = 0; block < blocks; block++) decodeBlock(from, block * bytes, out, block * values);
    return out;
  };
  return { values, bytes, decode };
}

/** 32 numbers of 4 or 5 bits: a scale, perhaps a minimum, perhaps the fifth bits, then the low bits of numbers i and i + 16 in byte i. */
function fewBits({ fifthBit, minimum }: { readonly fifthBit: boolean; readonly minimum: boolean }): BlockType {
  const highAt = minimum ? 4 : 2;
  const lowAt = highAt + (fifthBit ? 4 : 0);
  const zero = minimum ? 0 : fifthBit ? 16 : 8;
  function decode(from: Uint8Array, at: number, out: Float32Array, to: number): void {
    const scale = half(from, at);
    const least = minimum ? half(from, at + 2) : -0;
    const high = fifthBit ? littleEndian(from, at + highAt) : 0;
    for (let i = 0; i < 16; i++) {
      const low = from[at + lowAt + i]!;
      out[to + i] = scale * (((low & 15) | (((high >>> i) & 1) << 4)) - zero) + least;
      out[to + i + 16] = scale * (((low >> 4) | (((high >>> (i + 16)) & 1) << 4)) - zero) + least;
    }
  }
  return blocksOf(32, lowAt + 16, decode);
}

function decodeQ8(from: Uint8Array, at: number, out: Float32Array, to: number): void {
  const scale = half(from, at);
  for (let i = 0; i < 32; i++) out[to + i] = scale * signed(from[at + 2 + i]!);
}

/** 256 numbers of 4 or 5 bits in eight groups, each with a scale and a minimum of 6 bits. */
function superBlock({ fifthBit }: { readonly fifthBit: boolean }): BlockType {
  const highAt = 16;
  const lowAt = fifthBit ? 48 : 16;
  function decode(from: Uint8Array, at: number, out: Float32Array, to: number): void {
    const scale = half(from, at);
    const leastScale = half(from, at + 2);
    for (let group = 0; group < 8; group++) {
      const factor = scale * sixBits(from, at + 4, group, 0);
      const least = leastScale * sixBits(from, at + 4, group, 4);
      const low = at + lowAt + (group >> 1) * 32;
      for (let i = 0; i < 32; i++) {
        const fifth = fifthBit ? ((from[at + highAt + i]! >> group) & 1) << 4 : 0;
        out[to + group * 32 + i] = factor * (((from[low + i]! >> ((group & 1) * 4)) & 15) | fifth) - least;
      }
    }
  }
  return blocksOf(256, lowAt + 128, decode);
}

/** Bytes 0 to 3 hold the scales of groups 0 to 3, bytes 4 to 7 the minima; those of groups 4 to 7 are in bytes 8 to 11 and the top bits. */
function sixBits(from: Uint8Array, at: number, group: number, part: 0 | 4): number {
  if (group < 4) return from[at + part + group]! & 63;
  const low = (from[at + 4 + group]! >> part) & 15;
  return low | ((from[at + part + group - 4]! >> 6) << 4);
}

/** 256 numbers of 6 bits: 128 bytes with four bits each, 64 bytes with two, sixteen signed scales, and a scale for all. */
function decodeQ6K(from: Uint8Array, at: number, out: Float32Array, to: number): void {
  const scale = half(from, at + 208);
  for (let i = 0; i < 256; i++) {
    const side = i >> 7;
    const quarter = (i >> 5) & 3;
    const column = i & 31;
    const low = (from[at + side * 64 + (quarter & 1) * 32 + column]! >> ((quarter >> 1) * 4)) & 15;
    const high = (from[at + 128 + side * 32 + column]! >> (quarter * 2)) & 3;
    out[to + i] = scale * signed(from[at + 192 + (i >> 4)]!) * ((low | (high << 4)) - 32);
  }
}

function signed(byte: number): number {
  return (byte << 24) >> 24;
}

function littleEndian(from: Uint8Array, at: number): number {
  return from[at]! | (from[at + 1]! << 8) | (from[at + 2]! << 16) | (from[at + 3]! << 24);
}

/** Every float16 as float32, made when the first is needed. */
let halves: Float32Array | undefined;

function half(from: Uint8Array, at: number): number {
  halves ??= fromFloat16(Uint16Array.from({ length: 2 ** 16 }, (_, bits) => bits));
  return halves[from[at]! | (from[at + 1]! << 8)]!;
}
