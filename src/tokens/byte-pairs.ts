/**
 * Bytes → ids by byte-pair merges: of all neighbours that may be merged, those of the lowest rank are merged first, the leftmost of
 * equals before the others, until no two neighbours may.
 *
 * Takes n log n steps for n bytes and no recursion, so one word may be megabytes long. Knows nothing of text or of words.
 */

/** Two ids that stand next to each other, and the one that they become. */
export interface IdMerge {
  readonly left: number;
  readonly right: number;
  readonly merged: number;
}

/** Words of up to so many bytes share their working memory. */
const SHORT = 1024;
const NONE = -1;

/** `idOfByte` has 256 ids; `merges` are in the order of their ranks. Of two merges of the same neighbours the later one holds. */
export function bytePairEncoder(idOfByte: readonly number[], merges: readonly IdMerge[]): (bytes: Uint8Array) => number[] {
  const rankOf = pairTable(merges);
  const mergedAs = Int32Array.from(merges, ({ merged }) => merged);
  const short = workspace(SHORT);

  return (bytes) => {
    const length = bytes.length;
    const { id, before, after, rank, queue } = length <= SHORT ? short : workspace(length);
    for (let i = 0; i < length; i++) {
      id[i] = idOfByte[bytes[i]!]!;
      before[i] = i - 1;
      after[i] = i + 1;
    }
    // A key orders by rank, then by place. It is in force as long as the neighbours at its place have its rank: ids only grow longer,
    // so no neighbours come back.
    const look = (at: number): void => {
      const right = after[at]!;
      const found = right < length ? rankOf(id[at]!, id[right]!) : NONE;
      rank[at] = found;
      if (found !== NONE) queue.add(found * length + at);
    };
    for (let i = 0; i < length; i++) look(i);

    for (let key = queue.take(); key !== NONE; key = queue.take()) {
      const at = key % length;
      const found = (key - at) / length;
      if (rank[at] !== found) continue;
      const right = after[at]!;
      const next = after[right]!;
      id[at] = mergedAs[found]!;
      rank[right] = NONE;
      after[at] = next;
      if (next < length) before[next] = at;
      look(at);
      if (before[at] !== NONE) look(before[at]!);
    }

    const ids: number[] = [];
    for (let at = 0; at < length; at = after[at]!) ids.push(id[at]!);
    return ids;
  };
}

/** Of the bytes at each place: the id that begins there, the places of its neighbours, the rank of it with the one after it. */
function workspace(length: number) {
  const numbers = () => new Int32Array(length);
  // A merge takes one key out and puts in two at most, and there are fewer merges than bytes.
  return { id: numbers(), before: numbers(), after: numbers(), rank: numbers(), queue: smallestFirst(2 * length) };
}

/** A binary heap. `take` gives NONE where there is nothing more. */
function smallestFirst(room: number) {
  const keys = new Float64Array(room);
  let size = 0;

  function add(key: number): void {
    let at = size++;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (keys[parent]! <= key) break;
      keys[at] = keys[parent]!;
      at = parent;
    }
    keys[at] = key;
  }

  function take(): number {
    if (size === 0) return NONE;
    const first = keys[0]!;
    const last = keys[--size]!;
    let at = 0;
    for (let child = 1; child < size; child = 2 * at + 1) {
      if (child + 1 < size && keys[child + 1]! < keys[child]!) child++;
      if (keys[child]! >= last) break;
      keys[at] = keys[child]!;
      at = child;
    }
    keys[at] = last;
    return first;
  }

  return { add, take };
}

/** Two ids → rank or NONE: an open hash table at most half full, since a Map with a key for each pair takes several times as long. */
function pairTable(merges: readonly IdMerge[]): (left: number, right: number) => number {
  const slots = 2 ** Math.ceil(Math.log2(2 * merges.length + 2));
  const lefts = new Int32Array(slots).fill(NONE);
  const rights = new Int32Array(slots);
  const ranks = new Int32Array(slots).fill(NONE);

  function slotOf(left: number, right: number): number {
    const mixed = Math.imul(Math.imul(left, 0x9e3779b1) + right, 0x85ebca6b);
    let slot = (mixed ^ (mixed >>> 15)) & (slots - 1);
    while (lefts[slot] !== NONE && (lefts[slot] !== left || rights[slot] !== right)) slot = (slot + 1) & (slots - 1);
    return slot;
  }

  for (const [rank, { left, right }] of merges.entries()) {
    const slot = slotOf(left, right);
    lefts[slot] = left;
    rights[slot] = right;
    ranks[slot] = rank;
  }
  return (left, right) => ranks[slotOf(left, right)]!;
}
