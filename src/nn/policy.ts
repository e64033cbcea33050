/**
 * The embedded model: a small Llama that is sampled and trained in this process, on worker threads over one shared memory.
 *
 * It is both an Engine and a Trainer. Training verbs run one after another in the order they were called; sampling goes on beside
 * them, always from the weights that were last published, never from those being trained. Results do not depend on the number of
 * threads, on batching or on timing. Knows nothing about text.
 */
import { availableParallelism } from 'node:os';
import type {
  AdamSettings,
  Engine,
  ForwardBackwardResult,
  Loss,
  SampleRequest,
  SampleResult,
  Trainer,
} from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Sample } from '../core/types.ts';
import { type Arena, LANES, planArena } from './arena.ts';
import { checkSample } from './check-sample.ts';
import { type ConfigFile, readConfig, readOptimizer, readWeights, writeCheckpoint } from './checkpoint.ts';
import { bestVariant, compileKernels } from './compile.ts';
import { configJson, type LlamaConfig, parseConfig } from './config.ts';
import { initialWeights } from './initial-weights.ts';
import { forwardBackwardBatch, forwardBatch } from './lanes.ts';
import { type Layout, planLayout } from './layout.ts';
import { adamStep } from './optimizer.ts';
import { WorkerPlacement } from './placement.ts';
import { checkRequest } from './request.ts';
import type { KernelVariant } from './wasm.ts';
import { WorkerPool } from './worker-pool.ts';

export interface ThreadOptions {
  /** Worker threads; results do not depend on it. By default the machine's cores, at most 4. */
  readonly threads?: number | undefined;
  /** Which build of the kernels; by default the fastest the machine accepts. */
  readonly variant?: KernelVariant | undefined;
}

const DEFAULT_MAX_THREADS = 4;

export class EmbeddedModel implements Engine, Trainer, AsyncDisposable {
  readonly #file: ConfigFile;
  readonly #layout: Layout;
  readonly #arena: Arena;
  readonly #memory: WebAssembly.Memory;
  readonly #pool: WorkerPool;
  readonly #placement: WorkerPlacement;
  /** The end of the last training verb. */
  #training: Promise<unknown> = Promise.resolve();
  #steps = 0;
  #hasReference = false;
  #policyVersion = 0;

  /** Loads a model folder and serves it as version 0; its optimizer state, if any, is read by `load`. */
  static async open({ dir, ...options }: { readonly dir: string } & ThreadOptions): Promise<EmbeddedModel> {
    const file = await readConfig(dir);
    const weights = await readWeights(dir, planLayout(file.config));
    return EmbeddedModel.#start(file, weights, options);
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
    const count = threads ?? Math.min(availableParallelism(), DEFAULT_MAX_THREADS);
    if (!Number.isSafeInteger(count) || count < 1) {
      throw new TrainyardError('USAGE', `threads is ${count}, expected a whole number of at least 1`);
    }
    this.#file = file;
    this.#layout = planLayout(file.config);
    this.#arena = planArena(file.config, this.#layout, count);
    this.#memory = reserve(this.#arena.pages);
    this.#fillRopeTables();
    const setup = { memory: this.#memory, compiled: compileKernels(variant), config: file.config, arena: this.#arena };
    this.#pool = new WorkerPool(Array.from({ length: count }, (_, index) => ({ ...setup, index })));
    this.#placement = new WorkerPlacement(count);
  }

  get config(): LlamaConfig {
    return this.#file.config;
  }

  get vocabSize(): number {
    return this.config.vocabSize;
  }

  get contextLength(): number {
    return this.config.contextLength;
  }

  /** The version that is being served. */
  get policyVersion(): number {
    return this.#policyVersion;
  }

  async sample(request: SampleRequest, signal?: AbortSignal): Promise<SampleResult> {
    checkRequest(request, this.config);
    if (signal?.aborted) throw new TrainyardError('CANCELLED', 'the sample call was cancelled before it began');
    const worker = this.#placement.enter(request.affinity);
    const { answer, cancel } = this.#pool.start(worker, 'sample', { request }, 'ENGINE_FAILED');
    signal?.addEventListener('abort', cancel, { once: true });
    try {
      return await answer;
    } finally {
      signal?.removeEventListener('abort', cancel);
      this.#placement.leave(worker);
    }
  }

  forward(samples: readonly Sample[], weights: 'current' | 'reference' = 'current'): Promise<Float32Array[]> {
    return this.#inTurn(async () => {
      samples.forEach((sample, i) => {
        checkSample(sample, i, this.config);
      });
      if (weights === 'reference' && !this.#hasReference) {
        throw new TrainyardError('TRAINER_FAILED', 'there are no reference weights', { hint: 'call freezeReference() first' });
      }
      const { parameters, reference } = this.#arena;
      return forwardBatch(this.#pool, this.#arena, weights === 'current' ? parameters : reference, samples);
    });
  }

  forwardBackward(samples: readonly Sample[], loss: Loss): Promise<ForwardBackwardResult> {
    return this.#inTurn(async () => {
      samples.forEach((sample, i) => {
        checkSample(sample, i, this.config);
      });
      try {
        return await forwardBackwardBatch(this.#pool, this.#arena, samples, loss);
      } catch (thrown) {
        this.#clearGradient();
        throw thrown;
      }
    });
  }

  optimStep(adam: AdamSettings): Promise<{ readonly gradNorm: number }> {
    return this.#inTurn(async () => {
      try {
        const result = await adamStep(this.#pool, this.#arena, this.#steps + 1, adam);
        this.#steps++;
        return result;
      } finally {
        this.#clearGradient();
      }
    });
  }

  /** Requests that are running finish under the old version; those that come meanwhile wait for the new one. */
  publish(policyVersion: number): Promise<void> {
    return this.#inTurn(async () => {
      await this.#pool.all('drain', () => ({}), 'ENGINE_FAILED');
      await this.#pool.call(0, 'pack', {}, 'ENGINE_FAILED');
      this.#placement.forget();
      this.#policyVersion = policyVersion;
      await this.#pool.all('serve', () => ({ version: policyVersion }), 'ENGINE_FAILED');
    });
  }

  /** Keeps the current weights as the reference for `forward(…, 'reference')`. */
  freezeReference(): Promise<void> {
    return this.#inTurn(async () => {
      this.#flat(this.#arena.reference).set(this.weights());
      this.#hasReference = true;
    });
  }

  /** Writes config.json, model.safetensors and optimizer.safetensors. */
  save(dir: string): Promise<void> {
    return this.#inTurn(() =>
      writeCheckpoint(dir, this.#file, this.#layout, this.weights(), {
        firstMoments: this.#flat(this.#arena.firstMoments),
        secondMoments: this.#flat(this.#arena.secondMoments),
        step: this.#steps,
      }),
    );
  }

  /** Reads what `save` wrote. What is served changes only with the next `publish`. */
  load(dir: string): Promise<void> {
    return this.#inTurn(async () => {
      const weights = await readWeights(dir, this.#layout);
      const optimizer = await readOptimizer(dir, this.#layout);
      this.weights().set(weights);
      this.#flat(this.#arena.firstMoments).set(optimizer?.firstMoments ?? new Float32Array(this.#layout.length));
      this.#flat(this.#arena.secondMoments).set(optimizer?.secondMoments ?? new Float32Array(this.#layout.length));
      this.#steps = optimizer?.step ?? 0;
      this.#clearGradient();
    });
  }

  /** The weights being trained, in the order of the layout: a live view. */
  weights(): Float32Array {
    return this.#flat(this.#arena.parameters);
  }

  /** The accumulated gradient: a copy. */
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

  #inTurn<T>(verb: () => Promise<T>): Promise<T> {
    const result = this.#training.then(verb);
    this.#training = result.catch(() => undefined);
    return result;
  }

  #flat(address: number): Float32Array {
    return new Float32Array(this.#memory.buffer, address, this.#layout.length);
  }

  #clearGradient(): void {
    new Float32Array(this.#memory.buffer, this.#arena.gradients, LANES * this.#arena.flatLength).fill(0);
  }

  #fillRopeTables(): void {
    const { contextLength, headDim, ropeTheta } = this.config;
    const half = headDim / 2;
    const cosines = new Float32Array(this.#memory.buffer, this.#arena.cosines, contextLength * half);
    const sines = new Float32Array(this.#memory.buffer, this.#arena.sines, contextLength * half);
    for (let position = 0; position < contextLength; position++) {
      for (let j = 0; j < half; j++) {
        const angle = position * ropeTheta ** ((-2 * j) / headDim);
        cosines[position * half + j] = Math.cos(angle);
        sines[position * half + j] = Math.sin(angle);
      }
    }
  }
}

function reserve(pages: number): WebAssembly.Memory {
  try {
    return new WebAssembly.Memory({ initial: pages, maximum: pages, shared: true });
  } catch (cause) {
    throw new TrainyardError(
      'MODEL_INVALID',
      `the machine gives no ${(pages / 16_384).toFixed(1)} GiB of memory for this model`,
      {
        cause,
        hint: 'use fewer threads, a smaller model or a machine with more memory',
      },
    );
  }
}
