/**
 * A request and its reply, apart from the socket they came over: what the server's routes are functions of.
 */
import { createHash, hash as hashOf } from 'node:crypto';
import { setImmediate as nextTick } from 'node:timers/promises';
import { promisify } from 'node:util';
import { zstdDecompress } from 'node:zlib';
import { messageOf } from '../../core/errors.ts';
import { sizeOfJson } from '../../core/json.ts';
import { PROTOBUF } from '../wire/messages.ts';
import { ApiError } from './api-error.ts';
import { TINKER_LIMITS } from './limits.ts';

export interface TinkerRequest {
  readonly method: string;
  /** With its query. */
  readonly url: string;
  header(name: string): string | undefined;
  /** The whole body, read when it is asked for. Throws `body_too_large`. */
  body(): Promise<Uint8Array>;
  /** Aborts when the client hangs up. */
  readonly signal: AbortSignal;
  readonly address: string | undefined;
}

export interface TinkerReply {
  readonly status: number;
  readonly type: string;
  readonly body: Uint8Array | string;
}

export function jsonReply(value: object, status = 200): TinkerReply {
  return { status, type: 'application/json', body: JSON.stringify(value) };
}

export function protobufReply(body: Uint8Array): TinkerReply {
  return { status: 200, type: PROTOBUF, body };
}

export interface Body {
  readonly bytes: Uint8Array;
  readonly isProtobuf: boolean;
  /** The same for the same bytes. */
  readonly digest: string;
}

const decompress = promisify(zstdDecompress);
/** Hashed before others get a turn. */
const BYTES_AT_ONCE = 4 * 1024 * 1024;
const DEEPEST = 64;

/** Reads, decompresses and digests. Throws for what is too large or of a kind not read here. */
export async function readBody(request: TinkerRequest): Promise<Body> {
  const encoding = request.header('content-encoding')?.trim().toLowerCase() || 'identity';
  if (encoding !== 'identity' && encoding !== 'zstd') {
    throw new ApiError('unsupported_media_type', `content-encoding is ${encoding.slice(0, 40)}, expected none or zstd`);
  }
  const type = request.header('content-type')?.split(';')[0]?.trim().toLowerCase() || 'application/json';
  const isProtobuf = type === PROTOBUF;
  if (!isProtobuf && type !== 'application/json') {
    throw new ApiError(
      'unsupported_media_type',
      `content-type is ${type.slice(0, 80)}, expected application/json or ${PROTOBUF}`,
    );
  }
  const sent = await request.body();
  const bytes = encoding === 'zstd' ? await decompressed(sent) : sent;
  return { bytes, isProtobuf, digest: await digestOf(bytes) };
}

async function decompressed(bytes: Uint8Array): Promise<Uint8Array> {
  try {
    return await decompress(bytes, { maxOutputLength: TINKER_LIMITS.bodyBytes });
  } catch (thrown) {
    if ((thrown as NodeJS.ErrnoException).code === 'ERR_BUFFER_TOO_LARGE') throw tooLarge();
    throw new ApiError('invalid_request', `the body is not zstd: ${messageOf(thrown)}`);
  }
}

export function tooLarge(): ApiError {
  return new ApiError('body_too_large', `the body is larger than ${TINKER_LIMITS.bodyBytes} bytes`, {
    hint: 'send smaller batches',
  });
}

async function digestOf(bytes: Uint8Array): Promise<string> {
  if (bytes.length <= BYTES_AT_ONCE) return hashOf('sha256', bytes, 'base64');
  const hash = createHash('sha256');
  for (let at = 0; at < bytes.length; at += BYTES_AT_ONCE) {
    if (at > 0) await nextTick();
    hash.update(bytes.subarray(at, at + BYTES_AT_ONCE));
  }
  return hash.digest('base64');
}

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** Copies of a sampling client number their requests from anywhere below 2^63: as a number, neighbours would be the same one. */
const LONG_SEQ_ID = /("seq_id"\s*:\s*)(\d{16,19})(?=\s*[,}])/g;

/** `most`: bytes; what holds tokens may be larger than the rest. A seq_id of more than 15 digits is given as text. */
export function jsonOf({ bytes, isProtobuf }: Body, most: number = TINKER_LIMITS.smallJsonBytes): unknown {
  if (isProtobuf) throw new ApiError('unsupported_media_type', 'the body is protobuf, expected JSON here');
  if (bytes.length > most) {
    throw new ApiError('body_too_large', `the JSON body has ${bytes.length} bytes, expected at most ${most}`, {
      hint: 'send smaller batches, or protobuf',
    });
  }
  let text: string;
  try {
    text = utf8.decode(bytes);
  } catch {
    throw new ApiError('invalid_request', 'the body is not UTF-8');
  }
  if (sizeOfJson(text).nesting > DEEPEST)
    throw new ApiError('invalid_request', `the body is nested deeper than ${DEEPEST} levels`);
  try {
    return JSON.parse(text.replace(LONG_SEQ_ID, '$1"$2"'));
  } catch (thrown) {
    throw new ApiError(
      'invalid_request',
      `the body is not JSON: ${text === '' ? 'it is empty' : messageOf(thrown).slice(0, 200)}`,
    );
  }
}
