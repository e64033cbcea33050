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

/** What the work gives, or the signal's reason when that comes first; work that does not mind its signal is left behind. */
export function orAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  const aborted = new Promise<never>((_, reject) => {
    if (signal.aborted) reject(signal.reason);
    else signal.addEventListener('abort', () => reject(signal.reason), { once: true });
  });
  return Promise.race([work, aborted]);
}

export function linkSignals(...sources: readonly AbortSignal[]): LinkedSignal {
  const controller = new AbortController();
  return { signal: controller.signal, release: link(controller, ...sources) };
}

/** Aborts the controller with the first of these, until what is returned is called. */
export function link(controller: AbortController, ...sources: readonly AbortSignal[]): () => void {
  const aborted = sources.find((source) => source.aborted);
  if (aborted !== undefined) controller.abort(aborted.reason);
  else for (const source of sources) linkedTo(source).add(controller);
  return () => unlink(controller, sources);
}

/**
 * One listener on a source for all that are linked to it: adding the thousandth listener compares it with all others, so a thousand
 * rollouts would cost a million comparisons.
 */
interface Links {
  readonly controllers: Set<AbortController>;
  readonly onAbort: () => void;
}

const linksOf = new WeakMap<AbortSignal, Links>();

function linkedTo(source: AbortSignal): Set<AbortController> {
  const known = linksOf.get(source);
  if (known !== undefined) return known.controllers;
  const controllers = new Set<AbortController>();
  const onAbort = (): void => {
    linksOf.delete(source);
    for (const controller of controllers) controller.abort(source.reason);
  };
  linksOf.set(source, { controllers, onAbort });
  source.addEventListener('abort', onAbort, { once: true });
  return controllers;
}

function unlink(controller: AbortController, sources: readonly AbortSignal[]): void {
  for (const source of sources) {
    const links = linksOf.get(source);
    if (!links?.controllers.delete(controller) || links.controllers.size > 0) continue;
    linksOf.delete(source);
    source.removeEventListener('abort', links.onAbort);
  }
}
