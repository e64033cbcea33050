/**
 * Work on a large batch in slices of a few milliseconds: the event loop that it runs on also answers the agents.
 */

const SLICE_MS = 8;

/** As `items.map(map)`; whoever else is waiting gets a turn between two slices. */
export async function mapInSlices<T, R>(items: readonly T[], map: (item: T, index: number) => R): Promise<R[]> {
  const results: R[] = [];
  let until = performance.now() + SLICE_MS;
  for (const [index, item] of items.entries()) {
    results.push(map(item, index));
    if (performance.now() < until) continue;
    await new Promise(setImmediate);
    until = performance.now() + SLICE_MS;
  }
  return results;
}
