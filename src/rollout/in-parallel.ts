/** Many of the same, some at a time. */

/**
 * Results in the order of the items. The first error stops new ones and is thrown when the running ones ended. When `halt`
 * aborts, nothing more is started and the result is undefined.
 */
export async function inParallel<T, R>(
  items: readonly T[],
  concurrency: number,
  work: (item: T, index: number) => Promise<R>,
  halt?: AbortSignal,
): Promise<R[] | undefined> {
  const results = new Array<R>(items.length);
  let next = 0;
  let failure: { readonly thrown: unknown } | undefined;
  const one = async (): Promise<void> => {
    while (next < items.length && failure === undefined && halt?.aborted !== true) {
      const index = next++;
      try {
        results[index] = await work(items[index] as T, index);
      } catch (thrown) {
        failure ??= { thrown };
      }
    }
  };
  await Promise.all(Array.from({ length: Math.min(concurrency, items.length) }, one));
  if (failure !== undefined) throw failure.thrown;
  return next < items.length ? undefined : results;
}
