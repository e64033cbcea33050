/** Finds the name that a misspelt one was meant to be. Needs nothing of Node, so a page in a browser can use it too. */

/** The maximum number of edits that counts as a typo. */
const MOST_SLIPS = 2;

/** The closest known name, ignoring case; undefined if none is close. Short names must be closer: two edits could produce any of them. */
export function nearName(name: string, known: readonly string[]): string | undefined {
  const given = name.toLowerCase();
  const near = known
    .map((one) => ({ one, slips: slips(one.toLowerCase(), given) }))
    .filter(({ one, slips }) => slips <= Math.min(MOST_SLIPS, Math.floor(one.length / 2)))
    .toSorted((a, b) => a.slips - b.slips);
  return near[0]?.one;
}

/** Edit distance with transpositions. Returns `MOST_SLIPS + 1` at once if the lengths differ by more than `MOST_SLIPS`. */
function slips(a: string, b: string): number {
  if (Math.abs(a.length - b.length) > MOST_SLIPS) return MOST_SLIPS + 1;
  let [before, row]: [number[], number[]] = [[], Array.from({ length: b.length + 1 }, (_, j) => j)];
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      const same = a[i - 1] === b[j - 1] ? 0 : 1;
      next[j] = Math.min(row[j]! + 1, next[j - 1]! + 1, row[j - 1]! + same);
      const isSwap = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      if (isSwap) next[j] = Math.min(next[j]!, before[j - 2]! + 1);
    }
    [before, row] = [row, next];
  }
  return row[b.length]!;
}
