/**
 * Streams one response to one client while it is sampled, independent of HTTP and dialect. The sampler pushes pieces and never waits; the
 * client reads at its own pace. Unread pieces are merged, so a client that stops reading costs no more than the text of one turn and delays
 * no other client. Everything pushed is read before the end or the failure.
 */
import type { Turn } from '../core/types.ts';
import type { BodyStream } from '../http/message.ts';
import type { Piece } from '../tokens/response-stream.ts';

/** Sampled tokens, pushed before the text they complete, and only if the client asked for log-probabilities. */
interface Tokens {
  readonly kind: 'tokens';
  readonly ids: Int32Array;
  readonly logprobs: Float32Array;
}

export type StreamPiece = Piece | Tokens;

export interface ChoicePiece {
  readonly choice: number;
  readonly piece: StreamPiece;
}

/** Writes the events of one response in a dialect. */
export interface EventEncoder {
  start(): string;
  pieces(pieces: readonly ChoicePiece[]): string;
  end(turns: readonly Turn[]): string;
  failure(thrown: unknown): string;
}

export class EventStream implements BodyStream {
  /** Called when the stream is cut, even if everything was read but the reader has not yet returned for the end. */
  onCut: ((reason: unknown) => void) | undefined;
  /** Called when the client has received everything and the stream need not be cut any more. */
  onDelivered: (() => void) | undefined;
  #encoder: EventEncoder | undefined;
  #text = '';
  #pieces: ChoicePiece[] = [];
  #ended = false;
  #closed = false;
  #cut: { readonly reason: unknown } | undefined;
  #waiting: PromiseWithResolvers<string> | undefined;

  get opened(): boolean {
    return this.#encoder !== undefined;
  }

  /** Whether everything, including the end, was read. */
  get drained(): boolean {
    return this.#ended && this.#cut === undefined && this.#text === '';
  }

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

  /** Resolves with the next text, or undefined at the end; rejects with the reason if the stream was cut. One read at a time. */
  read(): Promise<string | undefined> {
    if (this.#cut) return Promise.reject(this.#cut.reason);
    const text = this.#take();
    if (text !== '') return Promise.resolve(text);
    this.#closed = this.#ended;
    if (this.#closed) return Promise.resolve(undefined);
    this.#waiting = Promise.withResolvers();
    return this.#waiting.promise;
  }

  delivered(): void {
    this.onCut = undefined;
    this.onDelivered?.();
  }

  /** If the client is waiting to read, ends the stream with a failure that it sees; otherwise cuts it. */
  stop(thrown: unknown): void {
    if (this.#waiting) this.fail(thrown);
    else this.cut(thrown);
  }

  /** Ends the stream at once and drops unread text. */
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
