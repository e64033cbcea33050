/**
 * One pass as a Tinker server takes it: cut into chunks of the size it allows, as protobuf or JSON, and its results put together.
 *
 * JSON is for servers that know nothing better. Writing and reading it is slow, so its chunks are small: the event loop is also what
 * answers the agents.
 */
import { mapYielding } from '../../core/async.ts';
import { TrainyardError } from '../../core/errors.ts';
import { passRequestToJson, passResultFromJson } from '../wire/json.ts';
import { type Datum, type PassRequest, type PassResult, PROTOBUF } from '../wire/messages.ts';
import { decodePassResult, encodedBytes, encodePassRequest } from '../wire/protobuf.ts';
import type { ClientConfigReply } from '../wire/verbs.ts';
import type { Payload } from './futures.ts';

/** How a server takes its passes; found out with the first one. */
export interface PassFormat {
  kind: 'protobuf' | 'json' | undefined;
}

export interface EncodedVerb {
  readonly verb: string;
  readonly requestType: string;
  readonly body: Uint8Array;
  readonly contentType: string;
}

export interface PassOutput {
  readonly outputs: PassResult['outputs'];
  /** What the server says the loss is, over all chunks; undefined where it says nothing of the kind. */
  readonly lossSum: number | undefined;
}

/** Binary bytes whose JSON takes a few milliseconds to write. */
const JSON_CHUNK_BYTES = 250_000;

export async function cutIntoChunks(
  data: readonly Datum[],
  format: 'protobuf' | 'json',
  config: ClientConfigReply,
): Promise<Datum[][]> {
  const sizes = await mapYielding(data, encodedBytes);
  const given = config.fwdbwd_max_chunk_bytes_count;
  const mostBytes = format === 'json' ? Math.min(given, JSON_CHUNK_BYTES) : given;
  const chunks: Datum[][] = [];
  let bytes = 0;
  for (const [i, datum] of data.entries()) {
    const size = sizes[i]!;
    const last = chunks.at(-1);
    if (last === undefined || last.length === config.fwdbwd_max_chunk_len || bytes + size > mostBytes) {
      chunks.push([datum]);
      bytes = size;
    } else {
      last.push(datum);
      bytes += size;
    }
  }
  return chunks;
}

export function encodePass(request: PassRequest, format: 'protobuf' | 'json'): EncodedVerb {
  const requestType = request.forwardOnly ? 'Forward' : 'ForwardBackward';
  if (format === 'protobuf') {
    return { verb: 'forward_backward', requestType, body: encodePassRequest(request), contentType: PROTOBUF };
  }
  const verb = request.forwardOnly ? 'forward' : 'forward_backward';
  const body = Buffer.from(JSON.stringify(passRequestToJson(request)));
  return { verb, requestType, body, contentType: 'application/json' };
}

export function readPass(payload: Payload): PassResult {
  return payload.kind === 'protobuf' ? decodePassResult(payload.bytes) : passResultFromJson(payload.value);
}

/** `sizes`: datums of each chunk. Throws POLICY_GARBLED where a chunk has an output too many or too few: later ones would be others'. */
export function joinResults(results: readonly PassResult[], sizes: readonly number[]): PassOutput {
  for (const [i, { outputs }] of results.entries()) {
    if (outputs.length === sizes[i]) continue;
    throw new TrainyardError('POLICY_GARBLED', `the server gave ${outputs.length} outputs for ${sizes[i]} samples`);
  }
  const sums = results.map(({ metrics }) => metrics['loss:sum']);
  const lossSum = sums.reduce((sum, one) => (sum === undefined || one === undefined ? undefined : sum + one), 0);
  return { outputs: results.flatMap(({ outputs }) => outputs), lossSum: results.length === 0 ? undefined : lossSum };
}

/** The gradient's norm among an optimizer's metrics, whatever the server puts before and behind the name. Throws TRAINER_FAILED. */
export function gradNormOf(metrics: Readonly<Record<string, number>>): number | undefined {
  const entry = Object.entries(metrics).find(([key]) => /(^|[^a-z])grad(ient)?_norm$/.test(key.split(':')[0]!));
  if (entry === undefined) return undefined;
  const [key, norm] = entry;
  if (Number.isFinite(norm)) return norm;
  throw new TrainyardError('TRAINER_FAILED', `the server took a step with ${key} ${norm}, expected a finite number`, {
    hint: 'load the last checkpoint and lower the learning rate',
  });
}
