/**
 * A signal that aborts with the first of several, for sources that outlive it.
 *
 * `AbortSignal.any` leaves something behind on every source until the garbage collector comes by; on a source that thousands of
 * rollouts were linked to, Node 22 then spends seconds, later minutes, cleaning up. Here nothing is left after `release`.
 */

/** Aborts with `always`, and until `settle` is called with `first` too, for this reason. */
export function linkUntilSettled(
  always: AbortSignal,
  first: AbortSignal,
  reason: () => unknown,
): { readonly signal: AbortSignal; settle(): void } {
  const controller = new AbortController();
  const onFirst = (): void => controller.abort(reason());
  if (always.aborted) controller.abort(always.reason);
  else always.addEventListener('abort', () => controller.abort(always.reason), { once: true });
  if (first.aborted) onFirst();
  else first.addEventListener('abort', onFirst, { once: true });
  return { signal: controller.signal, settle: () => first.removeEventListener('abort', onFirst) };
}

export interface LinkedSignal {
  readonly signal: AbortSignal;
  /** To be called when nobody needs the signal any more. */
  release(): void;
}

export function linkSignals(...sources: readonly AbortSignal[]): LinkedSignal {
  const controller = new AbortController();
  const onAbort = (event: Event): void => controller.abort((event.target as AbortSignal).reason);
  const aborted = sources.find((source) => source.aborted);
  if (aborted !== undefined) controller.abort(aborted.reason);
  else for (const source of sources) source.addEventListener('abort', onAbort, { once: true });
  return {
    signal: controller.signal,
    release: () => {
      for (const source of sources) source.removeEventListener('abort', onAbort);
    },
  };
}
