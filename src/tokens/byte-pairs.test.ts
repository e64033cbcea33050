import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { bytePairEncoder, type IdMerge } from './byte-level.ts';

const idOfByte = Array.from({ length: 256 }, (_, byte) => 255 - byte);

const mergesOf = (...rows: readonly (readonly [number, number, number])[]): IdMerge[] =>
  rows.map(([left, right, merged]) => ({ left, right, merged }));

/** Slow and obvious: looks at all neighbours for each merge. */
function slowly(bytes: Uint8Array, merges: readonly IdMerge[]): number[] {
  const ids = Array.from(bytes, (byte) => idOfByte[byte]!);
  const rankAt = (i: number) => merges.findLastIndex(({ left, right }) => left === ids[i] && right === ids[i + 1]);
  for (;;) {
    let best = { at: -1, rank: Number.POSITIVE_INFINITY };
    for (let at = 0; at + 1 < ids.length; at++) {
      const rank = rankAt(at);
      if (rank !== -1 && rank < best.rank) best = { at, rank };
    }
    if (best.at === -1) return ids;
    ids.splice(best.at, 2, merges[best.rank]!.merged);
  }
}

/** Merges of the first bytes and of what they become; now and then the same neighbours twice. */
const anyMerges = fc.array(fc.tuple(fc.nat(), fc.nat()), { minLength: 1, maxLength: 40 }).map((pairs) => {
  const symbols = [0, 1, 2, 3].map((byte) => ({ id: idOfByte[byte]!, spelt: `${byte}` }));
  return pairs.map(([a, b]): IdMerge => {
    const left = symbols[a % symbols.length]!;
    const right = symbols[b % symbols.length]!;
    const spelt = left.spelt + right.spelt;
    const merged = symbols.find((symbol) => symbol.spelt === spelt) ?? { id: 256 + symbols.length, spelt };
    if (!symbols.includes(merged)) symbols.push(merged);
    return { left: left.id, right: right.id, merged: merged.id };
  });
});
const anyBytes = fc.uint8Array({ max: 4, maxLength: 60 });

describe('merging bytes', () => {
  it('is merging the neighbours of the lowest rank, leftmost first, again and again', () => {
    const check = fc.property(anyMerges, fc.array(anyBytes, { minLength: 1, maxLength: 5 }), (merges, words) => {
      const encode = bytePairEncoder(idOfByte, merges);
      for (const word of words) expect(encode(word)).toEqual(slowly(word, merges));
    });
    fc.assert(check, { numRuns: 2000 });
  });

  it('takes no neighbours for some that are merged away', () => {
    const [a = 0, b = 0, c = 0, d = 0, e = 0] = idOfByte;
    const [ab, bc, de, cde] = [300, 301, 302, 303];
    const merges = mergesOf([a, b, ab], [b, c, bc], [d, e, de], [c, de, cde]);
    expect(bytePairEncoder(idOfByte, merges)(Uint8Array.of(0, 1, 2, 3, 4))).toEqual([ab, cde]);
  });

  it('is the same for words that are too long for the shared working memory, and for those after them', () => {
    // Every merge makes two new pairs of neighbours that may be merged, while those that were there still wait.
    const merges = mergesOf([255, 254, 256], [254, 255, 257], [256, 255, 258], [256, 256, 259], [254, 254, 260]);
    const encode = bytePairEncoder(idOfByte, merges);
    const drawn = fc.sample(fc.uint8Array({ max: 2, minLength: 1000, maxLength: 1100, size: 'max' }), { numRuns: 20, seed: 1 });
    expect(drawn.some((word) => word.length > 1024)).toBe(true);
    const alternating = [1100, 1024, 1025].map((length) => Uint8Array.from({ length }, (_, i) => i % 2));
    for (const word of [...drawn, ...alternating, ...drawn]) expect(encode(word)).toEqual(slowly(word, merges));
  });
});
