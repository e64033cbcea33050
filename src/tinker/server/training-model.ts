/**
 * One model in training: the verbs of the Tinker API on an embedded model, and what must hold between them.
 *
 * A step is taken with the gradient of every forward_backward since the last one, or not at all: when one of them failed, what the
 * others left behind is dropped, and the step that follows fails. Begun anew is only with a forward_backward that came after a client
 * was told of the failure. Order and repetitions are not seen here.
 */
import { TrainyardError } from '../../core/errors.ts';
import type { AdamSettings } from '../../core/policy.ts';
import type { EmbeddedModel } from '../../nn/policy.ts';
import { evaluateBatch } from '../../trainer/evaluate-batch.ts';
import type { PassRequest, PassResult } from '../wire/messages.ts';
import { adamToWire } from '../wire/verbs.ts';
import { ApiError } from './api-error.ts';
import { lossNamed } from './named-loss.ts';
import type { Weights } from './sampler-pool.ts';
import { samplesOf } from './training-data.ts';

/** A forward_backward, or what came in its place, that left no gradient. */
export interface Broken {
  /** Words for it. */
  readonly what: string;
  /** Whether a client was told. */
  known(): boolean;
}

export class TrainingModel {
  readonly #model: EmbeddedModel;
  #broken: Broken[] = [];
  /** Forward_backwards since the last step. */
  #passes = 0;
  /** Whether anything was done with it: weights are only loaded into a model that is new. */
  #touched = false;
  #lost: string | undefined;
  /** Why the weights that a client wanted to begin with are not there. */
  #missing: string | undefined;

  constructor(model: EmbeddedModel) {
    this.#model = model;
  }

  /** The failures that a client knows of now. What it sends from now on may be meant to begin anew. */
  knownFailures(): ReadonlySet<Broken> {
    return new Set(this.#broken.filter((broken) => broken.known()));
  }

  /** `known`: the failures its client knew of when the request came. */
  async pass(request: PassRequest, failure: Broken, known: ReadonlySet<Broken>): Promise<PassResult> {
    this.#checkWhole();
    this.#touched = true;
    if (request.forwardOnly) return await this.#forward(request);
    await this.#beginAnew(known);
    try {
      const loss = lossNamed(request.loss, request.lossSettings);
      const samples = await samplesOf(request, this.#model);
      const { logprobs, loss: sum, metrics } = await this.#model.forwardBackward(samples, loss);
      this.#passes++;
      return resultOf(logprobs, sum, metrics);
    } catch (thrown) {
      this.breakOff(failure);
      throw thrown;
    }
  }

  /** Does nothing the second time: a batch of several requests begins anew once. */
  async #beginAnew(known: ReadonlySet<Broken>): Promise<void> {
    if (!this.#broken.some((broken) => known.has(broken))) return;
    this.#broken = this.#broken.filter((broken) => !known.has(broken));
    await this.#dropGradient();
  }

  /** The gradient gathered so far is not to be used: whoever comes next drops it first. */
  breakOff(failure: Broken): void {
    this.#broken.push(failure);
  }

  async #dropGradient(): Promise<void> {
    this.#passes = 0;
    await this.#model.dropGradient();
  }

  async step(adam: AdamSettings): Promise<{ readonly gradNorm: number }> {
    this.#checkWhole();
    this.#touched = true;
    const [broken] = this.#broken;
    if (broken !== undefined) {
      this.#broken = [];
      await this.#dropGradient();
      throw new ApiError('invalid_request', `${broken.what}; no step was taken and the weights are unchanged`, {
        hint: 'send the whole batch again, then optim_step',
      });
    }
    if (this.#passes === 0) {
      throw new ApiError('invalid_request', 'there was no forward_backward since the last optim_step; nothing was changed', {
        hint: 'send forward_backward first',
      });
    }
    try {
      const result = await this.#model.optimStep(checkAdam(adam));
      this.#passes = 0;
      return result;
    } catch (thrown) {
      await this.#dropGradient();
      if (!this.#model.weights().every(Number.isFinite)) this.#lost = (thrown as Error).message;
      throw thrown;
    }
  }

  async save(dir: string): Promise<void> {
    this.#checkWhole();
    this.#touched = true;
    await this.#model.save(dir);
  }

  /** Throws unless the model is new. `optimizer`: its state too, or a fresh one. */
  async load({ folder, check }: Weights, optimizer: boolean): Promise<void> {
    if (this.#touched) {
      throw new ApiError('invalid_request', 'load_weights came after other requests of this model', {
        hint: 'weights are loaded into a new model, as its first request: make one with create_model',
      });
    }
    await this.#model.load(folder, { optimizer });
    // Weights and optimizer state are read one after the other: of one set only if it was not replaced meanwhile.
    await check();
    this.#missing = undefined;
    this.#touched = true;
  }

  /** What was sent behind it counts on weights that are not there: nothing is trained, scored or saved with others in their place. */
  loadFailed(failure: Broken, why: string): void {
    if (this.#touched) this.breakOff(failure);
    else this.#missing = why;
  }

  close(): Promise<void> {
    return this.#model.close();
  }

  async #forward(request: PassRequest): Promise<PassResult> {
    const loss = lossNamed(request.loss, request.lossSettings);
    const samples = await samplesOf(request, this.#model);
    const logprobs = await this.#model.forward(samples);
    const { result } = await evaluateBatch(loss, samples, logprobs);
    return resultOf(logprobs, result.loss, result.metrics);
  }

  #checkWhole(): void {
    if (this.#missing !== undefined) {
      throw new ApiError('invalid_request', `the weights that this model was to begin with were not loaded: ${this.#missing}`, {
        hint: 'load others, or make a new model',
      });
    }
    if (this.#lost === undefined) return;
    throw new TrainyardError('TRAINER_FAILED', `the weights of this model are lost: ${this.#lost}`, {
      hint: 'make a new model and load the last saved state into it',
    });
  }
}

const WIRE_NAMES: Readonly<Record<string, string>> = {
  trained: 'tokens:sum',
  ratio: 'ratio:sum',
  offPolicyKl: 'off_policy_kl:sum',
  clipped: 'clipped_tokens:sum',
};

function resultOf(logprobs: readonly Float32Array[], loss: number, sums: Readonly<Record<string, number>>): PassResult {
  const named = Object.entries(sums).flatMap(([name, value]) => (WIRE_NAMES[name] ? [[WIRE_NAMES[name], value]] : []));
  return {
    outputType: 'TensorData',
    outputs: logprobs.map((data) => ({ logprobs: { dtype: 'float32', data, shape: [data.length] } })),
    metrics: { 'loss:sum': loss, ...Object.fromEntries(named) },
  };
}

function checkAdam(adam: AdamSettings): AdamSettings {
  for (const [name, value] of Object.entries(adamToWire(adam))) {
    const isBeta = name.startsWith('beta');
    if (Number.isFinite(Math.fround(value)) && value >= 0 && (!isBeta || value < 1)) continue;
    const expected = isBeta ? 'a number in [0, 1)' : 'a number of at least 0 that float32 can hold';
    throw new ApiError('invalid_request', `adam_params: ${name} is ${value}, expected ${expected}`, { param: 'adam_params' });
  }
  return adam;
}
