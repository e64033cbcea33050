/**
 * Ids of conversations that grow: each prompt begins with all of the one before it, so prompts of one conversation share memory, and to
 * make the next one costs what is new. Ids that were given out never change: what follows them is written behind them, once. Whoever goes
 * on from the same place in the same way (a retry; asking how long a prompt would be) gets that again, in another way a copy.
 */

/** How many ids of a buffer are taken. Buffers that are not ours are not in it. */
const taken = new WeakMap<ArrayBufferLike, number>();

/** Room for what comes next, as a share of what is there: more means fewer copies and more memory. */
const ROOM = 0.5;

/** The ids of `parts`, one after the other. In place where the first was made here and nothing else was written behind it. */
export function grown(first: Int32Array, ...parts: readonly Int32Array[]): Int32Array {
  const length = parts.reduce((sum, part) => sum + part.length, first.length);
  const { buffer } = first;
  const used = (first.byteOffset === 0 ? taken.get(buffer) : undefined) ?? -1;
  if (used >= length) {
    const before = new Int32Array(buffer, 0, length);
    if (follow(before, first.length, parts)) return before;
  }
  const inPlace = used === first.length && length * Int32Array.BYTES_PER_ELEMENT <= buffer.byteLength;
  const whole = inPlace ? new Int32Array(buffer) : new Int32Array(Math.ceil(length * (1 + ROOM)));
  if (!inPlace) whole.set(first);
  let at = first.length;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  taken.set(whole.buffer, length);
  return whole.subarray(0, length);
}

/** Whether these parts stand in `ids`, one after the other, from that place. */
function follow(ids: Int32Array, place: number, parts: readonly Int32Array[]): boolean {
  let at = place;
  return parts.every((part) => part.every((id) => ids[at++] === id));
}
