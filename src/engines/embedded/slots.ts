/**
 * Chooses the key/value slot of a new sequence, and how much of another slot's cache it can start from. A slot keeps its tokens and cache
 * after its request ended, so a conversation's next turn continues where the last one stopped, and the requests of a group share their
 * prompt. The cache lies in pages: whole pages with the same beginning belong to several slots at once, and a slot never writes into a page
 * that it shares. What was computed from weights that are no longer served is never reused. Pure bookkeeping: the caller copies the rest of
 * a page. Reuse never changes the result.
 */

export interface Slot {
  readonly index: number;
  /** Tokens of the sequence, of which the first `cached` are in the cache. */
  tokens: number[];
  cached: number;
  busy: boolean;
  /** Of weights that are no longer served: its request goes on, and nobody starts from it. */
  outdated: boolean;
  /** Larger is more recent. */
  lastUsed: number;
  /** In order of positions; some may be shared with other slots. */
  pages: number[];
}

/** The first `count` positions of page `from`, which page `to` needs too. */
interface PageCopy {
  readonly from: number;
  readonly to: number;
  readonly count: number;
}

export type Placement =
  /** The slot is taken; its first `cached` positions are valid once `copy` is done. */
  | { readonly kind: 'take'; readonly slot: Slot; readonly copy: PageCopy | undefined }
  /** Wait: a busy slot is computing a prefix worth waiting for. */
  | { readonly kind: 'wait' }
  | { readonly kind: 'full' };

/** The fewest tokens that make it worth waiting for another request's prefill. */
const WORTH_WAITING = 16;

export interface SlotTableOptions {
  readonly slots: number;
  readonly pages: number;
  /** Positions in a page. */
  readonly page: number;
}

export class SlotTable {
  readonly #slots: readonly Slot[];
  readonly #page: number;
  readonly #free: number[];
  /** How many slots have each page. */
  readonly #users: Int32Array;
  #clock = 0;

  constructor({ slots, pages, page }: SlotTableOptions) {
    this.#slots = Array.from({ length: slots }, (_, index) => ({
      index,
      tokens: [],
      cached: 0,
      busy: false,
      outdated: false,
      lastUsed: 0,
      pages: [],
    }));
    this.#page = page;
    this.#free = Array.from({ length: pages }, (_, i) => pages - 1 - i);
    this.#users = new Int32Array(pages);
  }

  /** Takes a slot with room for `limit` positions, if there is one. The slot's `tokens` are `prompt` itself. */
  place(prompt: number[], limit: number): Placement {
    const idle = this.#slots.filter((slot) => !slot.busy);
    if (idle.length === 0) return { kind: 'full' };
    // The last prompt token is always computed, because its row gives the first logits.
    const usable = prompt.length - 1;
    let source: Slot | undefined;
    let reused = 0;
    let promised = 0;
    for (const slot of this.#slots) {
      if (slot.outdated) continue;
      const common = Math.min(usable, commonPrefix(slot.tokens, prompt));
      const available = Math.min(common, slot.cached);
      if (available > reused || (available === reused && available > 0 && slot.cached === available && !slot.busy)) {
        source = slot;
        reused = available;
      }
      if (slot.busy) promised = Math.max(promised, common);
    }
    if (promised - reused >= WORTH_WAITING) return { kind: 'wait' };
    // Continues in place a slot that ends where the prompt goes on; any other slot keeps its cache for its own next turn.
    const continues = source !== undefined && !source.busy && source.cached === reused;
    const slot = continues ? source! : oldest(idle);
    const copy = this.#fit(slot, source, reused, Math.ceil(limit / this.#page));
    if (copy === 'full') return { kind: 'full' };
    slot.busy = true;
    slot.tokens = prompt;
    slot.cached = reused;
    slot.lastUsed = ++this.#clock;
    return { kind: 'take', slot, copy };
  }

  release(slot: Slot): void {
    slot.busy = false;
    slot.lastUsed = ++this.#clock;
    if (slot.outdated) this.#empty(slot);
    const kept = Math.ceil(slot.cached / this.#page);
    this.#drop(slot.pages.splice(kept));
  }

  /** Other weights are served now: nothing cached so far is valid for new requests. */
  forget(): void {
    for (const slot of this.#slots) {
      if (slot.busy) slot.outdated = true;
      else this.#empty(slot);
    }
  }

  /** Gives a slot `count` pages that begin with the first `reused` positions of `source`. Changes nothing if there are too few pages. */
  #fit(slot: Slot, source: Slot | undefined, reused: number, count: number): PageCopy | undefined | 'full' {
    const whole = Math.floor(reused / this.#page);
    const shared = source?.pages.slice(0, whole) ?? [];
    const rest = reused % this.#page;
    // The begun page can be written to only if it is the slot's own.
    const begun = rest > 0 ? source!.pages[whole]! : undefined;
    const keepsBegun = begun !== undefined && source === slot && this.#users[begun] === 1;
    const kept = keepsBegun ? [...shared, begun] : shared;
    const held = begun === undefined ? kept : [...kept, begun];
    for (const page of held) this.#users[page]!++;
    if (!this.#makeRoom(count - kept.length, slot)) {
      this.#drop(held);
      return 'full';
    }
    const fresh = Array.from({ length: Math.max(0, count - kept.length) }, () => this.#take());
    this.#drop(slot.pages);
    slot.pages = [...kept, ...fresh];
    const copy = begun === undefined || keepsBegun ? undefined : { from: begun, to: fresh[0]!, count: rest };
    // Still unchanged when the caller copies: it is only now free, and is not given out before the next call.
    if (begun !== undefined) this.#drop([begun]);
    return copy;
  }

  /** Empties idle slots, the oldest first, until so many pages are free or become free with the slot's own. */
  #makeRoom(count: number, slot: Slot): boolean {
    const own = slot.pages.filter((page) => this.#users[page] === 1);
    const idle = this.#slots.filter((other) => !other.busy && other !== slot).sort((a, b) => a.lastUsed - b.lastUsed);
    const freed = new Map<number, number>();
    const countOf = (slots: readonly Slot[]): number => {
      freed.clear();
      for (const { pages } of slots) for (const page of pages) freed.set(page, (freed.get(page) ?? 0) + 1);
      return [...freed].filter(([page, users]) => users === this.#users[page]).length;
    };
    if (this.#free.length + own.length + countOf(idle) < count) return false;
    for (const page of own) this.#drop([page]);
    slot.pages = slot.pages.filter((page) => !own.includes(page));
    for (const other of idle) {
      if (this.#free.length >= count) break;
      this.#empty(other);
    }
    return this.#free.length >= count;
  }

  #take(): number {
    const page = this.#free.pop()!;
    this.#users[page] = 1;
    return page;
  }

  #drop(pages: readonly number[]): void {
    for (const page of pages) if (--this.#users[page]! === 0) this.#free.push(page);
  }

  #empty(slot: Slot): void {
    this.#drop(slot.pages);
    slot.pages = [];
    slot.tokens = [];
    slot.cached = 0;
    slot.outdated = false;
  }
}

function oldest(slots: readonly Slot[]): Slot {
  return slots.reduce((first, other) => (other.lastUsed < first.lastUsed ? other : first));
}

export function commonPrefix(a: ArrayLike<number>, b: ArrayLike<number>): number {
  const end = Math.min(a.length, b.length);
  let i = 0;
  while (i < end && a[i] === b[i]) i++;
  return i;
}
