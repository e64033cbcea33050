/**
 * Pools that several users in this process have in common: opened by the first that needs one, closed with the last that leaves.
 *
 * Which pools are the same is for the key to say. A pool that could not be opened is opened anew by the next user. A user that leaves while
 * its pool is still being opened ends that, unless others wait for it too.
 */

interface SharedPool<Pool> {
  readonly opening: Promise<Pool>;
  readonly users: Set<object>;
  readonly end: AbortController;
}

export class SharedPools<Pool extends AsyncDisposable> {
  readonly #pools = new Map<string, SharedPool<Pool>>();

  /** The same user may ask again. `open` gets a signal that closes the pool. */
  async use(key: string, user: object, open: (signal: AbortSignal) => Promise<Pool>): Promise<Pool> {
    let shared = this.#pools.get(key);
    if (shared === undefined) {
      const end = new AbortController();
      const made: SharedPool<Pool> = { opening: open(end.signal), users: new Set(), end };
      this.#pools.set(key, made);
      made.opening.catch(() => this.#pools.get(key) === made && this.#pools.delete(key));
      shared = made;
    }
    shared.users.add(user);
    return await shared.opening;
  }

  /** Resolves when the pool is closed, where this was its last user. Who is no user leaves nothing. */
  async leave(key: string, user: object): Promise<void> {
    const shared = this.#pools.get(key);
    if (shared?.users.delete(user) !== true || shared.users.size > 0) return;
    this.#pools.delete(key);
    await closed(shared);
  }

  /** Whoever uses them. */
  async closeAll(): Promise<void> {
    const open = [...this.#pools.values()];
    this.#pools.clear();
    await Promise.all(open.map(closed));
  }
}

async function closed<Pool extends AsyncDisposable>({ opening, end }: SharedPool<Pool>): Promise<void> {
  end.abort();
  const pool = await opening.catch(() => undefined);
  await pool?.[Symbol.asyncDispose]();
}
