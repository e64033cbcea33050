/**
 * One model in training: the Tinker API's verbs on an embedded model, run one at a time in the order of their seq_id. Each verb returns a
 * future at once; requests wait while the model is still opening. A step uses the gradient of every forward_backward since the last step,
 * or is not taken at all: if one of them failed, the accumulated gradient is dropped and the next step fails. Only a forward_backward sent
 * after the client was told of the failure starts a new gradient.
 */
import { mapYielding } from '../../../core/async.ts';
import { messageOf, TrainyardError } from '../../../core/errors.ts';
import { type AdamSettings, evaluateLoss, type Loss, type LossInput, sumOfLosses } from '../../../core/policy.ts';
import type { ByName, Sample } from '../../../core/types.ts';
import { cispo, crossEntropy, dro, importanceSampling, ppo } from '../../../training/losses.ts';
import type { EmbeddedModel } from '../../embedded/embedded-model.ts';
import type { Datum, PassRequest, PassResult, Tensor, WeightsPath } from '../wire/tinker-messages.ts';
import { adamToWire, formatWeightsPath } from '../wire/tinker-messages.ts';
import { TINKER_LIMITS } from './limits.ts';
import { type Future, type FutureResult, type Futures, invalid, RequestOrder, refused } from './requests.ts';
import { remove, type SaveOptions, type Weights, type WeightsFolder } from './weights.ts';

/** A failed request because of which the gradient is not what the client expects. */
interface BrokenPass {
  readonly what: string;
  known(): boolean;
}

export interface Sent {
  readonly seqId: number | undefined;
  readonly digest: string;
}

interface Unnamed {
  readonly folder: string;
  gone: boolean;
}

type Run = (model: EmbeddedModel, failure: BrokenPass) => Promise<FutureResult>;

interface ModelParts {
  readonly id: string;
  readonly sessionId: string;
  readonly opened: Promise<EmbeddedModel>;
  readonly futures: Futures;
  readonly weights: WeightsFolder;
  readonly gapMs: number;
}

export class Model {
  readonly id: string;
  readonly sessionId: string;
  readonly #opened: Promise<EmbeddedModel>;
  readonly #order: RequestOrder;
  readonly #folder: WeightsFolder;
  /** Sampler weights saved without a name, oldest first. */
  readonly #unnamed: Unnamed[] = [];
  #made = 0;
  #broken: BrokenPass[] = [];
  /** forward_backward requests since the last step. */
  #passes = 0;
  /** Whether any verb has used the model. Weights can only be loaded into a new model. */
  #touched = false;
  #lost: string | undefined;
  /** Why the weights that the client wanted to start from could not be loaded. */
  #missing: string | undefined;

  constructor({ id, sessionId, opened, futures, weights, gapMs }: ModelParts) {
    this.id = id;
    this.sessionId = sessionId;
    this.#opened = opened;
    this.#order = new RequestOrder((work) => futures.start(work, sessionId), gapMs);
    this.#folder = weights;
  }

  pass(sent: Sent, request: PassRequest): Future {
    // Failures that the client already knew of when it sent this request, which may therefore start a new gradient.
    const known = new Set(this.#broken.filter((broken) => broken.known()));
    return this.#submit('forward_backward', sent, async (model, failure) => {
      this.#use();
      const pass = request.forwardOnly ? forward(model, request) : this.#backward(model, request, failure, known);
      return { kind: 'pass', result: await pass };
    });
  }

  step(sent: Sent, adam: AdamSettings): Future {
    return this.#submit('optim_step', sent, async (model) => {
      this.#use();
      await this.#checkGradient(model);
      try {
        const { gradNorm } = await model.optimStep(checkAdam(adam));
        this.#passes = 0;
        return { kind: 'reply', value: { metrics: { 'grad_norm:mean': gradNorm } } };
      } catch (thrown) {
        await this.#dropGradient(model);
        if (!model.weights().every(Number.isFinite)) this.#lost = messageOf(thrown);
        throw thrown;
      }
    });
  }

  /** Fails unless the model is new. `optimizer`: whether to load the optimizer state too, instead of starting a fresh one. */
  load(sent: Sent, find: () => Promise<Weights>, optimizer: boolean, path: string): Future {
    return this.#submit('load_weights', sent, async (model, failure) => {
      try {
        const { folder, check } = await find();
        if (this.#touched) {
          throw refused('invalid_request', 'load_weights came after other requests of this model', {
            hint: 'weights are loaded into a new model, as its first request: make one with create_model',
          });
        }
        await model.load(folder, { optimizer });
        // Weights and optimizer state are two reads. They belong together only if the save was not replaced in between.
        await check();
      } catch (thrown) {
        this.#notDone('load_weights', failure, messageOf(thrown));
        throw thrown;
      }
      this.#missing = undefined;
      this.#touched = true;
      return { kind: 'reply', value: { path, model_id: this.id, type: 'load_weights' } };
    });
  }

  /** `type`: the verb's name on the wire. */
  save(sent: Sent, path: WeightsPath, options: SaveOptions, type: string): Future {
    return this.#submit('save_weights', sent, async (model) => {
      this.#use();
      await this.#folder.save(path, (dir, optimizer) => model.save(dir, { optimizer }), options);
      return { kind: 'reply', value: { path: formatWeightsPath(path), type } };
    });
  }

  /** Saves the current weights without a name. Only the latest few are kept: clients name weights that they want to keep. */
  saveUnnamed(sent: Sent, use: (weights: Weights) => object): Future {
    return this.#submit('save_weights', sent, async (model) => {
      this.#use();
      const { id, folder } = await this.#folder.saveUnnamed(this.id, ++this.#made, (dir) =>
        model.save(dir, { optimizer: false }),
      );
      const kept: Unnamed = { folder, gone: false };
      this.#unnamed.push(kept);
      if (this.#unnamed.length > TINKER_LIMITS.unnamed) await forget(this.#unnamed.shift()!);
      const check = async () => {
        if (!kept.gone) return;
        throw refused('unknown_sampler', `these weights are gone: of each model the latest ${TINKER_LIMITS.unnamed} are kept`, {
          hint: 'save weights under a name to keep them',
        });
      };
      return { kind: 'reply', value: use({ id, folder, check }) };
    });
  }

  /** Runs after all earlier requests. */
  unload(ended: () => void): Future {
    return this.#submit('unload_model', { seqId: undefined, digest: '' }, async () => {
      ended();
      void this.close('the model was unloaded');
      return { kind: 'reply', value: { model_id: this.id, type: 'unload_model' } };
    });
  }

  /** A request refused on arrival still takes its place in the order and fails there. Its client has already been told. */
  refused(seqId: number, digest: string, verb: string, why: string): void {
    const failure: BrokenPass = { what: `the ${verb} before it (seq_id ${seqId}) was refused`, known: () => true };
    this.#order.skip(seqId, digest, () => this.#notDone(verb, failure, why), why);
  }

  async close(why: string): Promise<void> {
    await this.#order.close(why);
    await (await this.#opened.catch(() => undefined))?.close();
    for (const kept of this.#unnamed.splice(0)) await forget(kept);
  }

  #submit(verb: string, sent: Sent, run: Run): Future {
    const which = sent.seqId === undefined ? '' : ` (seq_id ${sent.seqId})`;
    const failure: BrokenPass = { what: `the ${verb} before it${which} failed`, known: () => future.delivered };
    const future: Future = this.#order.submit({
      ...sent,
      run: async () => run(await this.#opened, failure),
      skipped: (why) => this.#notDone(verb, failure, why),
    });
    return future;
  }

  /** Records what a request that did not run means for later ones. */
  #notDone(verb: string, failure: BrokenPass, why: string): void {
    // Later requests rely on the missing weights, so nothing may be trained, scored or saved with others instead.
    if (verb === 'load_weights' && !this.#touched) this.#missing = why;
    // Without one of these verbs, the gradient is not what the client expects.
    else if (['load_weights', 'forward_backward', 'optim_step'].includes(verb)) this.#broken.push(failure);
  }

  async #backward(
    model: EmbeddedModel,
    request: PassRequest,
    failure: BrokenPass,
    known: ReadonlySet<BrokenPass>,
  ): Promise<PassResult> {
    // A batch of several requests starts a new gradient only once.
    if (this.#broken.some((broken) => known.has(broken))) {
      this.#broken = this.#broken.filter((broken) => !known.has(broken));
      await this.#dropGradient(model);
    }
    try {
      const loss = lossNamed(request.loss, request.lossSettings);
      const { logprobs, loss: sum, metrics } = await model.forwardBackward(await samplesOf(request), loss);
      this.#passes++;
      return resultOf(logprobs, sum, metrics);
    } catch (thrown) {
      this.#broken.push(failure);
      throw thrown;
    }
  }

  async #checkGradient(model: EmbeddedModel): Promise<void> {
    const [broken] = this.#broken;
    if (broken !== undefined) {
      this.#broken = [];
      await this.#dropGradient(model);
      throw refused('invalid_request', `${broken.what}; no step was taken and the weights are unchanged`, {
        hint: 'send the whole batch again, then optim_step',
      });
    }
    if (this.#passes > 0) return;
    throw refused('invalid_request', 'there was no forward_backward since the last optim_step; nothing was changed', {
      hint: 'send forward_backward first',
    });
  }

  async #dropGradient(model: EmbeddedModel): Promise<void> {
    this.#passes = 0;
    await model.dropGradient();
  }

  /** Throws if the weights are not what the client expects. */
  #use(): void {
    if (this.#missing !== undefined) {
      throw refused('invalid_request', `the weights that this model was to begin with were not loaded: ${this.#missing}`, {
        hint: 'load others, or make a new model',
      });
    }
    if (this.#lost !== undefined) {
      throw new TrainyardError(
        'TRAINER_FAILED',
        `the weights of this model are lost: ${this.#lost}`,
        'make a new model and load the last saved state into it',
      );
    }
    this.#touched = true;
  }
}

async function forget(kept: Unnamed): Promise<void> {
  kept.gone = true;
  await remove(kept.folder);
}

async function forward(model: EmbeddedModel, request: PassRequest): Promise<PassResult> {
  const loss = lossNamed(request.loss, request.lossSettings);
  const samples = await samplesOf(request);
  const logprobs = await model.forward(samples);
  const outputs = await mapYielding(samples, (sample, i) => evaluateLoss(loss, sample, logprobs[i]!, i));
  const { loss: sum, metrics } = sumOfLosses(samples, outputs);
  return resultOf(logprobs, sum, metrics);
}

const METRICS: ByName<string> = {
  trained: 'tokens:sum',
  ratio: 'ratio:sum',
  offPolicyKl: 'off_policy_kl:sum',
  clipped: 'clipped_tokens:sum',
};

function resultOf(logprobs: readonly Float32Array[], loss: number, sums: ByName<number>): PassResult {
  const named = Object.entries(sums).flatMap(([name, value]) => (METRICS[name] ? [[METRICS[name], value]] : []));
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
    throw invalid('adam_params', `has ${name} ${value}, expected ${expected}`);
  }
  return adam;
}

const INPUTS = {
  cross_entropy: { needed: ['target_tokens'], known: ['target_tokens', 'weights'] },
  offPolicy: { needed: ['target_tokens', 'logprobs', 'advantages'], known: ['target_tokens', 'logprobs', 'advantages'] },
} as const;

/** Names the first invalid datum. The model itself checks ids, numbers and lengths before it computes. */
async function samplesOf({ data, loss }: PassRequest): Promise<Sample[]> {
  if (data.length === 0) throw invalid('data', 'is empty, expected at least one datum');
  if (data.length > TINKER_LIMITS.data)
    throw invalid('data', `has ${data.length} datums, expected at most ${TINKER_LIMITS.data}`);
  return mapYielding(data, (datum, i) => sampleOf(datum, `data[${i}]`, loss));
}

/**
 * Converts a datum to a sample. A datum omits the last token and stores, at each position, the values of the following token; a sample
 * holds the whole sequence with each token's own values. So all arrays shift right by one. The wire has no mask: clients want
 * log-probabilities everywhere, and a position without weight (or without advantage and sampled log-probability) is context that the loss
 * ignores.
 */
function sampleOf({ tokens, inputs }: Datum, where: string, loss: string): Sample {
  const { length } = tokens;
  if (length === 0) throw invalid(`${where}.model_input`, 'is empty, expected at least one token');
  const isCrossEntropy = loss === 'cross_entropy';
  const { needed, known } = isCrossEntropy ? INPUTS.cross_entropy : INPUTS.offPolicy;
  for (const name of needed) if (inputs[name] === undefined) throw invalid(`${where}.loss_fn_inputs.${name}`, 'is missing');
  for (const [name, tensor] of Object.entries(inputs)) {
    if (!known.some((other) => other === name)) {
      throw invalid(`${where}.loss_fn_inputs.${name}`, `is not an input of ${loss}, expected ${known.join(', ')}`);
    }
    checkTensor(tensor, `${where}.loss_fn_inputs.${name}`, name, length);
  }
  const targets = inputs['target_tokens']!.data as Int32Array;
  const weights = inputs[isCrossEntropy ? 'weights' : 'advantages']?.data as Float32Array | undefined;
  checkShift(tokens, targets, weights, where);
  const all = new Int32Array(length + 1);
  all.set(tokens);
  all[length] = targets[length - 1]!;
  return {
    tokens: all,
    mask: new Uint8Array(length + 1).fill(1, 1),
    logprobs: shifted(inputs['logprobs']?.data as Float32Array | undefined, length, 0),
    advantages: shifted(weights, length, 1),
    versions: new Int32Array(length + 1),
    temperature: 1,
    weight: 1,
    rolloutId: where,
    groupId: where,
  };
}

/** Shifts right by one. Filled with `otherwise` if the input is missing. */
function shifted(values: Float32Array | undefined, length: number, otherwise: number): Float32Array {
  const moved = new Float32Array(length + 1);
  if (values === undefined) moved.fill(otherwise, 1);
  else moved.set(values, 1);
  return moved;
}

function checkTensor({ dtype, data, shape }: Tensor, where: string, name: string, length: number): void {
  const wanted = name === 'target_tokens' ? 'int64' : 'float32';
  if (dtype !== wanted) throw invalid(where, `is of ${dtype}, expected ${wanted}`);
  if (shape !== undefined && shape.length > 1) throw invalid(where, `has the shape [${shape.join(', ')}], expected [${length}]`);
  if (data.length !== length) throw invalid(where, `has ${data.length} entries, expected ${length} as model_input has tokens`);
}

/** Targets must be the inputs shifted by one, except at weight 0: predicting other tokens than the model reads is a different task. */
function checkShift(tokens: Int32Array, targets: Int32Array, weights: Float32Array | undefined, where: string): void {
  for (let i = 0; i + 1 < tokens.length; i++) {
    if (targets[i] === tokens[i + 1] || weights?.[i] === 0) continue;
    throw invalid(
      `${where}.loss_fn_inputs.target_tokens[${i}]`,
      `is ${targets[i]}, expected ${tokens[i + 1]}: the targets are the tokens of model_input moved by one, and one more`,
    );
  }
}

// Losses by name. The API's clip bounds are absolute ratios (0.8 and 1.2); ours are distances from 1.

type Settings = ByName<number>;

const DEFAULT_BOUNDS = { clip_low_threshold: 0.8, clip_high_threshold: 1.2 };

const LOSSES: ByName<{ readonly defaults: Settings; make(settings: Settings): Loss }> = {
  cross_entropy: { defaults: {}, make: crossEntropy },
  importance_sampling: { defaults: {}, make: importanceSampling },
  ppo: { defaults: DEFAULT_BOUNDS, make: (settings) => ppo(clipOf(settings)) },
  cispo: { defaults: DEFAULT_BOUNDS, make: (settings) => cispo(clipOf(settings)) },
  dro: { defaults: { beta: 0.05 }, make: ({ beta }) => dro({ beta: beta! }) },
};

export const LOSS_NAMES: readonly string[] = Object.keys(LOSSES);

/** Throws for an unknown name or setting, or an invalid value. */
function lossNamed(name: string, given: Settings): Loss {
  const entry = Object.hasOwn(LOSSES, name) ? LOSSES[name] : undefined;
  if (entry === undefined) {
    const found = `loss_fn is ${JSON.stringify(name)}, expected one of ${LOSS_NAMES.join(', ')}`;
    throw refused('not_offered', found, { param: 'loss_fn' });
  }
  for (const [setting, value] of Object.entries(given)) {
    const param = `loss_fn_config.${setting}`;
    if (!Object.hasOwn(entry.defaults, setting)) {
      const expected = Object.keys(entry.defaults).join(', ') || 'none';
      throw refused('not_offered', `${param} is not a setting of ${name}, which has: ${expected}`, { param });
    }
    if (!Number.isFinite(value) || value < 0) throw invalid(param, `is ${value}, expected a number of at least 0`);
  }
  return withoutContext(entry.make({ ...entry.defaults, ...given }));
}

function clipOf({ clip_low_threshold: low, clip_high_threshold: high }: Settings) {
  if (low! <= 1 && high! >= 1) return { clipLow: 1 - low!, clipHigh: high! - 1 };
  const found = `clip_low_threshold is ${low} and clip_high_threshold ${high}, expected bounds around 1`;
  const hint = 'they are bounds of the ratio, such as 0.8 and 1.2';
  throw refused('invalid_request', found, { hint, param: 'loss_fn_config' });
}

/** Hides context from a loss: a quadratic penalty or a count of ratios must not include tokens that the policy never sampled. */
function withoutContext(loss: Loss): Loss {
  return {
    ...loss,
    evaluate({ logprobs, sampled, advantages }: LossInput) {
      const trained: number[] = [];
      for (let i = 0; i < logprobs.length; i++) if (advantages[i] !== 0 || sampled[i] !== 0) trained.push(i);
      const at = (values: Float32Array) => new Float32Array(trained.map((i) => values[i]!));
      const own = { logprobs: at(logprobs), sampled: at(sampled), advantages: at(advantages), reference: undefined };
      const output = loss.evaluate(own);
      const gradient = new Float32Array(logprobs.length);
      for (const [i, place] of trained.entries()) gradient[place] = output.gradient[i]!;
      return { ...output, gradient, metrics: { ...output.metrics, trained: trained.length } };
    },
  };
}
