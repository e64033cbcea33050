/**
 * The models that are sampled from: a few, each holding one set of weights at a time. A call is given the one that holds its weights;
 * otherwise an idle one loads them, the one that was longest without a call; otherwise another is opened; otherwise the call waits.
 *
 * Weights are told apart by the id they were saved with, never by their name or place. An instance changes its weights only while
 * nobody uses it, so that a call sees one set of weights from its beginning to its end.
 */
import type { EmbeddedModel } from '../../nn/policy.ts';
import { ApiError } from './api-error.ts';

export interface Weights {
  readonly id: string;
  readonly folder: string;
  /** Throws unless these are still the weights in the folder. Asked before and after they are loaded. */
  check(): Promise<void>;
}

interface Instance {
  readonly opened: Promise<EmbeddedModel>;
  /** Settled when the weights of `holds` are served. */
  ready: Promise<EmbeddedModel>;
  holds: string | undefined;
  calls: number;
  lastUsed: number;
  loads: number;
}

export interface SamplerPoolOptions {
  readonly most: number;
  readonly waitMs: number;
  /** Opens a model with the base weights. */
  open(): Promise<EmbeddedModel>;
}

export class SamplerPool implements AsyncDisposable {
  readonly #options: SamplerPoolOptions;
  readonly #instances: Instance[] = [];
  readonly #waiting: (() => void)[] = [];
  #uses = 0;

  constructor(options: SamplerPoolOptions) {
    this.#options = options;
  }

  /** Runs `work` on a model that serves these weights, and these only, until it is done. */
  async use<T>(weights: Weights, signal: AbortSignal, work: (model: EmbeddedModel) => Promise<T>): Promise<T> {
    const instance = await this.#take(weights, signal);
    try {
      return await work(await instance.ready);
    } finally {
      instance.calls--;
      if (instance.calls === 0) this.#wake();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#instances.splice(0).map(async ({ opened }) => (await opened.catch(() => undefined))?.close()));
  }

  async #take(weights: Weights, signal: AbortSignal): Promise<Instance> {
    const until = performance.now() + this.#options.waitMs;
    for (;;) {
      const found = this.#find(weights);
      if (found !== undefined) {
        found.calls++;
        found.lastUsed = ++this.#uses;
        return found;
      }
      await this.#someIdle(until - performance.now(), signal);
    }
  }

  /** Nothing is awaited between looking and taking. */
  #find(weights: Weights): Instance | undefined {
    const holder = this.#instances.find(({ holds }) => holds === weights.id);
    if (holder !== undefined) return holder;
    const idle = this.#instances.filter(({ calls }) => calls === 0).toSorted((a, b) => a.lastUsed - b.lastUsed)[0];
    if (idle !== undefined) return this.#load(idle, weights);
    return this.#instances.length < this.#options.most ? this.#load(this.#open(), weights) : undefined;
  }

  #open(): Instance {
    const opened = this.#options.open();
    const instance: Instance = { opened, ready: opened, holds: undefined, calls: 0, lastUsed: 0, loads: 0 };
    this.#instances.push(instance);
    return instance;
  }

  #load(instance: Instance, weights: Weights): Instance {
    instance.holds = weights.id;
    instance.ready = instance.opened.then(async (model) => {
      await weights.check();
      await model.load(weights.folder, { optimizer: false });
      await weights.check();
      await model.publish(++instance.loads);
      return model;
    });
    // What it holds now is not known: nobody may find it.
    instance.ready.catch(() => this.#drop(instance));
    return instance;
  }

  #drop(instance: Instance): void {
    const place = this.#instances.indexOf(instance);
    if (place >= 0) this.#instances.splice(place, 1);
    void instance.opened.then(
      (model) => model.close(),
      () => undefined,
    );
    this.#wake();
  }

  async #someIdle(ms: number, signal: AbortSignal): Promise<void> {
    if (ms <= 0) {
      throw new ApiError('too_busy', `all ${this.#options.most} samplers are busy with other weights`, {
        hint: 'sample from fewer sets of weights at once',
      });
    }
    if (signal.aborted) throw new ApiError('invalid_request', 'the request was cancelled');
    const turn = Promise.withResolvers<void>();
    const timer = setTimeout(turn.resolve, ms);
    signal.addEventListener('abort', () => turn.resolve(), { once: true });
    this.#waiting.push(turn.resolve);
    await turn.promise;
    clearTimeout(timer);
  }

  #wake(): void {
    for (const go of this.#waiting.splice(0)) go();
  }
}
