/** Async utilities: concurrency limits, yielding to the event loop, linked abort signals and deadlines, downtime, cleanup. */

/** Limits how many holders run at once. Waiters enter in FIFO order. A lower limit waits for holders to leave. */
export class Semaphore {
  readonly #waiting: (() => void)[] = [];
  #held = 0;
  #limit: number;

  constructor(limit: number) {
    this.#limit = limit;
  }

  set limit(limit: number) {
    this.#limit = limit;
    this.#admit();
  }

  get held(): number {
    return this.#held;
  }

  /** Disposing the permit admits the next waiter, once. Rejects only with the signal's reason, if it aborts first. */
  async acquire(signal?: AbortSignal): Promise<Disposable> {
    signal?.throwIfAborted();
    if (this.#held < this.#limit) this.#held++;
    else await this.#turn(signal);
    let held = true;
    return {
      [Symbol.dispose]: () => {
        if (held) this.#release();
        held = false;
      },
    };
  }

  async run<T>(work: () => T | Promise<T>, signal?: AbortSignal): Promise<T> {
    using _permit = await this.acquire(signal);
    return await work();
  }

  #turn(signal: AbortSignal | undefined): Promise<void> {
    return new Promise((resolve, reject) => {
      const begin = () => {
        signal?.removeEventListener('abort', leave);
        resolve();
      };
      const leave = () => {
        this.#waiting.splice(this.#waiting.indexOf(begin), 1);
        reject(signal?.reason);
      };
      this.#waiting.push(begin);
      signal?.addEventListener('abort', leave, { once: true });
    });
  }

  #release(): void {
    this.#held--;
    this.#admit();
  }

  #admit(): void {
    while (this.#held < this.#limit && this.#waiting.length > 0) {
      this.#held++;
      this.#waiting.shift()!();
    }
  }
}

/** Runs work one piece at a time, in FIFO order. A failure does not block the work behind it. */
export class Mutex {
  #last: Promise<unknown> = Promise.resolve();

  run<T>(work: () => T | Promise<T>): Promise<T> {
    const result = this.#last.then(work);
    this.#last = result.catch(() => undefined);
    return result;
  }

  async idle(): Promise<void> {
    await this.#last;
  }
}

/**
 * Maps items with at most `concurrency` running at once; results keep the order of the items. After the first error it starts no more
 * items, and throws once the running ones have settled. Returns undefined if `halt` aborts while items are still unstarted.
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
  const one = async () => {
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

/** How long one turn of the event loop may take before callers that yield wait for the next one, in milliseconds. */
const TURN_MS = 8;

const yielding: (() => void)[] = [];
let turnBegan: number | undefined;

/**
 * Lets the event loop read sockets and fire timers if the current turn has run long; returns undefined if it has not. Use it in long loops
 * and in work that thousands of rollouts do at the same moment: together they would block the loop for seconds, and no deadline would fire
 * and no request be answered. Waiters resume in order, as many per turn as fit and at least one.
 */
export function yieldToEventLoop(): Promise<void> | undefined {
  if (turnBegan === undefined) beginTurn();
  else if (yielding.length > 0 || performance.now() - turnBegan > TURN_MS)
    return new Promise((resolve) => yielding.push(resolve));
  return undefined;
}

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
  // A tick scheduled from a microtask runs once the microtask queue is empty, so the caller just released has done its work by then.
  if (yielding.length > 0) queueMicrotask(() => process.nextTick(releaseNext));
}

export interface LinkedSignal extends Disposable {
  readonly signal: AbortSignal;
  /** Detaches from the sources. Callers must call it, or dispose, when they no longer need the signal. */
  release(): void;
}

/**
 * A signal that aborts with the first of several sources that outlive it. Unlike `AbortSignal.any`, it leaves nothing on the sources after
 * `release`. `any` leaves references until garbage collection: on a source linked to thousands of rollouts, Node then spends seconds, later
 * minutes, cleaning up.
 */
export function linkSignals(...sources: readonly AbortSignal[]): LinkedSignal {
  const controller = new AbortController();
  const release = abortWith(controller, ...sources);
  return { signal: controller.signal, release, [Symbol.dispose]: release };
}

/** Like `linkSignals`, but also aborts with `reason()` after this many milliseconds. */
export function deadlineSignal(milliseconds: number, reason: () => unknown, ...sources: readonly AbortSignal[]): LinkedSignal {
  return workDeadline(milliseconds, new Downtime(), reason, ...sources);
}

/** Like `deadlineSignal`, extended by the downtime from now on. */
export function workDeadline(
  milliseconds: number,
  downtime: Downtime,
  reason: () => unknown,
  ...sources: readonly AbortSignal[]
): LinkedSignal {
  const controller = new AbortController();
  let allowedFor = downtime.milliseconds;
  const wait = (more: number): NodeJS.Timeout =>
    setTimeout(() => {
      const away = downtime.milliseconds - allowedFor;
      allowedFor += away;
      if (away > 0) timer = wait(away);
      else controller.abort(reason());
    }, more);
  let timer = wait(milliseconds);
  const unlink = abortWith(controller, ...sources);
  const release = () => {
    clearTimeout(timer);
    unlink();
  };
  return { signal: controller.signal, release, [Symbol.dispose]: release };
}

/** Returns the result of the work, or rejects with the signal's reason if that comes first. Does not stop work that ignores its signal. */
export async function orAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  const aborted = Promise.withResolvers<never>();
  const abort = () => aborted.reject(signal.reason);
  if (signal.aborted) abort();
  else signal.addEventListener('abort', abort, { once: true });
  try {
    return await Promise.race([work, aborted.promise]);
  } finally {
    signal.removeEventListener('abort', abort);
  }
}

/** Aborts the controller when the first source aborts. Call the returned function to unlink it. */
export function abortWith(controller: AbortController, ...sources: readonly AbortSignal[]): () => void {
  const aborted = sources.find((source) => source.aborted);
  if (aborted !== undefined) controller.abort(aborted.reason);
  else for (const source of sources) linkedTo(source).add(controller);
  return () => unlink(controller, sources);
}

/** One listener per source. `addEventListener` compares a new listener with all others: a million comparisons for a thousand rollouts. */
const linksOf = new WeakMap<AbortSignal, { readonly controllers: Set<AbortController>; readonly onAbort: () => void }>();

function linkedTo(source: AbortSignal): Set<AbortController> {
  const known = linksOf.get(source);
  if (known !== undefined) return known.controllers;
  const controllers = new Set<AbortController>();
  const onAbort = () => {
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

/** The time a server was unreachable, which deadlines exclude. Runs while any holder has begun; each `begin` needs one `end`. */
export class Downtime {
  readonly #outer: Downtime | undefined;
  #holders = 0;
  #since = 0;
  #before = 0;

  /** Includes the time of the outer one. */
  constructor(outer?: Downtime) {
    this.#outer = outer;
  }

  get milliseconds(): number {
    const own = this.#before + (this.#holders > 0 ? performance.now() - this.#since : 0);
    return own + (this.#outer?.milliseconds ?? 0);
  }

  begin(): void {
    if (this.#holders++ === 0) this.#since = performance.now();
  }

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
