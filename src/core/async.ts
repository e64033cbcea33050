/** Async tools: concurrency limits, yielding to the event loop, linked abort signals, deadlines, downtime, closing. */

// ── concurrency ──────────────────────────────────────────────────────────────────────────────────────────────────────────

/** Lets a limited number work at once; the others wait in the order they came. */
export class Semaphore {
  readonly #waiting: (() => void)[] = [];
  #free: number;

  constructor(limit: number) {
    this.#free = limit;
  }

  get waiting(): number {
    return this.#waiting.length;
  }

  /** Disposing the permit lets the next one in, once. Rejects with the signal's reason where that comes first, and with nothing else. */
  async acquire(signal?: AbortSignal): Promise<Disposable> {
    signal?.throwIfAborted();
    if (this.#free > 0) this.#free--;
    else await this.#turn(signal);
    let held = true;
    return {
      [Symbol.dispose]: () => {
        if (held) this.#release();
        held = false;
      },
    };
  }

  /** Does the work with a permit of its own. */
  async run<T>(work: () => T | Promise<T>, signal?: AbortSignal): Promise<T> {
    using _permit = await this.acquire(signal);
    return await work();
  }

  #turn(signal: AbortSignal | undefined): Promise<void> {
    return new Promise((resolve, reject) => {
      const begin = (): void => {
        signal?.removeEventListener('abort', leave);
        resolve();
      };
      const leave = (): void => {
        this.#waiting.splice(this.#waiting.indexOf(begin), 1);
        reject(signal?.reason);
      };
      this.#waiting.push(begin);
      signal?.addEventListener('abort', leave, { once: true });
    });
  }

  #release(): void {
    const next = this.#waiting.shift();
    if (next === undefined) this.#free++;
    else next();
  }
}

/** Does one piece of work after the other, in the order they came; one that fails holds up none behind it. */
export class Mutex {
  #last: Promise<unknown> = Promise.resolve();

  run<T>(work: () => T | Promise<T>): Promise<T> {
    const result = this.#last.then(work);
    this.#last = result.catch(() => undefined);
    return result;
  }

  /** Resolves when the work that was given so far has ended. */
  async idle(): Promise<void> {
    await this.#last;
  }
}

/**
 * Maps items with so many at once; results come in the order of the items. The first error stops new ones and is thrown when the running
 * ones have ended. When `halt` aborts, nothing more is started and the result is undefined.
 */
export async function mapConcurrently<T, R>(
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

// ── yielding ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

/** How long one turn of the event loop may take before those who yield have to wait for the next, milliseconds. */
const TURN_MS = 8;

const yielding: (() => void)[] = [];
let turnBegan: number | undefined;

/**
 * Lets the event loop read sockets and look at timers before the caller goes on, if it has been busy for a while; undefined where it has
 * not. For long loops, and for what thousands of rollouts do at the same moment: together they would keep the loop for seconds, in which no
 * deadline ends and nobody is answered. Those that wait go on in order, as many per turn as fit into it, at least one.
 */
export function yieldToEventLoop(): Promise<void> | undefined {
  if (turnBegan === undefined) beginTurn();
  else if (yielding.length > 0 || performance.now() - turnBegan > TURN_MS)
    return new Promise((resolve) => yielding.push(resolve));
  return undefined;
}

/** As `items.map(map)`, and yields between two items. */
export async function mapYielding<T, R>(items: readonly T[], map: (item: T, index: number) => R): Promise<R[]> {
  const results: R[] = [];
  for (const [index, item] of items.entries()) {
    const yielded = yieldToEventLoop();
    if (yielded !== undefined) await yielded;
    results.push(map(item, index));
  }
  return results;
}

function beginTurn(): void {
  turnBegan = performance.now();
  setImmediate(endTurn);
}

function endTurn(): void {
  turnBegan = undefined;
  if (yielding.length === 0) return;
  beginTurn();
  releaseNext();
}

function releaseNext(): void {
  if (turnBegan === undefined || performance.now() - turnBegan > TURN_MS) return;
  yielding.shift()?.();
  // A tick that a microtask asks for comes when no microtask is left: then the one just released has done what it does before it waits again.
  if (yielding.length > 0) queueMicrotask(() => process.nextTick(releaseNext));
}

// ── aborting ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

export interface LinkedSignal extends Disposable {
  readonly signal: AbortSignal;
  /** To be called, or disposed, when nobody needs the signal any more. */
  release(): void;
}

/**
 * A signal that aborts with the first of several, for sources that outlive it.
 *
 * `AbortSignal.any` leaves something behind on every source until the garbage collector comes by; on a source that thousands of rollouts
 * were linked to, Node then spends seconds, later minutes, cleaning up. Here nothing is left after `release`.
 */
export function linkSignals(...sources: readonly AbortSignal[]): LinkedSignal {
  const controller = new AbortController();
  const release = abortWith(controller, ...sources);
  return { signal: controller.signal, release, [Symbol.dispose]: release };
}

/** As `linkSignals`, and aborts with `reason()` when the time is over. */
export function deadlineSignal(milliseconds: number, reason: () => unknown, ...sources: readonly AbortSignal[]): LinkedSignal {
  const late = new AbortController();
  const timer = setTimeout(() => late.abort(reason()), milliseconds);
  const linked = linkSignals(late.signal, ...sources);
  const release = (): void => {
    clearTimeout(timer);
    linked.release();
  };
  return { signal: linked.signal, release, [Symbol.dispose]: release };
}

/** The result of the work, or the signal's reason when that comes first; work that ignores its signal is left behind. */
export async function orAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  const aborted = Promise.withResolvers<never>();
  const abort = (): void => aborted.reject(signal.reason);
  if (signal.aborted) abort();
  else signal.addEventListener('abort', abort, { once: true });
  try {
    return await Promise.race([work, aborted.promise]);
  } finally {
    signal.removeEventListener('abort', abort);
  }
}

/** Aborts the controller with the first of these, until the function that it returns is called. */
export function abortWith(controller: AbortController, ...sources: readonly AbortSignal[]): () => void {
  const aborted = sources.find((source) => source.aborted);
  if (aborted !== undefined) controller.abort(aborted.reason);
  else for (const source of sources) linkedTo(source).add(controller);
  return () => unlink(controller, sources);
}

/** One listener per source: adding the thousandth compares it with all others, a million comparisons for a thousand rollouts. */
const linksOf = new WeakMap<AbortSignal, { readonly controllers: Set<AbortController>; readonly onAbort: () => void }>();

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

// ── downtime ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

/** How long a server was away: a clock that runs while anyone says so. It counts towards no deadline; who measures takes the difference. */
export class Downtime {
  #holders = 0;
  #since = 0;
  #before = 0;

  get milliseconds(): number {
    return this.#before + (this.#holders > 0 ? performance.now() - this.#since : 0);
  }

  begin(): void {
    if (this.#holders++ === 0) this.#since = performance.now();
  }

  /** Once for every `begin`. */
  end(): void {
    if (--this.#holders === 0) this.#before += performance.now() - this.#since;
  }
}

// ── closing ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

/**
 * Things to close together: in reverse order, all of them even if one fails; then the first failure is thrown. A small AsyncDisposableStack,
 * which Node 22 does not have.
 */
export class CloseStack implements AsyncDisposable {
  #closers: (() => unknown)[] = [];

  use<T extends AsyncDisposable | Disposable>(value: T): T {
    this.defer(() => (Symbol.asyncDispose in value ? value[Symbol.asyncDispose]() : value[Symbol.dispose]()));
    return value;
  }

  defer(close: () => unknown): void {
    this.#closers.push(close);
  }

  /** Hands everything over to a new stack. */
  move(): CloseStack {
    const moved = new CloseStack();
    [moved.#closers, this.#closers] = [this.#closers, []];
    return moved;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const failures: unknown[] = [];
    for (let close = this.#closers.pop(); close !== undefined; close = this.#closers.pop()) {
      try {
        await close();
      } catch (thrown) {
        failures.push(thrown);
      }
    }
    if (failures.length > 0) throw failures[0];
  }
}

/** Opens several things with a stack that closes them later. If one cannot be opened, closes the others and throws. */
export async function openingWith<T>(open: (opened: CloseStack) => Promise<T>): Promise<T> {
  const opened = new CloseStack();
  try {
    return await open(opened);
  } catch (thrown) {
    // Why opening failed says more than what failed because of it.
    await opened[Symbol.asyncDispose]().catch(() => {});
    throw thrown;
  }
}
