/**
 * Building blocks of the Tinker server's routes: reading and refusing requests, futures, and the order in which a model's requests run.
 * Statuses follow what clients do with them: they retry 408, 409, 429 and 5xx, treat 410 as a lost future, and every other 4xx as final. A
 * request that was accepted and fails later reports a message and a category instead.
 */
import { hash, randomBytes } from 'node:crypto';
import { promisify } from 'node:util';
import { zstdDecompress } from 'node:zlib';
import type { z } from 'zod';
import { deadlineSignal, Mutex, orAborted } from '../../../core/async.ts';
import { messageOf } from '../../../core/errors.ts';
import { type HttpReply, type HttpRequest, jsonReply, parseJson, textOf } from '../../../http/message.ts';
import { type ErrorTable, failureOf, type Headers, type Refusal, refusals } from '../../../http/refusal.ts';
import { readAs, WireError } from '../wire/codec.ts';
import { encodePassResult, encodeSampleReply } from '../wire/protobuf.ts';
import { passResultToJson, sampleReplyToJson } from '../wire/tinker-json.ts';
import { type FailureCategory, futureRequest, type PassResult, PROTOBUF, type SampleReply } from '../wire/tinker-messages.ts';
import { TINKER_LIMITS } from './limits.ts';

/** `names`: the path segments that match the route's names in braces. */
export type Route = (request: HttpRequest & { readonly names: Readonly<Record<string, string>> }) => Promise<HttpReply>;

/** Keyed by method and path below /api/v1. */
export type Routes = Readonly<Record<string, Route>>;

export const refused = refusals({
  invalid_request: 400,
  not_offered: 400,
  too_many_models: 400,
  unknown_route: 404,
  unknown_session: 404,
  unknown_model: 404,
  unknown_sampler: 404,
  unknown_weights: 404,
  unknown_future: 404,
  future_gone: 410,
  seq_id_reused: 409,
  body_too_large: 413,
  unsupported_media_type: 415,
  too_busy: 429,
});

export function invalid(param: string, found: string, hint?: string): Refusal {
  return refused('invalid_request', `${param} ${found}`, { param, hint });
}

const INVALID = { status: 400, code: 'invalid_request' };
const ERRORS: ErrorTable = {
  rows: {
    SESSION_UNKNOWN: { status: 401, code: 'invalid_api_key' },
    request_too_large: { status: 413, code: 'body_too_large' },
    // Retrying does not help: the client must send a different request.
    REQUEST_INVALID: INVALID,
    CONTEXT_OVERFLOW: INVALID,
    SAMPLE_REFUSED: INVALID,
    CHECKPOINT_MISMATCH: INVALID,
    CANCELLED: INVALID,
  },
  otherwise: { status: 500, code: 'internal_error' },
};

/** Characters. Messages may quote names that the client chose, so they are cut. */
const LONGEST_MESSAGE = 1000;

export interface TinkerFailure {
  readonly status: number;
  readonly code: string;
  readonly message: string;
  readonly headers: Headers | undefined;
}

export function failureIn(thrown: unknown): TinkerFailure {
  const known = thrown instanceof WireError ? refused('invalid_request', thrown.message) : thrown;
  const { status, code, message, hint, headers } = failureOf(known, ERRORS);
  const found = message.length > LONGEST_MESSAGE ? `${message.slice(0, LONGEST_MESSAGE)}…` : message;
  return { status, code, headers, message: hint === undefined ? found : `${found} (${hint})` };
}

export interface Body {
  readonly bytes: Uint8Array;
  readonly isProtobuf: boolean;
  /** SHA-256 of the decompressed bytes. */
  readonly digest: string;
}

const decompress = promisify(zstdDecompress);
const DEEPEST = 64;

/** Reads, decompresses and digests the body. Refuses bodies that are too large or of an unsupported type. */
export async function readBody(request: HttpRequest): Promise<Body> {
  const encoding = request.header('content-encoding')?.trim().toLowerCase() || 'identity';
  if (encoding !== 'identity' && encoding !== 'zstd') {
    throw refused('unsupported_media_type', `content-encoding is ${encoding.slice(0, 40)}, expected none or zstd`);
  }
  const type = request.header('content-type')?.split(';')[0]?.trim().toLowerCase() || 'application/json';
  if (type !== PROTOBUF && type !== 'application/json') {
    throw refused('unsupported_media_type', `content-type is ${type.slice(0, 80)}, expected application/json or ${PROTOBUF}`);
  }
  const sent = (await request.body(TINKER_LIMITS.bodyBytes)) as Uint8Array;
  const bytes = encoding === 'zstd' ? await decompressed(sent) : sent;
  return { bytes, isProtobuf: type === PROTOBUF, digest: hash('sha256', bytes, 'base64') };
}

async function decompressed(bytes: Uint8Array): Promise<Uint8Array> {
  try {
    return await decompress(bytes, { maxOutputLength: TINKER_LIMITS.bodyBytes });
  } catch (thrown) {
    if ((thrown as NodeJS.ErrnoException).code !== 'ERR_BUFFER_TOO_LARGE') {
      throw refused('invalid_request', `the body is not zstd: ${messageOf(thrown)}`);
    }
    throw refused('body_too_large', `the body is larger than ${TINKER_LIMITS.bodyBytes} bytes`, { hint: 'send smaller batches' });
  }
}

export async function readRequest<T>(schema: z.ZodType<T>, request: HttpRequest): Promise<T> {
  return readAs(schema, jsonOf(await readBody(request)));
}

/** Copies of a sampling client number their requests from anywhere below 2^63. Doubles would merge neighbouring numbers. */
const LONG_SEQ_ID = /("seq_id"\s*:\s*)(\d{16,19})(?=\s*[,}])/g;

/** `most`: bytes; requests with tokens may be larger than others. A seq_id of more than 15 digits is returned as a string. */
export function jsonOf({ bytes, isProtobuf }: Body, most: number = TINKER_LIMITS.smallJsonBytes): unknown {
  if (isProtobuf) throw refused('unsupported_media_type', 'the body is protobuf, expected JSON here');
  if (bytes.length > most) {
    throw refused('body_too_large', `the JSON body has ${bytes.length} bytes, expected at most ${most}`, {
      hint: 'send smaller batches, or protobuf',
    });
  }
  return parseJson(textOf(bytes).replace(LONG_SEQ_ID, '$1"$2"'), { nesting: DEEPEST });
}

export type FutureResult =
  | { readonly kind: 'reply'; readonly value: object }
  | { readonly kind: 'pass'; readonly result: PassResult }
  | { readonly kind: 'sample'; readonly reply: SampleReply }
  | { readonly kind: 'failed'; readonly failure: { readonly error: string; readonly category: FailureCategory } };

/** A handle that does not keep its result in memory. */
export interface Future {
  readonly id: string;
  /** Undefined for requests outside of any session. */
  readonly sessionId: string | undefined;
  delivered: boolean;
  /** Aborts the work if it supports that; otherwise does nothing. */
  cancel(): void;
}

interface Kept {
  readonly future: Future;
  readonly result: Promise<FutureResult>;
  bytes: number;
  /** Time of settling, on `performance.now()`'s clock. */
  at: number;
}

const FORM = /^([0-9a-f]{12})-\d+$/;
/** Estimated bytes of a small result and its entry. */
const SMALL = 500;

/**
 * Results of requests that take a while. Such a request is answered with an id at once, and clients poll for the result by id, any number
 * of times, until it exceeds the age or byte limit (oldest first). Pending results are always kept. Ids start with a random prefix per
 * process, which tells futures of an earlier process from ids that never existed.
 */
export class Futures {
  readonly #boot = randomBytes(6).toString('hex');
  readonly #limits: { readonly bytes: number; readonly ageMs: number };
  readonly #pending = new Map<string, Kept>();
  /** Oldest first. */
  readonly #settled = new Map<string, Kept>();
  #bytes = 0;
  #made = 0;

  constructor(limits: { readonly bytes: number; readonly ageMs: number }) {
    this.#limits = limits;
  }

  /** Starts `work`. If it throws, the error becomes the result. */
  start(work: () => Promise<FutureResult>, sessionId?: string, cancel: () => void = () => {}): Future {
    const id = `${this.#boot}-${++this.#made}`;
    const result = Promise.resolve()
      .then(work)
      .catch((thrown): FutureResult => {
        const { status, message } = failureIn(thrown);
        return { kind: 'failed', failure: { error: message, category: status < 500 ? 'user' : 'server' } };
      });
    const kept: Kept = { future: { id, sessionId, delivered: false, cancel }, result, bytes: 0, at: 0 };
    this.#pending.set(id, kept);
    void result.then((settled) => this.#settle(kept, settled));
    return kept.future;
  }

  /** Throws `unknown_future` for ids that never existed, `future_gone` for results that are no longer kept. */
  find(id: string): Future {
    return this.#find(id).future;
  }

  /** Undefined if the result is not ready after `ms`, or the signal aborts. Throws as `find` does. */
  async wait({ id }: Future, ms: number, signal?: AbortSignal): Promise<FutureResult | undefined> {
    const { result } = this.#find(id);
    using over = deadlineSignal(ms, () => 'not yet', ...(signal ? [signal] : []));
    return await orAborted(result, over.signal).catch(() => undefined);
  }

  /** Resolves when the work has finished. Never throws. */
  async done({ id }: Future): Promise<void> {
    await this.#pending.get(id)?.result;
  }

  #find(id: string): Kept {
    this.#forgetOld();
    const kept = this.#pending.get(id) ?? this.#settled.get(id);
    if (kept !== undefined) return kept;
    const [, boot] = FORM.exec(id) ?? [];
    if (boot === undefined) throw refused('unknown_future', `there is no future ${JSON.stringify(id.slice(0, 80))}`);
    const why = boot === this.#boot ? 'its result is no longer kept' : 'it is of an earlier life of this server';
    throw refused('future_gone', `future ${id} is gone: ${why}`, { hint: 'send the request again' });
  }

  #settle(kept: Kept, result: FutureResult): void {
    kept.bytes = sizeOf(result);
    kept.at = performance.now();
    // Lets the work be garbage-collected while the future is still held.
    kept.future.cancel = () => {};
    this.#pending.delete(kept.future.id);
    this.#settled.set(kept.future.id, kept);
    this.#bytes += kept.bytes;
    this.#forgetOld();
  }

  #forgetOld(): void {
    const oldest = performance.now() - this.#limits.ageMs;
    for (const [id, kept] of this.#settled) {
      // The newest result stays, however large: its client is about to fetch it.
      if (kept.at >= oldest && (this.#bytes <= this.#limits.bytes || this.#settled.size === 1)) return;
      this.#settled.delete(id);
      this.#bytes -= kept.bytes;
    }
  }
}

function sizeOf(result: FutureResult): number {
  const rows: readonly (readonly (ArrayBufferView | undefined)[])[] =
    result.kind === 'pass'
      ? result.result.outputs.map((tensors) => Object.values(tensors).map(({ data }) => data))
      : result.kind === 'sample'
        ? result.reply.sequences.map(({ tokens, logprobs }) => [tokens, logprobs, result.reply.promptLogprobs])
        : [];
  return SMALL * (rows.length + 1) + rows.flat().reduce((sum, array) => sum + (array?.byteLength ?? 0), 0);
}

export function futureReply(future: Future, more: object = {}): HttpReply {
  return jsonReply(200, { request_id: future.id, future_id: future.id, status: 'pending', ...more });
}

/** `touch`: polling for a result keeps its session alive. */
export function futureRoutes(futures: Futures, touch: (sessionId: string | undefined) => void, pollMs: number): Routes {
  return {
    'POST /retrieve_future': async (request) => {
      const { request_id } = await readRequest(futureRequest, request);
      const future = futures.find(request_id);
      touch(future.sessionId);
      const result = await futures.wait(future, pollMs, request.signal);
      if (result === undefined) return jsonReply(408, { type: 'try_again', request_id, queue_state: 'active' });
      future.delivered = true;
      return resultReply(result, request.header('accept')?.includes(PROTOBUF) ?? false);
    },

    /** Only sampling can be cancelled; training verbs run to the end. */
    'POST /cancel_future': async (request) => {
      futures.find((await readRequest(futureRequest, request)).request_id).cancel();
      return jsonReply(200, { status: 'cancelled' });
    },
  };
}

function resultReply(result: FutureResult, wantsProtobuf: boolean): HttpReply {
  if (result.kind === 'reply') return jsonReply(200, result.value);
  if (result.kind === 'failed') return jsonReply(200, result.failure);
  if (wantsProtobuf) {
    const body = result.kind === 'pass' ? encodePassResult(result.result) : encodeSampleReply(result.reply);
    return { status: 200, headers: { 'content-type': PROTOBUF }, body };
  }
  return jsonReply(200, result.kind === 'pass' ? passResultToJson(result.result) : sampleReplyToJson(result.reply));
}

/** Deduplicates by a number that the client chose: a repeat returns the first value, the same number with a different body is refused. */
export class Numbered<T> {
  readonly made = new Map<number | string, { readonly digest: string; readonly what: T }>();
  readonly #param: string;
  readonly #most: number;

  /** `param`: the field that holds the number. `most`: how many numbers are remembered; the oldest are forgotten. */
  constructor(param: string, most: number) {
    this.#param = param;
    this.#most = most;
  }

  take(number: number | string, digest: string, make: () => T): T {
    const known = this.made.get(number);
    if (known !== undefined && known.digest === digest) return known.what;
    if (known !== undefined) {
      const found = `${this.#param} ${number} was used before, for another request`;
      throw refused('seq_id_reused', found, { param: this.#param });
    }
    const what = make();
    this.made.set(number, { digest, what });
    const [oldest] = this.made.keys();
    if (this.made.size > this.#most) this.made.delete(oldest!);
    return what;
  }
}

interface OrderedRequest {
  readonly seqId: number | undefined;
  readonly digest: string;
  run(): Promise<FutureResult>;
  /** Called instead of `run`, in the same place of the order, if the request fails without running. */
  skipped(why: string): void;
}

/** Requests whose digests are remembered. Clients only repeat recent ones. */
const MOST_SEEN = 10_000;
/** A seq_id further ahead than this is refused. */
const MOST_AHEAD = 10_000;

/**
 * Runs the requests of one model one at a time: by seq_id if they have one, otherwise in order of arrival. A repeated seq_id with the same
 * body returns the same future; with a different body it is refused. A request waits for missing predecessors. If they do not arrive in
 * time, all waiting requests fail without running and the order continues after them; a predecessor that arrives later is refused.
 */
export class RequestOrder {
  readonly #start: (work: () => Promise<FutureResult>) => Future;
  readonly #gapMs: number;
  readonly #seen = new Numbered<Future>('seq_id', MOST_SEEN);
  /** By seq_id. `go` runs a request once all of its predecessors have started. */
  readonly #waiting = new Map<number, { readonly go: () => void; readonly giveUp: (missing: number) => void }>();
  readonly #running = new Mutex();
  #next = 1;
  #gapTimer: NodeJS.Timeout | undefined;
  #closed: string | undefined;

  constructor(start: (work: () => Promise<FutureResult>) => Future, gapMs: number) {
    this.#start = start;
    this.#gapMs = gapMs;
  }

  submit(request: OrderedRequest): Future {
    const { seqId, digest } = request;
    if (seqId === undefined) return this.#start(() => this.#run(request));
    return this.#seen.take(seqId, digest, () => {
      if (seqId < this.#next) {
        throw refused('seq_id_reused', `seq_id ${seqId} came too late or too often: the next one is ${this.#next}`, {
          hint: 'give each request of a model a seq_id of its own: 1, 2, 3 …',
          param: 'seq_id',
        });
      }
      if (seqId > this.#next + MOST_AHEAD) {
        throw refused('invalid_request', `seq_id is ${seqId}, expected ${this.#next} or little more`, { param: 'seq_id' });
      }
      return this.#start(() => this.#waitThenRun(request, seqId));
    });
  }

  /** Consumes the seq_id of a request that was refused before it had a future. Clients do not reuse that seq_id. */
  skip(seqId: number, digest: string, skipped: OrderedRequest['skipped'], why: string): void {
    if (this.#seen.made.has(seqId) || seqId < this.#next || seqId > this.#next + MOST_AHEAD) return;
    const run = async (): Promise<FutureResult> => {
      skipped(why);
      throw refused('invalid_request', why);
    };
    this.submit({ seqId, digest, run, skipped });
  }

  /** Fails waiting and later requests. Resolves when nothing runs any more. */
  async close(why: string): Promise<void> {
    this.#closed = why;
    this.#stopClock();
    for (const { go } of this.#waiting.values()) go();
    this.#waiting.clear();
    await this.#running.idle();
  }

  #run(request: OrderedRequest): Promise<FutureResult> {
    return this.#running.run(() => {
      if (this.#closed !== undefined) throw refused('unknown_model', this.#closed);
      return request.run();
    });
  }

  #waitThenRun(request: OrderedRequest, seqId: number): Promise<FutureResult> {
    if (this.#closed !== undefined) return this.#run(request);
    return new Promise((resolve, reject) => {
      const go = () => void this.#run(request).then(resolve, reject);
      const giveUp = (missing: number) => {
        const seconds = Math.round(this.#gapMs / 1000);
        const why = `seq_id ${missing} did not come within ${seconds} s, so the request with seq_id ${seqId} was not carried out`;
        reject(refused('invalid_request', why, { param: 'seq_id' }));
        void this.#running.run(() => request.skipped(why));
      };
      this.#waiting.set(seqId, { go, giveUp });
      this.#advance();
    });
  }

  #advance(): void {
    const before = this.#next;
    for (let ready = this.#waiting.get(this.#next); ready !== undefined; ready = this.#waiting.get(this.#next)) {
      this.#waiting.delete(this.#next++);
      ready.go();
    }
    if (this.#next !== before) this.#stopClock();
    if (this.#waiting.size > 0) this.#gapTimer ??= setTimeout(() => this.#giveUp(), this.#gapMs).unref();
  }

  #giveUp(): void {
    this.#stopClock();
    const missing = this.#next;
    const waiting = [...this.#waiting].sort(([a], [b]) => a - b);
    this.#waiting.clear();
    this.#next = (waiting.at(-1)?.[0] ?? missing - 1) + 1;
    for (const [, { giveUp }] of waiting) giveUp(missing);
  }

  #stopClock(): void {
    clearTimeout(this.#gapTimer);
    this.#gapTimer = undefined;
  }
}
