/**
 * What a request to the Tinker server is, how it is refused, and what one request, one model and the whole server may cost.
 *
 * Statuses are chosen for what clients make of them: 408, 409, 429 and 5xx are tried again, 410 means that the future is gone, every other
 * 4xx is final. A request that was taken and then failed has a message and a category instead.
 */

import { hash } from 'node:crypto';
import { promisify } from 'node:util';
import { zstdDecompress } from 'node:zlib';
import type { z } from 'zod';
import { messageOf } from '../../core/errors.ts';
import { type HttpReply, type HttpRequest, jsonReply, parseJson, textOf } from '../../http/message.ts';
import { type ErrorTable, failureOf, type Headers, type Refusal, refusals } from '../../http/refusal.ts';
import { readAs, WireError } from '../wire/codec.ts';
import { type FailureCategory, PROTOBUF } from '../wire/tinker-messages.ts';

const MiB = 1024 * 1024;

/** Published in docs/reference/tinker-server.md, which a test keeps equal to this. */
export const TINKER_LIMITS = {
  /** Of a body, before and after decompression. */
  bodyBytes: 64 * MiB,
  /** Of a JSON body: parsing it blocks the event loop. Batches that are larger come as protobuf. */
  jsonBytes: 16 * MiB,
  /** Of a JSON body that is neither a pass nor a sample: checking it costs far more than parsing it. */
  smallJsonBytes: 256 * 1024,
  /** Bodies of requests that were taken and not yet carried out. */
  waitingBytes: 512 * MiB,
  /** Datums in one forward_backward. */
  data: 4096,
  /** Models in training at once. */
  models: 8,
  /** Sets of weights that are sampled from at once. */
  samplers: 4,
  /** Sequences being sampled, from which on requests wait; those of a session that has none under way do not. */
  sequences: 128,
  /** Sequences of one sample request. */
  samples: 256,
  /** Sample requests taken and not yet answered. */
  samplesWaiting: 10_000,
  /** Unnamed sets of sampler weights kept for each model. */
  unnamed: 8,
  /** Results that nobody asked for yet, or might ask for again. */
  resultBytes: 256 * MiB,
} as const;

/** Milliseconds. */
export interface Waits {
  /** How long `retrieve_future` waits for a result before it says to ask again. */
  readonly poll: number;
  /** How long a request waits for the seq_id before its own. */
  readonly gap: number;
  /** How long weights are sampled from, at least, before others that are waited for take their place. */
  readonly turn: number;
  /** How long a result is kept. */
  readonly result: number;
  /** How long a session lives without a sign of life. */
  readonly session: number;
  /** After how long without one its samples are held back, and its models make room for others where there is none. */
  readonly silence: number;
}

export const WAITS: Waits = { poll: 30_000, gap: 60_000, turn: 1000, result: 30 * 60_000, session: 10 * 60_000, silence: 60_000 };

// Routes.

export interface TinkerRequest extends HttpRequest {
  /** What stands in the path where the route has a name in braces. */
  readonly names: Readonly<Record<string, string>>;
}

export type Route = (request: TinkerRequest) => Promise<HttpReply>;

/** By method and path below /api/v1. */
export type Routes = Readonly<Record<string, Route>>;

// Refusals.

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

/** `param`: the field of the request that it is about. */
export function invalid(param: string, found: string, hint?: string): Refusal {
  return refused('invalid_request', `${param} ${found}`, { param, hint });
}

const INVALID = { status: 400, code: 'invalid_request' };
const ERRORS: ErrorTable = {
  rows: {
    SESSION_UNKNOWN: { status: 401, code: 'invalid_api_key' },
    request_too_large: { status: 413, code: 'body_too_large' },
    // Nothing but another request helps against these.
    ...{
      REQUEST_INVALID: INVALID,
      CONTEXT_OVERFLOW: INVALID,
      SAMPLE_REFUSED: INVALID,
      CHECKPOINT_MISMATCH: INVALID,
      CANCELLED: INVALID,
    },
  },
  otherwise: { status: 500, code: 'internal_error' },
};

/** Of what was found; names that a request made up are part of it. */
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

/** `detail` is where clients of servers made with FastAPI look. */
export function failureReply({ status, code, message, headers }: TinkerFailure): HttpReply {
  return jsonReply(status, { error: { code, message }, detail: message }, headers);
}

/** Of a request that was taken, and then failed. */
export function futureFailureOf(thrown: unknown): { readonly error: string; readonly category: FailureCategory } {
  const { status, message } = failureIn(thrown);
  return { error: message, category: status < 500 ? 'user' : 'server' };
}

// Bodies.

export interface Body {
  readonly bytes: Uint8Array;
  readonly isProtobuf: boolean;
  /** The same for the same bytes. */
  readonly digest: string;
}

const decompress = promisify(zstdDecompress);
const DEEPEST = 64;

/** Reads, decompresses and digests. Throws for what is too large or of a kind not read here. */
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

/** The JSON body of a small request. */
export async function readRequest<T>(schema: z.ZodType<T>, request: HttpRequest): Promise<T> {
  return readAs(schema, jsonOf(await readBody(request)));
}

/** Copies of a sampling client number their requests from anywhere below 2^63: as a number, neighbours would be the same one. */
const LONG_SEQ_ID = /("seq_id"\s*:\s*)(\d{16,19})(?=\s*[,}])/g;

/** `most`: bytes; what holds tokens may be larger than the rest. A seq_id of more than 15 digits is given as text. */
export function jsonOf({ bytes, isProtobuf }: Body, most: number = TINKER_LIMITS.smallJsonBytes): unknown {
  if (isProtobuf) throw refused('unsupported_media_type', 'the body is protobuf, expected JSON here');
  if (bytes.length > most) {
    throw refused('body_too_large', `the JSON body has ${bytes.length} bytes, expected at most ${most}`, {
      hint: 'send smaller batches, or protobuf',
    });
  }
  return parseJson(textOf(bytes).replace(LONG_SEQ_ID, '$1"$2"'), { nesting: DEEPEST });
}
