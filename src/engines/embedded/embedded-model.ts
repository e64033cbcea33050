/**
 * The embedded model: a small Llama, sampled and trained in this process on worker threads over one shared memory. It is both an Engine and
 * a Trainer. Training calls run one after another, in call order; sampling continues meanwhile, always from the weights last published,
 * never from those being trained. Results do not depend on threads, batching or timing. Knows nothing about text.
 */
import { availableParallelism } from 'node:os';
import { resolve } from 'node:path';
import { Mutex, yieldToEventLoop } from '../../core/async.ts';
import { TrainyardError } from '../../core/errors.ts';
import type {
  AdamSettings,
  Engine,
  ForwardBackwardResult,
  Loss,
  ModelPlan,
  OnTokens,
  SampleRequest,
  SampleResult,
  Trainer,
} from '../../core/policy.ts';
import { checkRequest, checkSample } from '../../core/policy.ts';
import type { Sample } from '../../core/types.ts';
import { type Arena, MOST_LANES, planArena, planText } from './arena.ts';
import { bestVariant, compileKernels } from './compile.ts';
import { fillServed } from './frozen-weights.ts';
import { type LoraChoice, type LoraLayout, type LoraSettings, loraFor, planLora } from './lora.ts';
import { boundedContext, configJson, type Flat, type Layout, type LlamaConfig, parseConfig, planLayout } from './model/config.ts';
import {
  type AdapterBase,
  checkSameLora,
  type FindBase,
  readAdapterConfig,
  readOptimizer,
  readTrained,
  readWeights,
  writeAdapter,
  writeCheckpoint,
} from './model/model-files.ts';
import { checkTensors, type ModelSource, memorySource, openSource, sourceDigest } from './model/model-source.ts';
import { initialAdapters, initialWeights } from './random.ts';
import { adamStep, forwardBackwardBatch, forwardBatch } from './train-step.ts';
import { type KernelVariant, loadKernels, reserveMemory } from './wasm.ts';
import { type OnToken, WorkerPlacement, WorkerPool } from './worker-pool.ts';

/** How much is checked before other work gets a turn: a few milliseconds. */
const TOKENS_AT_ONCE = 50_000;

export interface ThreadOptions {
  /** The most worker threads; results do not depend on it. Fewer if memory has no room. Default `defaultThreads()`. */
  readonly threads?: number | undefined;
  /** Which build of the kernels; default: the fastest the machine accepts. */
  readonly variant?: KernelVariant | undefined;
}

export interface UseOptions extends ThreadOptions {
  /** A model for sampling needs memory for its weights once, and for nothing of training. Default `training`. */
  readonly use?: 'sampling' | 'training' | undefined;
  /** The most tokens of a prompt and its answer, at most what the model was made for; memory grows with it. */
  readonly context?: number | undefined;
  /** Trains adapters and leaves the weights as they are. Without it, all parameters are trained. A folder with an adapter has its own. */
  readonly lora?: LoraChoice | undefined;
  /** Publishing waits for no running request, for the memory of what is served once more. Default false. */
  readonly overlap?: boolean | undefined;
  /** Of an adapter's first weights. */
  readonly seed?: number | undefined;
  readonly findBase?: FindBase | undefined;
}

/** The machine's cores, at most one per gradient lane: more could not train, and would only split the sampler's batches. */
export function defaultThreads(): number {
  return Math.min(availableParallelism(), MOST_LANES);
}

/** What a model is, before anything of it is in memory. */
interface ModelParts {
  readonly source: ModelSource;
  /** As the file has it: the context may be larger than the one in use. */
  readonly config: LlamaConfig;
  readonly lora: LoraSettings | undefined;
  readonly base: AdapterBase | undefined;
}

function arenaFor(config: LlamaConfig, lora: LoraSettings | undefined, options: UseOptions): Arena {
  const { threads = defaultThreads(), use = 'training', context, overlap } = options;
  const bounded = { ...config, contextLength: boundedContext(config, context) };
  const shape = { config: bounded, layout: planLayout(config), lora: lora && planLora(config, lora) };
  return planArena({ ...shape, use, threads, overlap });
}

export class EmbeddedModel implements Engine, Trainer, AsyncDisposable {
  readonly constrains = true;
  readonly config: LlamaConfig;
  readonly vocabSize: number;
  readonly contextLength: number;
  readonly #options: UseOptions;
  readonly #variant: KernelVariant;
  readonly #parts: Omit<ModelParts, 'source'> & { readonly fields: ModelSource['fields'] };
  readonly #layout: Layout;
  readonly #lora: LoraLayout | undefined;
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
  #policyVersion = 0;
  /** Where the served weights are. */
  #area = 0;

  /** Loads a model folder, a .gguf file or a folder with an adapter, and serves it as version 0. `load` reads the optimizer's state. */
  static async open({ dir, ...options }: { readonly dir: string } & UseOptions): Promise<EmbeddedModel> {
    const adapter = await readAdapterConfig(dir, options.findBase);
    await using source = await openSource(adapter?.base ?? dir);
    const config = parseConfig(source.fields);
    const lora = adapter?.settings ?? (options.use === 'sampling' ? undefined : loraFor(options.lora, config));
    if (typeof options.lora === 'object') checkSameLora(dir, adapter?.settings, options.lora);
    // First of all: config.json may claim any size. Then, before its files are read, whether the model fits.
    checkTensors(source, planLayout(config));
    arenaFor(config, lora, options);
    const digest = lora === undefined ? '' : await sourceDigest(source);
    const base = lora && { path: resolve(adapter?.base ?? dir), digest, source: source.fields };
    const model = await EmbeddedModel.#start({ source, config, lora, base }, options);
    try {
      if (adapter !== undefined) {
        await model.load(dir, { optimizer: false });
        await model.publish(0);
      }
      return model;
    } catch (thrown) {
      await model.close();
      throw thrown;
    }
  }

  /** A model with random weights. */
  static async create({
    config,
    seed,
    ...options
  }: { readonly config: LlamaConfig; readonly seed: number } & UseOptions): Promise<EmbeddedModel> {
    const fields = configJson(config);
    const parsed = parseConfig(fields);
    const layout = planLayout(parsed);
    const source = memorySource(fields, layout, initialWeights(parsed, layout, seed));
    const lora = loraFor(options.lora, parsed);
    const base = lora && { path: 'memory', digest: '', source: fields };
    return EmbeddedModel.#start({ source, config: parsed, lora, base }, { ...options, seed });
  }

  static async #start(parts: ModelParts, options: UseOptions): Promise<EmbeddedModel> {
    const model = new EmbeddedModel(parts, options);
    try {
      await model.#fill(parts.source);
      await model.publish(0);
    } catch (thrown) {
      await model.close();
      throw thrown;
    }
    return model;
  }

  private constructor({ source, config, lora, base }: ModelParts, options: UseOptions) {
    const { variant = bestVariant(), context } = options;
    this.#options = options;
    this.#variant = variant;
    this.#parts = { config, lora, base, fields: source.fields };
    this.config = { ...config, contextLength: boundedContext(config, context) };
    this.vocabSize = this.config.vocabSize;
    this.contextLength = this.config.contextLength;
    this.#layout = planLayout(config);
    this.#lora = lora && planLora(config, lora);
    this.#arena = arenaFor(config, lora, options);
    const setup = { config: this.config, lora: this.#lora };
    this.#memory = reserveMemory(this.#arena, this.config);
    const shared = { ...setup, memory: this.#memory, compiled: compileKernels(variant), arena: this.#arena };
    const { workers } = this.#arena;
    this.#pool = new WorkerPool(workers.map((_, index) => ({ ...shared, index })));
    this.#placement = new WorkerPlacement(workers.length);
  }

  /** The weights as they are in the source: what is trained, or what stays as it is. */
  async #fill(source: ModelSource): Promise<void> {
    const { config } = this;
    if (this.#isWhole) {
      this.weights().set(await readWeights(source, this.#layout));
      return;
    }
    const kernels = loadKernels(compileKernels(this.#variant), this.#memory);
    const { buffer } = this.#memory;
    await fillServed(source, { kernels, buffer, config, arena: this.#arena });
    if (this.#lora !== undefined) this.weights().set(initialAdapters(this.#lora, this.#options.seed ?? 1));
  }

  /** Whether all parameters are trained. */
  get #isWhole(): boolean {
    return this.#lora === undefined && this.#options.use !== 'sampling';
  }

  get #flatLayout(): Flat {
    return this.#lora ?? this.#layout;
  }

  get plan(): ModelPlan {
    const { sizes, pages } = this.#arena;
    const trained = this.#options.use === 'sampling' ? 0 : this.#flatLayout.length;
    return {
      parameters: this.#layout.length,
      trained,
      ...(this.#lora && { loraRank: this.#lora.rank }),
      context: this.contextLength,
      bytes: pages * 65_536,
      text: planText(sizes),
    };
  }

  /** The kernel build; the same build gives results that are equal to the byte. */
  get variant(): KernelVariant {
    return this.#variant;
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
    const listener: OnToken = (newIds, newLogprobs, policyVersion) => {
      const enough = onTokens!(newIds, newLogprobs);
      ids.push(...newIds.subarray(0, enough?.keep));
      logprobs.push(...newLogprobs.subarray(0, enough?.keep));
      if (enough === undefined) return;
      const kept = { ids: Int32Array.from(ids), logprobs: Float32Array.from(logprobs) };
      cutOff.resolve({ ...kept, stopReason: 'stop', policyVersion });
      cancel();
    };
    const asked = { request, stream: onTokens !== undefined };
    const { answer, cancel } = this.#pool.start(worker, 'sample', asked, 'ENGINE_FAILED', onTokens && listener);
    signal?.addEventListener('abort', cancel, { once: true });
    try {
      return await Promise.race([cutOff.promise, answer]);
    } finally {
      signal?.removeEventListener('abort', cancel);
      this.#placement.leave(worker);
    }
  }

  forward(samples: readonly Sample[], weights: 'current' | 'reference' = 'current'): Promise<Float32Array[]> {
    return this.#train(async () => {
      await this.#check(samples);
      if (weights === 'reference' && !this.#hasReference) {
        throw new TrainyardError('TRAINER_FAILED', 'there are no reference weights', 'call freezeReference() first');
      }
      const { parameters, reference } = this.#arena;
      return forwardBatch(this.#pool, this.#arena, weights === 'current' ? parameters : reference, samples);
    });
  }

  forwardBackward(samples: readonly Sample[], loss: Loss): Promise<ForwardBackwardResult> {
    return this.#train(async () => {
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
    return this.#train(async () => {
      if (this.#isSpoiled) {
        this.#clearGradient();
        throw new TrainyardError(
          'TRAINER_FAILED',
          'the forwardBackward before this optimStep failed, so there is no gradient',
          'weights are unchanged and the accumulated gradient is cleared; call forwardBackward again with the whole batch',
        );
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
    return this.#train(async () => this.#forgetGradient());
  }

  /**
   * Running requests finish under the version they began with, because a turn has only one. With `overlap` nobody waits for them, except
   * for those of the version before the one being served. Without, all others wait for the new version: this takes as long as the longest
   * running request has left, whatever else arrives.
   */
  publish(policyVersion: number): Promise<void> {
    return this.#training.run(async () => {
      const area = (this.#area + 1) % this.#arena.areas.length;
      await this.#pool.all('drain', () => ({ area }), 'ENGINE_FAILED');
      await this.#pool.call(0, 'pack', { area }, 'ENGINE_FAILED');
      this.#placement.forget();
      this.#policyVersion = policyVersion;
      this.#area = area;
      await this.#pool.all('serve', () => ({ version: policyVersion, area }), 'ENGINE_FAILED');
    });
  }

  /** All state is in the folder itself. */
  async forget(): Promise<void> {}

  freezeReference(): Promise<void> {
    return this.#train(async () => {
      this.#flat(this.#arena.reference).set(this.weights());
      this.#hasReference = true;
    });
  }

  /** Writes a model folder, or the adapter as a PEFT folder, and, unless told not to, optimizer.safetensors. */
  save(dir: string, { optimizer = true }: { readonly optimizer?: boolean } = {}): Promise<void> {
    return this.#train(async () => {
      const state = {
        firstMoments: this.#flat(this.#arena.firstMoments),
        secondMoments: this.#flat(this.#arena.secondMoments),
        step: this.#steps,
      };
      const { config, fields: source, lora: settings, base } = this.#parts;
      const saved = { weights: this.weights(), variant: this.#variant };
      if (this.#lora === undefined) {
        await writeCheckpoint(dir, { config, source, layout: this.#layout, ...saved }, optimizer ? state : undefined);
      } else {
        const adapter = { settings: settings!, base: base!, layout: this.#lora, ...saved };
        await writeAdapter(dir, adapter, optimizer ? state : undefined);
      }
    });
  }

  /**
   * Reads what `save` wrote; the optimizer starts fresh if its state is missing or not wanted. The served weights stay until `publish`. With
   * adapters, the base itself can be loaded too: then they start afresh.
   */
  load(dir: string, { optimizer: wantsOptimizer = true }: { readonly optimizer?: boolean } = {}): Promise<void> {
    return this.#training.run(async () => {
      const trains = this.#options.use !== 'sampling';
      const { lora: settings, base } = this.#parts;
      const fresh = () => initialAdapters(this.#lora!, this.#options.seed ?? 1);
      const adapters = this.#lora && { layout: this.#lora, settings: settings!, base: base!, fresh };
      const weights = await readTrained(dir, trains ? this.#layout : undefined, adapters);
      const optimizer = trains && wantsOptimizer ? await readOptimizer(dir, this.#flatLayout) : undefined;
      this.weights().set(weights);
      if (!trains) return;
      this.#flat(this.#arena.firstMoments).set(optimizer?.firstMoments ?? new Float32Array(this.#flatLayout.length));
      this.#flat(this.#arena.secondMoments).set(optimizer?.secondMoments ?? new Float32Array(this.#flatLayout.length));
      this.#steps = optimizer?.step ?? 0;
      this.#forgetGradient();
    });
  }

  /** What is trained, all parameters or the adapters, in layout order: a live view. Empty if there is neither. */
  weights(): Float32Array {
    return this.#flat(this.#arena.parameters);
  }

  /** A copy of the accumulated gradient. */
  gradient(): Float32Array {
    const sum = new Float32Array(this.#flatLayout.length);
    for (let lane = 0; lane < this.#lanes; lane++) {
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

  /** A call that needs what a model for sampling does not have. */
  #train<T>(work: () => Promise<T>): Promise<T> {
    return this.#training.run(async () => {
      if (this.#options.use !== 'sampling') return await work();
      throw new TrainyardError(
        'TRAINER_FAILED',
        'this model was opened for sampling, so it cannot be trained or saved',
        "open it with use: 'training'",
      );
    });
  }

  #flat(address: number): Float32Array {
    return new Float32Array(this.#memory.buffer, address, Math.min(this.#flatLayout.length, this.#arena.flatLength));
  }

  /** After a failure, any lane may hold data. */
  #forgetGradient(): void {
    this.#isSpoiled = false;
    this.#clearGradient();
  }

  #clearGradient(): void {
    this.#lanes = 0;
    new Float32Array(this.#memory.buffer, this.#arena.gradients, this.#arena.lanes * this.#arena.flatLength).fill(0);
  }
}
