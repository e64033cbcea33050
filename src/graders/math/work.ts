/**
 * How much may be computed for one comparison. Everything that reads or computes what a model wrote spends from it, so that no text takes
 * long: one unit is a token, a node or a small operation, at most some microseconds.
 *
 * `Unreadable` is thrown where a text is not mathematics that can be compared here, or is too much of it. It never leaves this folder.
 */
export class Unreadable extends Error {}

export interface Work {
  spent: number;
  readonly most: number;
}

export const MOST_WORK = 40_000;

export const newWork = (most = MOST_WORK): Work => ({ spent: 0, most });

export function spend(work: Work, units: number): void {
  work.spent += units;
  if (work.spent > work.most) throw new Unreadable('too much to compute');
}

/** What `read` gives; undefined where it is unreadable. Other errors are faults of ours and pass. */
export function readable<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch (thrown) {
    if (thrown instanceof Unreadable) return undefined;
    throw thrown;
  }
}
