/**
 * Chooses the key/value slot of a new sequence, and how much of another slot's cache it can start from. A slot keeps its tokens and cache
 * after its request ended, so a conversation's next turn continues where the last one stopped, and the requests of a group share their
 * prompt. Pure bookkeeping: the caller copies the cache. Reuse never changes the result.
 */

export interface Slot {
  readonly index: number;
  /** Tokens of the sequence, of which the first `cached` are in the cache. */
  tokens: number[];
  cached: number;
  busy: boolean;
  /** Larger is more recent. */
  lastUsed: number;
}

export type Placement =
  /** Take `slot`; its first `reused` positions are valid after copying them `from` another slot, if given. */
  | { readonly kind: 'take'; readonly slot: Slot; readonly from: Slot | undefined; readonly reused: number }
  /** Wait: a busy slot is computing a prefix worth waiting for. */
  | { readonly kind: 'wait' }
  | { readonly kind: 'full' };

/** The fewest tokens that make it worth waiting for another request's prefill. */
const WORTH_WAITING = 16;

export class SlotTable {
  readonly #slots: readonly Slot[];
  #clock = 0;

  constructor(count: number) {
    this.#slots = Array.from({ length: count }, (_, index) => ({ index, tokens: [], cached: 0, busy: false, lastUsed: 0 }));
  }

  place(prompt: readonly number[]): Placement {
    const free = this.#slots.filter((slot) => !slot.busy);
    if (free.length === 0) return { kind: 'full' };
    // The last prompt token is always computed, because its row gives the first logits.
    const usable = prompt.length - 1;
    let source: Slot | undefined;
    let reused = 0;
    let promised = 0;
    for (const slot of this.#slots) {
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
    if (source !== undefined && !source.busy && source.cached === reused)
      return { kind: 'take', slot: source, from: undefined, reused };
    const slot = free.reduce((oldest, other) => (other.lastUsed < oldest.lastUsed ? other : oldest));
    return { kind: 'take', slot, from: source === slot ? undefined : source, reused };
  }

  occupy(slot: Slot, tokens: number[], cached: number): void {
    slot.busy = true;
    slot.tokens = tokens;
    slot.cached = cached;
    slot.lastUsed = ++this.#clock;
  }

  release(slot: Slot): void {
    slot.busy = false;
    slot.lastUsed = ++this.#clock;
  }

  /** The weights changed, so nothing cached is valid any more. */
  forget(): void {
    for (const slot of this.#slots) {
      slot.tokens = [];
      slot.cached = 0;
    }
  }
}

export function commonPrefix(a: ArrayLike<number>, b: ArrayLike<number>): number {
  const end = Math.min(a.length, b.length);
  let i = 0;
  while (i < end && a[i] === b[i]) i++;
  return i;
}
