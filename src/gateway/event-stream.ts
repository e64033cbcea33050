/**
 * One answer on its way to one client while it is sampled. The sampler pushes pieces and never waits; the client's side reads text
 * at its own pace.
 *
 * Pieces that were not read yet are merged, so a client that does not read costs no more than the text of one turn, and delays
 * nobody. Everything pushed is read before the end or the failure. Knows nothing of HTTP, nor of any dialect: see `EventEncoder`.
 */
import type { Turn } from '../core/types.ts';
import type { BodyStream } from '../http/message.ts';
import type { Piece } from '../tokens/response-stream.ts';

/** Sampled tokens, told before the pieces that they settle, where the client asked for log-probabilities. */
export interface Tokens {
  readonly kind: 'tokens';
  readonly ids: Int32Array;
  readonly logprobs: Float32Array;
}

export type StreamPiece = Piece | Tokens;

/** A piece of one of the answers that were asked for. */
export interface ChoicePiece {
  readonly choice: number;
  readonly piece: StreamPiece;
}

/** How a dialect writes the events of one answer. */
export interface EventEncoder {
  /** What comes before the first piece. */
  start(): string;
  pieces(pieces: readonly ChoicePiece[]): string;
  end(turns: readonly Turn[]): string;
  failure(thrown: unknown): string;
}

export class EventStream implements BodyStream {
  /** Called when the stream is cut, also if all of it was read but its reader has not come back for the end. */
  onCut: ((reason: unknown) => void) | undefined;
  /** Called when all of it is in the client's hands, and nobody needs to cut it any more. */
  onDelivered: (() => void) | undefined;
  #encoder: EventEncoder | undefined;
  /** Written but not read. */
  #text = '';
  #pieces: ChoicePiece[] = [];
  #ended = false;
  #closed = false;
  #cut: { readonly reason: unknown } | undefined;
  #waiting: PromiseWithResolvers<string> | undefined;

  /** Whether it has begun; before that there is nothing to read. */
  get opened(): boolean {
    return this.#encoder !== undefined;
  }

  /** Whether all of it, its end included, was read. */
  get drained(): boolean {
    return this.#ended && this.#cut === undefined && this.#text === '';
  }

  // ── the sampler's side ───────────────────────────────────────────────────────────────────────────────────────────────

  open(encoder: EventEncoder): void {
    this.#encoder = encoder;
    this.#text = encoder.start();
  }

  push(choice: number, pieces: readonly StreamPiece[]): void {
    if (this.#ended) return;
    for (const piece of pieces) {
      const last = this.#pieces.at(-1);
      const merged = last?.choice === choice ? merge(last.piece, piece) : undefined;
      if (merged) this.#pieces[this.#pieces.length - 1] = { choice, piece: merged };
      else this.#pieces.push({ choice, piece });
    }
    this.#wake();
  }

  finish(turns: readonly Turn[]): void {
    this.#end((encoder) => encoder.end(turns));
  }

  fail(thrown: unknown): void {
    this.#end((encoder) => encoder.failure(thrown));
  }

  // ── the client's side ────────────────────────────────────────────────────────────────────────────────────────────────

  /** The next text, as soon as there is some; undefined at the end. Rejects with the reason of a cut. One read at a time. */
  read(): Promise<string | undefined> {
    if (this.#cut) return Promise.reject(this.#cut.reason);
    const text = this.#take();
    if (text !== '') return Promise.resolve(text);
    this.#closed = this.#ended;
    if (this.#closed) return Promise.resolve(undefined);
    this.#waiting = Promise.withResolvers();
    return this.#waiting.promise;
  }

  /** Called when all of it was handed over. */
  delivered(): void {
    this.onCut = undefined;
    this.onDelivered?.();
  }

  /** Ends it for a client that waits to read with a failure that it will see; for one that does not, by a cut. */
  stop(thrown: unknown): void {
    if (this.#waiting) this.fail(thrown);
    else this.cut(thrown);
  }

  /** Ends it at once; what was not read is gone. */
  cut(reason: unknown): void {
    if (this.#closed || this.#cut) return;
    if (!this.drained) {
      this.#ended = true;
      this.#cut = { reason };
      this.#text = '';
      this.#pieces = [];
      this.#waiting?.reject(reason);
      this.#waiting = undefined;
    }
    this.onCut?.(reason);
  }

  #end(write: (encoder: EventEncoder) => string): void {
    if (this.#ended || this.#encoder === undefined) return;
    this.#text = this.#take() + write(this.#encoder);
    this.#ended = true;
    this.#wake();
  }

  #wake(): void {
    if (!this.#waiting) return;
    const text = this.#take();
    if (text === '') return;
    this.#waiting.resolve(text);
    this.#waiting = undefined;
  }

  #take(): string {
    const text = this.#text + (this.#pieces.length > 0 ? (this.#encoder?.pieces(this.#pieces) ?? '') : '');
    this.#text = '';
    this.#pieces = [];
    return text;
  }
}

function merge(last: StreamPiece, next: StreamPiece): Piece | undefined {
  if (!('text' in last && 'text' in next) || last.kind !== next.kind) return undefined;
  return { kind: last.kind, text: last.text + next.text };
}
