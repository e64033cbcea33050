/**
 * The embedded model: a small Llama, sampled and trained in this process on worker threads over one shared memory. It is both an Engine and
 * a Trainer. Training calls run one after another, in call order; sampling continues meanwhile, always from the weights last published,
 * never from those being trained. Results do not depend on threads, batching or timing. Knows nothing about text.
 */
import { availableParallelism } from 'node:os';
import { Mutex, yieldToEventLoop } from '../core/async.ts';
import { TrainyardError } from '../core/errors.ts';
import type {
  AdamSettings,
  Engine,
  ForwardBackwardResult,
  Loss,
  OnTokens,
  SampleRequest,
  SampleResult,
  Trainer,
} from '../core/policy.ts';
import { checkRequest, checkSample } from '../core/policy.ts';
import type { Sample } from '../core/types.ts';
import { type Arena, LANES, planArena } from './arena.ts';
import { bestVariant, compileKernels } from './compile.ts';
import { configJson, type Layout, type LlamaConfig, parseConfig, planLayout } from './config.ts';
import { type ConfigFile, readConfig, readOptimizer, readWeights, writeCheckpoint } from './model-files.ts';
import { initialWeights } from './random.ts';
import { adamStep, forwardBackwardBatch, forwardBatch } from './train-step.ts';
import type { KernelVariant } from './wasm.ts';
import { reserveMemory } from './wasm.ts';
import { type OnToken, WorkerPlacement, WorkerPool } from './worker-pool.ts';

/** How much is checked before other work gets a turn: a few milliseconds. */
const TOKENS_AT_ONCE = 50_000;

export interface ThreadOptions {
  /** Worker threads; results do not depend on it. Default `defaultThreads()`. */
  readonly threads?: number | undefined;
  /** Which build of the kernels; default: the fastest the machine accepts. */
  readonly variant?: KernelVariant | undefined;
}

/** The machine's cores, at most one per gradient lane: more could not train, and would only split the sampler's batches. */
export function defaultThreads(): number {
  return Math.min(availableParallelism(), LANES);
}

export class EmbeddedModel implements Engine, Trainer, AsyncDisposable {
  readonly constrains = true;
  readonly #variant: KernelVariant;
  readonly #file: ConfigFile;
  readonly #layout: Layout;
  readonly #arena: Arena;
  readonly #memory: WebAssembly.Memory;
  readonly #pool: WorkerPool;
  readonly #placement: WorkerPlacement;
  /** Resolves when the last training call has ended. */
  #training = new Mutex();
  /** Number of gradient lanes in use; the others are zero. */
  #lanes = 0;
  #steps = 0;
  /** Whether the last forwardBackward failed, which leaves an incomplete gradient. */
  #isSpoiled = false;
  #hasReference = false;
  #savedVariant: KernelVariant | undefined;
  #policyVersion = 0;

  /** Loads a model folder and serves it as version 0. `load` reads the optimizer state, if there is any. */
  static async open({ dir, ...options }: { readonly dir: string } & ThreadOptions): Promise<EmbeddedModel> {
    const file = await readConfig(dir);
    const { weights, variant } = await readWeights(dir, planLayout(file.config));
    const model = await EmbeddedModel.#start(file, weights, options);
    model.#savedVariant = variant;
    return model;
  }

  /** A model with random weights. */
  static async create({
    config,
    seed,
    ...options
  }: { readonly config: LlamaConfig; readonly seed: number } & ThreadOptions): Promise<EmbeddedModel> {
    const source = configJson(config);
    const file = { config: parseConfig(source), source };
    return EmbeddedModel.#start(file, initialWeights(config, planLayout(config), seed), options);
  }

  static async #start(file: ConfigFile, weights: Float32Array, options: ThreadOptions): Promise<EmbeddedModel> {
    const model = new EmbeddedModel(file, options);
    model.weights().set(weights);
    try {
      await model.publish(0);
    } catch (thrown) {
      await model.close();
      throw thrown;
    }
    return model;
  }

  private constructor(file: ConfigFile, { threads, variant = bestVariant() }: ThreadOptions) {
    const count = threads ?? defaultThreads();
    if (!Number.isSafeInteger(count) || count < 1) {
      throw new TrainyardError('USAGE', `threads is ${count}, expected a whole number of at least 1`);
    }
    this.#variant = variant;
    this.#file = file;
    this.#layout = planLayout(file.config);
    this.#arena = planArena(file.config, this.#layout, count);
    this.#memory = reserveMemory(this.#arena, file.config);
    const setup = { memory: this.#memory, compiled: compileKernels(variant), config: file.config, arena: this.#arena };
    this.#pool = new WorkerPool(Array.from({ length: count }, (_, index) => ({ ...setup, index })));
    this.#placement = new WorkerPlacement(count);
  }

  get config(): LlamaConfig {
    return this.#file.config;
  }

  /** The kernel build; the same build gives results that are equal to the byte. */
  get variant(): KernelVariant {
    return this.#variant;
  }

  /** The build that computed the weights last opened or loaded, if their file says so. */
  get savedVariant(): KernelVariant | undefined {
    return this.#savedVariant;
  }

  get vocabSize(): number {
    return this.config.vocabSize;
  }

  get contextLength(): number {
    return this.config.contextLength;
  }

  get policyVersion(): number {
    return this.#policyVersion;
  }

  async sample(request: SampleRequest, signal?: AbortSignal, onTokens?: OnTokens): Promise<SampleResult> {
    checkRequest(request, this.config);
    if (signal?.aborted) throw new TrainyardError('CANCELLED', 'the sample call was cancelled before it began');
    const worker = this.#placement.enter(request.affinity);
    const cutOff = Promise.withResolvers<SampleResult>();
    const ids: number[] = [];
    const logprobs: number[] = [];
    const listener: OnToken = (newIds, newLogprobs) => {
      const enough = onTokens!(newIds, newLogprobs);
      ids.push(...newIds.subarray(0, enough?.keep));
      logprobs.push(...newLogprobs.subarray(0, enough?.keep));
      if (enough === undefined) return;
      // The version cannot change during this call: `publish` waits for it.
      const { policyVersion } = this;
      const kept = { ids: Int32Array.from(ids), logprobs: Float32Array.from(logprobs) };
      cutOff.resolve({ ...kept, stopReason: 'stop', policyVersion });
      cancel();
    };
    const { answer, cancel } = this.#pool.start(
      worker,
      'sample',
      { request, stream: onTokens !== undefined },
      'ENGINE_FAILED',
      onTokens && listener,
    );
    signal?.addEventListener('abort', cancel, { once: true });
    try {
      return await Promise.race([cutOff.promise, answer]);
    } finally {
      signal?.removeEventListener('abort', cancel);
      this.#placement.leave(worker);
    }
  }

  forward(samples: readonly Sample[], weights: 'current' | 'reference' = 'current'): Promise<Float32Array[]> {
    return this.#training.run(async () => {
      await this.#check(samples);
      if (weights === 'reference' && !this.#hasReference) {
        throw new TrainyardError('TRAINER_FAILED', 'there are no reference weights', { hint: 'call freezeReference() first' });
      }
      const { parameters, reference } = this.#arena;
      return forwardBatch(this.#pool, this.#arena, weights === 'current' ? parameters : reference, samples);
    });
  }

  forwardBackward(samples: readonly Sample[], loss: Loss): Promise<ForwardBackwardResult> {
    return this.#training.run(async () => {
      this.#isSpoiled = true;
      await this.#check(samples);
      try {
        const { lanes, ...result } = await forwardBackwardBatch(this.#pool, this.#arena, samples, loss);
        this.#lanes = Math.max(this.#lanes, lanes);
        this.#isSpoiled = false;
        return result;
      } catch (thrown) {
        this.#clearGradient();
        throw thrown;
      }
    });
  }

  optimStep(adam: AdamSettings): Promise<{ readonly gradNorm: number }> {
    return this.#training.run(async () => {
      if (this.#isSpoiled) {
        this.#clearGradient();
        throw new TrainyardError('TRAINER_FAILED', 'the forwardBackward before this optimStep failed, so there is no gradient', {
          hint: 'weights are unchanged and the accumulated gradient is cleared; call forwardBackward again with the whole batch',
        });
      }
      try {
        const result = await adamStep(this.#pool, this.#arena, this.#lanes, this.#steps + 1, adam);
        this.#steps++;
        this.#lanes = 0;
        return result;
      } catch (thrown) {
        this.#clearGradient();
        throw thrown;
      }
    });
  }

  /** Resets the accumulated gradient to zero. */
  dropGradient(): Promise<void> {
    return this.#training.run(async () => this.#clearGradient());
  }

  /**
   * Running requests finish under the old version, because a turn has only one; all others, including new ones, wait for the new version.
   * So this takes as long as the longest running request has left, whatever else arrives.
   */
  publish(policyVersion: number): Promise<void> {
    return this.#training.run(async () => {
      await this.#pool.all('drain', () => ({}), 'ENGINE_FAILED');
      await this.#pool.call(0, 'pack', {}, 'ENGINE_FAILED');
      this.#placement.forget();
      this.#policyVersion = policyVersion;
      await this.#pool.all('serve', () => ({ version: policyVersion }), 'ENGINE_FAILED');
    });
  }

  /** All state is in the folder itself. */
  async forget(): Promise<void> {}

  freezeReference(): Promise<void> {
    return this.#training.run(async () => {
      this.#flat(this.#arena.reference).set(this.weights());
      this.#hasReference = true;
    });
  }

  /** Writes config.json, model.safetensors and, unless told not to, optimizer.safetensors. */
  save(dir: string, { optimizer = true }: { readonly optimizer?: boolean } = {}): Promise<void> {
    return this.#training.run(() =>
      writeCheckpoint(
        dir,
        { ...this.#file, layout: this.#layout, weights: this.weights(), variant: this.#variant },
        optimizer
          ? {
              firstMoments: this.#flat(this.#arena.firstMoments),
              secondMoments: this.#flat(this.#arena.secondMoments),
              step: this.#steps,
            }
          : undefined,
      ),
    );
  }

  /** Reads what `save` wrote; the optimizer starts fresh if its state is missing or not wanted. The served weights stay until `publish`. */
  load(dir: string, { optimizer: wantsOptimizer = true }: { readonly optimizer?: boolean } = {}): Promise<void> {
    return this.#training.run(async () => {
      const { weights, variant } = await readWeights(dir, this.#layout);
      const optimizer = wantsOptimizer ? await readOptimizer(dir, this.#layout) : undefined;
      this.weights().set(weights);
      this.#savedVariant = variant;
      this.#flat(this.#arena.firstMoments).set(optimizer?.firstMoments ?? new Float32Array(this.#layout.length));
      this.#flat(this.#arena.secondMoments).set(optimizer?.secondMoments ?? new Float32Array(this.#layout.length));
      this.#steps = optimizer?.step ?? 0;
      this.#isSpoiled = false;
      this.#clearGradient();
    });
  }

  /** The weights being trained, in layout order: a live view. */
  weights(): Float32Array {
    return this.#flat(this.#arena.parameters);
  }

  /** A copy of the accumulated gradient. */
  gradient(): Float32Array {
    const sum = new Float32Array(this.#layout.length);
    for (let lane = 0; lane < LANES; lane++) {
      this.#flat(this.#arena.gradients + lane * this.#arena.flatLength * 4).forEach((g, i) => {
        sum[i]! += g;
      });
    }
    return sum;
  }

  /** Ends the threads; calls in flight reject. Idempotent. */
  close(): Promise<void> {
    return this.#pool.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Processes large batches in pieces, yielding between them and before whatever comes next. */
  async #check(samples: readonly Sample[]): Promise<void> {
    let unbroken = 0;
    for (const [i, sample] of samples.entries()) {
      checkSample(sample, i, this.config);
      unbroken += sample.tokens.length;
      if (unbroken < TOKENS_AT_ONCE) continue;
      unbroken = 0;
      await yieldToEventLoop();
    }
  }

  #flat(address: number): Float32Array {
    return new Float32Array(this.#memory.buffer, address, this.#layout.length);
  }

  /** After a failure, any lane may hold data. */
  #clearGradient(): void {
    this.#lanes = 0;
    new Float32Array(this.#memory.buffer, this.#arena.gradients, LANES * this.#arena.flatLength).fill(0);
  }
}
