/**
 * The messages between the main thread and the workers of an embedded model. Bulk data is in the shared memory; messages carry addresses
 * and small arrays.
 */
import type { ErrorCode } from '../../core/error-codes.ts';
import type { AdamSettings, SampleRequest, SampleResult } from '../../core/policy.ts';
import type { Arena } from './arena.ts';
import type { LoraLayout } from './lora.ts';
import type { LlamaConfig } from './model/config.ts';
import type { Microbatch } from './train-pass.ts';
import type { CompiledKernels } from './wasm.ts';

export interface WorkerSetup {
  readonly index: number;
  readonly memory: WebAssembly.Memory;
  readonly compiled: CompiledKernels;
  readonly config: LlamaConfig;
  readonly lora: LoraLayout | undefined;
  readonly arena: Arena;
}

/** A range of the flat parameters, in floats. */
export interface Span {
  readonly first: number;
  readonly end: number;
}

/** AdamW's parameters for one step. */
interface AdamStep extends Omit<AdamSettings, 'maxGradNorm'> {
  readonly correction1: number;
  readonly correction2: number;
  readonly gradientScale: number;
}

/** The first tokens of all sequences of a batch, and how many lanes its gradient is summed in. */
interface Trunk {
  readonly weights: number;
  readonly tokens: Int32Array;
  readonly lanes: number;
}

/** One of the arena's areas of served weights. */
interface InArea {
  readonly area: number;
}

/** Each kind of call with its result. */
export interface Calls {
  /** With `stream`, tokens arrive as `StreamedTokens` before the result. */
  sample: { readonly ask: { readonly request: SampleRequest; readonly stream: boolean }; readonly answer: SampleResult };
  /** Resolves when no running request reads the area; if it is the one being served, none is admitted until `serve`. */
  drain: { readonly ask: InArea; readonly answer: undefined };
  /** Fills the area from the current parameters or adapters. All workers must have drained it. */
  pack: { readonly ask: InArea; readonly answer: undefined };
  serve: { readonly ask: InArea & { readonly version: number }; readonly answer: undefined };
  forward: { readonly ask: { readonly weights: number; readonly batch: Microbatch }; readonly answer: Float32Array };
  /** Of the last forward on this worker. */
  backward: { readonly ask: { readonly lane: number; readonly slopes: Float32Array }; readonly answer: undefined };
  /** Computes what the next microbatches, on any worker, stand on. */
  trunk: { readonly ask: Trunk; readonly answer: undefined };
  'trunk-backward': { readonly ask: Trunk; readonly answer: undefined };
  /** Sums of squares of the summed gradient, per span. */
  'sum-lanes': { readonly ask: { readonly spans: readonly Span[]; readonly lanes: number }; readonly answer: readonly number[] };
  /** Also clears the lanes. Returns whether all new weights are finite. */
  adam: {
    readonly ask: { readonly spans: readonly Span[]; readonly lanes: number; readonly step: AdamStep };
    readonly answer: boolean;
  };
}

export type CallKind = keyof Calls;

export type ToWorker =
  | { [K in CallKind]: { readonly kind: K; readonly id: number } & Calls[K]['ask'] }[CallKind]
  | { readonly kind: 'cancel'; readonly id: number };

/** One token for each streaming sequence, from one decode pass. */
export interface StreamedTokens {
  /** Ids of the sample calls. */
  readonly ids: readonly number[];
  /** That sampled them. */
  readonly versions: readonly number[];
  readonly tokens: Int32Array;
  readonly logprobs: Float32Array;
}

export interface CallError {
  readonly code: ErrorCode | undefined;
  readonly message: string;
  readonly hint?: string;
}

export type FromWorker =
  | StreamedTokens
  | { readonly id: number; readonly answer: Calls[CallKind]['answer'] }
  | { readonly id: number; readonly error: CallError };
