/**
 * Implements Trainer with a Tinker server's verbs, sent in call order without waiting for earlier results. The server computes losses that
 * it has by name. Others are computed here, between a forward pass and a weighted cross-entropy with the same gradient. The reported loss
 * is always computed here from the server's log-probabilities, which exposes a server whose loss differs under the same name. Tinker's
 * passes have no temperature, so samples must be at temperature 1. A failed verb spoils the model (`tinker-model.ts`) until `load`. Weights
 * stay at the server; a checkpoint folder only records where.
 */
import { randomUUID } from 'node:crypto';
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { z } from 'zod';
import { Mutex, mapYielding } from '../../core/async.ts';
import { messageOf, TrainyardError } from '../../core/errors.ts';
import { type AdamSettings, checkSample, type ForwardBackwardResult, type Loss, type Trainer } from '../../core/policy.ts';
import type { Sample } from '../../core/types.ts';
import { parseWeightsPath } from '../wire/tinker-messages.ts';
import type { TinkerConnection } from './connection.ts';
import {
  checkLossSum,
  checkPlainSum,
  evaluateBatch,
  isTrained,
  namedLoss,
  probeMoved,
  probeSample,
  scoredTokens,
  scoringDatum,
  weightedDatum,
} from './datum.ts';
import { isLost } from './http-client.ts';
import { type ModelStart, type PassOutput, TinkerModel, type Underway } from './tinker-model.ts';

export interface TinkerTrainerParts {
  readonly connection: TinkerConnection;
  readonly baseModel: string;
  readonly loraRank: number;
  /** For the adapter's initial weights. */
  readonly seed: number;
  readonly vocabSize: number;
  readonly contextLength: number;
  /** Called when this version can be sampled from in this session. */
  readonly onPublished: (samplingSessionId: string, policyVersion: number) => void;
}

type Scored = Pick<PassOutput, 'lossSum'> & { readonly logprobs: Float32Array[] };

const GOODBYE_MS = 2000;

export class TinkerTrainer implements Trainer, AsyncDisposable {
  readonly #parts: TinkerTrainerParts;
  readonly #provenLosses = new Set<string>();
  readonly #refusedLosses = new Set<string>();
  /** Why the latest backward pass was not sent. Cleared by a pass whose caller could already know of this failure. */
  #unsent: unknown;
  #current: TinkerModel | undefined;
  /** Path of weights that are only sampled from, if those were loaded last. */
  #sampled: string | undefined;
  #reference: TinkerModel | undefined;
  /** Whether a step was sent since the current model was created. */
  #hasStepped = false;
  readonly #sending = new Mutex();
  readonly #publishing = new Mutex();

  constructor(parts: TinkerTrainerParts) {
    this.#parts = parts;
  }

  forward(samples: readonly Sample[], weights: 'current' | 'reference' = 'current'): Promise<Float32Array[]> {
    return this.#inOrder(async () => {
      await this.#check(samples);
      if (weights === 'reference') return { result: this.#scoreByReference(samples) };
      const { result } = await this.#score(await this.#model(), samples);
      return { result: result.then(({ logprobs }) => logprobs) };
    });
  }

  forwardBackward(samples: readonly Sample[], loss: Loss): Promise<ForwardBackwardResult> {
    const known = this.#unsent;
    return this.#inOrder(async () => {
      try {
        await this.#check(samples);
        const underway = await this.#backward(samples, loss);
        if (this.#unsent === known) this.#unsent = undefined;
        return underway;
      } catch (thrown) {
        this.#unsent = thrown;
        throw thrown;
      }
    });
  }

  optimStep(adam: AdamSettings): Promise<{ readonly gradNorm: number | undefined }> {
    return this.#inOrder(async () => {
      const model = await this.#model();
      model.assertSound();
      if (this.#unsent !== undefined) throw withoutGradient(this.#unsent);
      this.#hasStepped = true;
      return model.optimStep(adam);
    });
  }

  publish(policyVersion: number): Promise<void> {
    return this.#inOrder(async () => {
      const path = this.#sampled;
      const result =
        path === undefined
          ? (await (await this.#model()).publish()).result
          : this.#parts.connection.createSamplingSession({ path });
      return { result: this.#publishing.run(async () => this.#parts.onPublished(await result, policyVersion)) };
    });
  }

  /** Writes tinker.json; the weights stay at the server. */
  save(dir: string, { optimizer = true }: { readonly optimizer?: boolean } = {}): Promise<void> {
    const { connection, baseModel, loraRank } = this.#parts;
    return this.#inOrder(async () => {
      const model = await this.#model();
      const { result } = await (optimizer ? model.save() : model.saveForSampler(`trainyard-${randomUUID()}`));
      const write = async (path: string): Promise<void> => {
        const state = { server: connection.address, baseModel, loraRank, path, savedAt: new Date().toISOString() };
        await writeFile(join(dir, SAVED_STATE), `${JSON.stringify(state, null, 2)}\n`);
      };
      return { result: result.then(write) };
    });
  }

  /**
   * Creates a new model at the server, in a new session if needed. A folder without tinker.json means the base model. What was saved without
   * an optimizer can be published, not trained, and takes no model.
   */
  load(dir: string): Promise<void> {
    return this.#inOrder(async () => {
      const path = await this.#savedPath(dir);
      this.#sampled = path !== undefined && parseWeightsPath(path).kind === 'sampler_weights' ? path : undefined;
      if (this.#sampled !== undefined) return { result: Promise.resolve() };
      const previous = this.#current;
      this.#current = await this.#begin({ ...this.#base(), path });
      this.#hasStepped = false;
      this.#unsent = undefined;
      void previous?.unload();
      return { result: Promise.resolve() };
    });
  }

  async forget(dir: string): Promise<void> {
    const state = await readSavedState(dir).catch(() => undefined);
    if (state === undefined || state.server !== this.#parts.connection.address) return;
    // The reference may have to be recreated from it.
    if (state.path === this.#reference?.start.path) return;
    const { modelId, kind, name } = parseWeightsPath(state.path);
    await this.#parts.connection.mention('DELETE', `training_runs/${modelId}/checkpoints/${kind}/${name}`);
  }

  freezeReference(): Promise<void> {
    return this.#inOrder(async () => {
      const model = await this.#model();
      const path = this.#hasStepped ? await (await model.save()).result : model.start.path;
      void this.#reference?.unload();
      this.#reference = await this.#begin({ ...model.start, path });
      return { result: Promise.resolve() };
    });
  }

  /** Asks by forward passes of one tiny sample: for the loss by its name, and whether a weighted cross_entropy could stand in for it. */
  async checkLoss(loss: Loss, others: readonly Loss[]): Promise<void> {
    const probe = probeSample(this.#parts.vocabSize);
    const model = await this.#inOrder(async () => ({ result: Promise.resolve(await this.#model()) }));
    const { logprobs, lossSum } = await this.#inOrder(() => this.#score(model, [probe]));
    const moved = probeMoved(probe, logprobs[0]!);
    const problemOf = (one: Loss): Promise<string | undefined> => this.#problemWith(model, one, moved, { logprobs, lossSum });
    const problem = await problemOf(loss);
    if (problem === undefined) return;
    const possible: string[] = [];
    for (const other of others) if ((await problemOf(other)) === undefined) possible.push(other.name);
    const list = possible.length === 0 ? 'no other loss either' : possible.join(', ');
    throw new TrainyardError('USAGE', `loss: ${problem}; with these settings it can train ${list}`, {
      hint: possible.length === 0 ? 'leave out --kl and --entropy, or use another server' : `give --loss ${possible[0]}`,
    });
  }

  /** Undefined if the server can train the loss. */
  async #problemWith(model: TinkerModel, loss: Loss, sample: Sample, plain: Scored): Promise<string | undefined> {
    const named = namedLoss(loss, [sample]);
    if (named !== undefined && !this.#refusedLosses.has(named.name)) {
      const { name, settings: lossSettings, value = loss } = named;
      const read = async ({ outputs, lossSum }: PassOutput): Promise<void> =>
        checkLossSum(await evaluateBatch(value, [sample], await scores([sample], outputs)), lossSum, name);
      const pass = { data: [named.datum(sample)], loss: name, lossSettings, forwardOnly: true, read };
      try {
        await this.#inOrder(() => model.pass(pass));
        return undefined;
      } catch (thrown) {
        // Another loss under that name. A name unknown to a forward pass may still be known to a backward pass, which will tell.
        if (thrown instanceof TrainyardError && thrown.code === 'TRAINER_FAILED') this.#refusedLosses.add(name);
        else if (!isUnknownLoss(thrown)) throw thrown;
      }
    }
    try {
      checkPlainSum(plain.logprobs, plain.lossSum, loss.name);
      return undefined;
    } catch (thrown) {
      return messageOf(thrown);
    }
  }

  /** Tells the server to drop the models, without waiting long for it. */
  async [Symbol.asyncDispose](): Promise<void> {
    const unloaded = Promise.all([this.#current?.unload(), this.#reference?.unload()]);
    await Promise.race([unloaded, sleep(GOODBYE_MS, undefined, { ref: false })]);
  }

  /** Calls are sent one after another, but their results are awaited concurrently. */
  async #inOrder<T>(send: () => Promise<Underway<T>>): Promise<T> {
    return (await this.#sending.run(send)).result;
  }

  async #model(): Promise<TinkerModel> {
    this.#current ??= await this.#begin(this.#base());
    return this.#current;
  }

  #begin(start: ModelStart): Promise<TinkerModel> {
    return TinkerModel.create(this.#parts.connection, start);
  }

  #base(): ModelStart {
    const { baseModel, loraRank, seed } = this.#parts;
    return { baseModel, loraRank, seed };
  }

  async #check(samples: readonly Sample[]): Promise<void> {
    await mapYielding(samples, (sample, i) => {
      checkSample(sample, i, this.#parts);
      if (sample.temperature === 1) return;
      const which = `sample ${i} (rollout ${JSON.stringify(sample.rolloutId)})`;
      throw new TrainyardError('SAMPLE_REFUSED', `${which}: its temperature is ${sample.temperature}, expected 1`, {
        hint: 'a Tinker server scores at temperature 1 only; sample with temperature 1',
      });
    });
  }

  async #score(model: TinkerModel, samples: readonly Sample[]): Promise<Underway<Scored>> {
    const sent = samples.filter(isTrained);
    const read = async ({ outputs, lossSum }: PassOutput) => ({ logprobs: await scores(samples, outputs), lossSum });
    if (sent.length === 0) return { result: read({ outputs: [], lossSum: 0 }) };
    const data = await mapYielding(sent, scoringDatum);
    return model.pass({ data, loss: 'cross_entropy', lossSettings: {}, forwardOnly: true, read });
  }

  /** The reference never changes, so it is recreated if the server loses it. */
  async #scoreByReference(samples: readonly Sample[]): Promise<Float32Array[]> {
    const reference = this.#reference;
    if (reference === undefined) {
      throw new TrainyardError('TRAINER_FAILED', 'there are no reference weights', { hint: 'call freezeReference() first' });
    }
    const score = async (model: TinkerModel) => (await (await this.#score(model, samples)).result).logprobs;
    try {
      return await score(reference);
    } catch (thrown) {
      if (!isLost(thrown)) throw thrown;
      this.#reference = await this.#begin(reference.start);
      return await score(this.#reference);
    }
  }

  async #backward(samples: readonly Sample[], loss: Loss): Promise<Underway<ForwardBackwardResult>> {
    const model = await this.#model();
    const sent = samples.filter(isTrained);
    if (sent.length === 0) {
      const { result } = await evaluateBatch(loss, samples, await scores(samples, []));
      return { result: Promise.resolve(result) };
    }
    const named = namedLoss(loss, sent);
    if (named === undefined || this.#refusedLosses.has(named.name)) return this.#customBackward(model, samples, loss);
    const { name, settings: lossSettings } = named;
    const isProven = this.#provenLosses.has(name);
    const read = async ({ outputs, lossSum }: PassOutput): Promise<ForwardBackwardResult> => {
      const logprobs = await scores(samples, outputs);
      const evaluated = await evaluateBatch(loss, samples, logprobs);
      checkLossSum(named.value === undefined ? evaluated : await evaluateBatch(named.value, samples, logprobs), lossSum, name);
      return evaluated.result;
    };
    try {
      const data = await mapYielding(sent, named.datum);
      const underway = await model.pass({ data, loss: name, lossSettings, forwardOnly: false, isHarmless: isUnknownLoss, read });
      // Nothing that depends on this loss may be sent until the server has shown that it supports it.
      if (!isProven) await underway.result;
      this.#provenLosses.add(name);
      return underway;
    } catch (thrown) {
      if (isProven || !isUnknownLoss(thrown)) throw thrown;
      this.#refusedLosses.add(name);
      return this.#customBackward(model, samples, loss);
    }
  }

  /**
   * The gradient of cross-entropy with respect to a log-probability is −weight, so the loss's own negated derivatives as weights give the
   * loss's gradient. This holds only if the server sums the terms; dividing by the sum of the weights would break it.
   */
  async #customBackward(model: TinkerModel, samples: readonly Sample[], loss: Loss): Promise<Underway<ForwardBackwardResult>> {
    const { logprobs, lossSum } = await (await this.#score(model, samples)).result;
    checkPlainSum(logprobs, lossSum, loss.name);
    const { result, gradients } = await evaluateBatch(loss, samples, logprobs);
    const datums = await mapYielding(samples, (sample, i) => {
      const weights = gradients[i]!.map((derivative) => -derivative * sample.weight);
      return isTrained(sample) ? [weightedDatum(sample, weights)] : [];
    });
    const read = async ({ outputs }: PassOutput): Promise<ForwardBackwardResult> => {
      await scores(samples, outputs);
      return result;
    };
    return model.pass({ data: datums.flat(), loss: 'cross_entropy', lossSettings: {}, forwardOnly: false, read });
  }

  async #savedPath(dir: string): Promise<string | undefined> {
    const state = await readSavedState(dir);
    const { baseModel, loraRank } = this.#parts;
    if (state === undefined || (state.baseModel === baseModel && state.loraRank === loraRank)) return state?.path;
    throw new TrainyardError(
      'CHECKPOINT_MISMATCH',
      `${dir} was saved from ${state.baseModel} with rank ${state.loraRank}; in training is ${baseModel} with rank ${loraRank}`,
    );
  }
}

/** Per sample, for its masked tokens. `outputs` holds one entry per sent sample, in order. */
async function scores(samples: readonly Sample[], outputs: PassOutput['outputs']): Promise<Float32Array[]> {
  let next = 0;
  return mapYielding(samples, (sample) => (isTrained(sample) ? scoredTokens(sample, outputs[next++]) : new Float32Array(0)));
}

/** Whether the server refused the loss itself rather than its inputs. */
function isUnknownLoss(thrown: unknown): boolean {
  if (!(thrown instanceof TrainyardError) || thrown.code !== 'POLICY_REFUSED') return false;
  return /\bloss_fn(?!_inputs)|\b(unknown|unsupported|invalid) loss\b/i.test(thrown.message);
}

function withoutGradient(cause: unknown): TrainyardError {
  const message = `no step was taken, since the gradient for it failed: ${messageOf(cause)}`;
  return new TrainyardError(isLost(cause) ? 'POLICY_LOST' : 'TRAINER_FAILED', message, { cause });
}

const SAVED_STATE = 'tinker.json';

/** tinker.json. `server` is a base URL, `path` is tinker://<model>/weights/<name> (or sampler_weights), `savedAt` is ISO 8601. */
const savedState = z.object({
  server: z.string(),
  baseModel: z.string(),
  loraRank: z.int(),
  path: z.string(),
  savedAt: z.string(),
});

/** Undefined for a plain model folder (the untrained base model). Throws MODEL_INVALID or, for a damaged file, CHECKPOINT_MISMATCH. */
export async function readSavedState(dir: string): Promise<z.infer<typeof savedState> | undefined> {
  const path = join(dir, SAVED_STATE);
  const text = await readFile(path, 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT' || error.code === 'ENOTDIR') return undefined;
    throw error;
  });
  if (text === undefined) {
    const names: readonly string[] = await readdir(dir).catch(() => []);
    if (names.includes('config.json') || names.includes('tokenizer.json')) return undefined;
    throw new TrainyardError('MODEL_INVALID', `${dir} has neither ${SAVED_STATE} nor config.json nor tokenizer.json`, {
      hint: 'give a checkpoint folder of a run, or a model folder',
    });
  }
  try {
    const state = savedState.parse(JSON.parse(text));
    parseWeightsPath(state.path);
    return state;
  } catch (cause) {
    throw new TrainyardError('CHECKPOINT_MISMATCH', `${path} is damaged or not of this format`, {
      hint: 'go on from another checkpoint',
      cause,
    });
  }
}
