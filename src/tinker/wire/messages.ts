/**
 * The large messages of the Tinker API, apart from how they are written: `json.ts` and `protobuf.ts` give each of them both forms.
 * Property names are ours; the wire's own are in the codecs alone. Only text is supported: decoders refuse images and sound.
 *
 * Also here: the one error of all codecs, and the length checks that both forms share.
 */

/** Numbers with a name. The wire has int64; ids and counts fit in 32 bits, and decoders refuse what does not. */
export type Tensor =
  | { readonly dtype: 'float32'; readonly data: Float32Array; readonly shape?: readonly number[] }
  | { readonly dtype: 'int64'; readonly data: Int32Array; readonly shape?: readonly number[] };

export type Tensors = Readonly<Record<string, Tensor>>;

/**
 * One training row. `tokens` are all but the last token of a sequence and `inputs.target_tokens` all but the first, so that position i
 * of every input belongs to the token that follows tokens[i].
 */
export interface Datum {
  readonly tokens: Int32Array;
  /** By the wire's names: target_tokens, weights, logprobs, advantages. */
  readonly inputs: Tensors;
}

export interface PassRequest {
  readonly modelId: string;
  /** 1, 2, 3 … for each model: the order of requests, and what tells a repetition from a new one. */
  readonly seqId: number | undefined;
  readonly data: readonly Datum[];
  readonly loss: string;
  readonly lossSettings: Readonly<Record<string, number>>;
  /** Without a gradient. */
  readonly forwardOnly: boolean;
}

export interface PassResult {
  readonly outputType: string;
  /** One for each datum; `logprobs` of every position among them. */
  readonly outputs: readonly Tensors[];
  /** By the wire's names, such as `loss:sum`: the name, and how values of several chunks are combined. */
  readonly metrics: Readonly<Record<string, number>>;
}

/** The weights to sample from. */
export type SampleSource =
  | { readonly kind: 'session'; readonly samplingSessionId: string; readonly seqId: number | string }
  | { readonly kind: 'base'; readonly baseModel: string }
  | { readonly kind: 'path'; readonly path: string };

export interface SampleCall {
  readonly source: SampleSource;
  readonly prompt: Int32Array;
  readonly count: number;
  readonly maxTokens: number | undefined;
  readonly seed: number | undefined;
  readonly temperature: number;
  /** −1: no truncation. */
  readonly topK: number;
  readonly topP: number;
  /** Ids or texts, never both. */
  readonly stop: readonly number[] | readonly string[];
  readonly wantsPromptLogprobs: boolean;
}

export interface SampledSequence {
  readonly stopReason: 'stop' | 'length';
  readonly tokens: Int32Array;
  readonly logprobs: Float32Array | undefined;
}

export interface SampleReply {
  readonly sequences: readonly SampledSequence[];
  /** NaN for the first token, which nothing predicts. */
  readonly promptLogprobs?: Float32Array | undefined;
}

export const PROTOBUF = 'application/x-protobuf';

/**
 * A body that is not what it should be: where in the body, what was expected there and what was found. The receiver says it in its own
 * terms: a client, that the server garbled its reply; a server, that the request is refused.
 */
export class WireError extends Error {
  override readonly name = 'WireError';

  /** `where`: such as `data[3].loss_fn_inputs.advantages`; empty for the whole body. */
  constructor(where: string, expected: string, found: string) {
    super(`${where === '' ? 'the body' : where}: expected ${expected}, found ${found}`);
  }
}

const LONGEST_SHOWN = 60;

/** A value as an error shows it: short, whatever was sent. */
export function shown(value: unknown): string {
  if (value === undefined) return 'nothing';
  if (value === null) return 'null';
  if (Array.isArray(value)) return `an array of ${value.length}`;
  if (typeof value === 'object') return 'an object';
  if (typeof value !== 'string') return String(value);
  return JSON.stringify(value.length > LONGEST_SHOWN ? `${value.slice(0, LONGEST_SHOWN)}…` : value);
}

/** No shape means one dimension. */
export function checkShape({ shape, data }: Tensor, where: string): void {
  if (shape === undefined) return;
  const bad = shape.find((size) => !Number.isSafeInteger(size) || size < 0);
  if (bad !== undefined) throw new WireError(`${where}.shape`, 'sizes of 0 or more', String(bad));
  if (shape.reduce((product, size) => product * size, 1) === data.length) return;
  throw new WireError(`${where}.shape`, `a shape of ${data.length} numbers`, `[${shape.slice(0, 8).join(', ')}]`);
}

/** With one missing, every log-probability after the gap would belong to another token. */
export function checkLogprobs({ tokens, logprobs }: SampledSequence, where: string): void {
  if (logprobs === undefined || logprobs.length === tokens.length) return;
  throw new WireError(`${where}.logprobs`, `one for each of ${tokens.length} tokens`, String(logprobs.length));
}

/** Chunks of one text follow each other without anything between them. */
export function joinTokens(chunks: readonly Int32Array[]): Int32Array {
  if (chunks.length === 1) return chunks[0]!;
  const all = new Int32Array(chunks.reduce((sum, chunk) => sum + chunk.length, 0));
  let at = 0;
  for (const chunk of chunks) {
    all.set(chunk, at);
    at += chunk.length;
  }
  return all;
}
