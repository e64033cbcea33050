/** What a run samples and trains, wherever that happens: the rest of the run cannot tell. */
import type { Downtime } from '../core/async.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Warn } from '../core/events.ts';
import type { Engine, Trainer } from '../core/policy.ts';
import type { KernelVariant } from '../nn/wasm.ts';
import type { EvalSettings } from './settings.ts';

export interface Policy extends AsyncDisposable {
  /** For people: which model, and where. */
  readonly name: string;
  /** Its address, where it is at a server. */
  readonly server?: string;
  readonly engine: Engine;
  readonly trainer: Trainer;
}

export interface PolicyOptions {
  readonly warn: Warn;
  readonly stop: AbortSignal;
  /** Runs while the policy's server is away. */
  readonly downtime?: Downtime | undefined;
  /** By default the fastest that the machine has. */
  readonly kernels?: KernelVariant | undefined;
}

export type PolicySettings = Pick<EvalSettings, 'engine' | 'model' | 'threads' | 'seed' | 'baseModel' | 'baseURL' | 'loraRank'>;

export function checkVocabulary(words: number, vocabSize: number): void {
  if (words <= vocabSize) return;
  throw new TrainyardError('MODEL_INVALID', `the tokenizer has ${words} tokens, the model ${vocabSize}`, {
    hint: 'tokenizer.json and config.json must be of the same model',
  });
}
