/**
 * Implements Trainer with a Tinker server's verbs, sent in call order without waiting for earlier results. The server computes losses that
 * it has by name. Others are computed here, between a forward pass and a weighted cross-entropy with the same gradient. The reported loss
 * is always computed here from the server's log-probabilities, which exposes a server whose loss differs under the same name, if it says
 * what its own comes to; `checkLoss` says which do not. Tinker's passes have no temperature, so samples must be at temperature 1. A failed
 * verb spoils the model (`tinker-model.ts`) until `load`. Weights stay at the server; a checkpoint folder only records where.
 */
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { Mutex, mapYielding } from '../../../core/async.ts';
import { messageOf, TrainyardError } from '../../../core/errors.ts';
import { type AdamSettings, checkSample, type ForwardBackwardResult, type Loss, type Trainer } from '../../../core/policy.ts';
import type { Sample } from '../../../core/types.ts';
import { parseWeightsPath } from '../wire/tinker-messages.ts';
import type { TinkerConnection } from './connection.ts';
import {
  checkLossSum,
  checkPlainSum,
  evaluateBatch,
  isTrained,
  type NamedLoss,
  namedLoss,
  probeAtRest,
  probeMoved,
  probeSample,
  scoredTokens,
  scoringDatum,
  weightedDatum,
} from './datum.ts';
import { isLost } from './http-client.ts';
import { readSavedState, writeSavedState } from './saved-state.ts';
import { habitsOf, isFull, kindOf, lossIn, refuseStaleness, type ServerKind, waitingFor } from './server-habits.ts';
import { isRefusal, type ModelStart, type PassOutput, TinkerModel, type Underway } from './tinker-model.ts';

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
  /** Called before the weights at the server change; `onPublished` follows, unless training ends. */
  readonly onChanging?: () => void;
  /** How far samples may lag behind. Default 0. */
  readonly staleness?: number;
  /** What whoever trains should know of the server. */
  readonly onNotice?: (message: string) => void;
}

/** Of what is over once it is sent. */
const DONE: Underway<void> = { result: Promise.resolve() };

type Scored = Pick<PassOutput, 'lossSum'> & { readonly logprobs: Float32Array[] };

const GOODBYE_MS = 2000;
/** SkyRL drops the models of a client that was killed after five minutes without a heartbeat; it looks once a minute. */
const ROOM_MS = 7 * 60_000;
const ROOM_AGAIN_MS = 5000;

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
  /** The version served last, if any. */
  #published: number | undefined;
  /** Whether masks are sent as weights. `checkLoss` finds out. */
  #masks = false;
  /** Whether the current model has a gradient of probes. It is 0, and yet some servers count its rows. */
  #isProbed = false;
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
      this.#parts.onChanging?.();
      return model.optimStep(adam);
    });
  }

  publish(policyVersion: number): Promise<void> {
    return this.#inOrder(async () => {
      const path = this.#sampled;
      this.#parts.onChanging?.();
      const result =
        path === undefined
          ? (await (await this.#model()).publish()).result
          : this.#parts.connection.createSamplingSession({ path });
      this.#published = policyVersion;
      return { result: this.#publishing.run(async () => this.#parts.onPublished(await result, policyVersion)) };
    });
  }

  /** Writes tinker.json; the weights stay at the server. */
  save(dir: string, { optimizer = true }: { readonly optimizer?: boolean } = {}): Promise<void> {
    const { connection, baseModel, loraRank } = this.#parts;
    return this.#inOrder(async () => {
      const model = await this.#model();
      const { result } = await (optimizer ? model.save() : model.saveForSampler(`trainyard-${randomUUID()}`));
      const write = async (path: string) => {
        await writeSavedState(dir, { server: connection.address, baseModel, loraRank, path, savedAt: new Date().toISOString() });
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
      if (this.#sampled !== undefined) return DONE;
      await this.#replace({ ...this.#base(), path });
      this.#unsent = undefined;
      return DONE;
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
      const start = await this.#startOf(await this.#model());
      void this.#reference?.unload();
      this.#reference = await TinkerModel.create(this.#parts.connection, start);
      return DONE;
    });
  }

  /**
   * Asks with one tiny sample: for the loss by its name, and whether a weighted cross_entropy could stand in for it. Where a forward pass
   * shows nothing of a loss, asks by a backward pass too, whose gradient is 0, and replaces the model by one like it afterwards.
   */
  async checkLoss(loss: Loss, others: readonly Loss[]): Promise<void> {
    const probe = probeSample(this.#parts.vocabSize);
    const model = await this.#inOrder(async () => ({ result: Promise.resolve(await this.#model()) }));
    const plain = await this.#inOrder(() => this.#score(model, [probe]));
    this.#masks = plain.lossSum === undefined;
    const moved = probeMoved(probe, plain.logprobs[0]!);
    const ask = (one: Loss) => this.#ask(model, one, moved, plain).catch(asProblem);
    const found = await ask(loss);
    if (!(found instanceof TrainyardError)) return await this.#begin(found);
    const possible: string[] = [];
    for (const other of others) if (!((await ask(other)) instanceof TrainyardError)) possible.push(other.name);
    const list = possible.length === 0 ? 'no other loss either' : possible.join(', ');
    throw new TrainyardError(
      'USAGE',
      `loss: ${found.message}; with these settings it can train ${list}`,
      possible.length === 0 ? 'leave out --kl and --entropy, or use another server' : `give --loss ${possible[0]}`,
    );
  }

  /** Throws TRAINER_FAILED or POLICY_REFUSED if the server cannot train the loss. */
  async #ask(model: TinkerModel, loss: Loss, sample: Sample, plain: Scored): Promise<ServerKind> {
    const named = namedLoss(loss, [sample]);
    // A run's only cross_entropy is dpo, whose weights have both signs: a division by their sum would make another loss of it.
    const isDpo = named?.name === 'cross_entropy';
    let found = '';
    if (named !== undefined && !isDpo) {
      const answer = await this.#askByName(model, named, loss, sample).catch(asProblem);
      if (!(answer instanceof TrainyardError)) return answer;
      // A name unknown to a forward pass may still be known to a backward pass, which will tell.
      if (!isUnknownLoss(answer)) this.#refusedLosses.add(named.name);
      found = `the server’s ${named.name}: ${answer.message}; `;
    }
    try {
      checkPlainSum(plain.logprobs, plain.lossSum, isDpo ? 'dpo' : loss.name);
    } catch (thrown) {
      throw new TrainyardError('TRAINER_FAILED', found + messageOf(thrown));
    }
    return 'values';
  }

  async #askByName(model: TinkerModel, named: NamedLoss, loss: Loss, sample: Sample): Promise<ServerKind> {
    const { name, settings: lossSettings, value = loss } = named;
    const ask = async (asked: Sample, forwardOnly: boolean): Promise<ServerKind> => {
      const read = async (output: PassOutput): Promise<ServerKind> => {
        checkLossSum(await evaluateBatch(value, [asked], await scores([asked], output.outputs)), lossIn(output), name);
        return kindOf(output);
      };
      const data = [named.datum(asked, this.#masks)];
      try {
        return await this.#inOrder(() =>
          model.pass({ data, loss: name, lossSettings, forwardOnly, isHarmless: () => true, read }),
        );
      } catch (thrown) {
        if (!this.#masks || !isRefusal(thrown) || !/\bweights\b/.test(thrown.message)) throw thrown;
        this.#masks = false;
        return await ask(asked, forwardOnly);
      }
    };
    const kind = await ask(sample, true);
    if (kind !== 'unknown') return kind;
    // It compares whole samples; over which of their tokens, only its value would show.
    if (name === 'gspo')
      throw new TrainyardError('TRAINER_FAILED', 'this server does not say what it comes to, which may be another loss');
    this.#isProbed = true;
    const found = await ask(probeAtRest(sample), false);
    // By their source, these add gradients up and count nothing: one of 0 leaves no trace, and a new model would take minutes.
    this.#isProbed = found !== 'sharded';
    return found;
  }

  /** Before anything is sampled or trained at a server of this kind. */
  async #begin(kind: ServerKind): Promise<void> {
    if (kind === 'jax') refuseStaleness(this.#parts.staleness);
    const notice = habitsOf(kind, this.#masks);
    if (notice !== undefined) this.#parts.onNotice?.(notice);
    if (!this.#isProbed) return;
    await this.#inOrder(async () => {
      await this.#replace(await this.#startOf(await this.#model()));
      return DONE;
    });
    if (this.#published !== undefined) await this.publish(this.#published);
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
    return this.#current ?? (await this.#replace(this.#base()));
  }

  /**
   * The new model comes first, so that nothing of the old one can be left in it; where there is no room for both, the old one goes first.
   * Waits while a server still holds the model of a client that was killed.
   */
  async #replace(start: ModelStart): Promise<TinkerModel> {
    const { connection, onNotice } = this.#parts;
    const until = performance.now() + ROOM_MS;
    let previous = this.#current;
    for (let waits = 0; ; ) {
      try {
        this.#current = await TinkerModel.create(connection, start);
        break;
      } catch (thrown) {
        if (!isFull(thrown) || performance.now() > until) throw thrown;
        if (previous === undefined) {
          if (waits++ === 0) onNotice?.(waitingFor(thrown, ROOM_MS));
          await sleep(ROOM_AGAIN_MS);
        }
        await previous?.unload();
        previous = undefined;
      }
    }
    void previous?.unload();
    this.#hasStepped = false;
    this.#isProbed = false;
    return this.#current;
  }

  /** Describes a model with the same weights. */
  async #startOf(model: TinkerModel): Promise<ModelStart> {
    return this.#hasStepped ? { ...model.start, path: await (await model.save()).result } : model.start;
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
      throw new TrainyardError(
        'SAMPLE_REFUSED',
        `${which}: its temperature is ${sample.temperature}, expected 1`,
        'a Tinker server scores at temperature 1 only; sample with temperature 1',
      );
    });
  }

  async #score(model: TinkerModel, samples: readonly Sample[]): Promise<Underway<Scored>> {
    const sent = samples.filter(isTrained);
    const read = async ({ outputs, lossSum }: PassOutput) => ({ logprobs: await scores(samples, outputs), lossSum });
    if (sent.length === 0) return { result: read({ outputs: [], metrics: {}, lossSum: 0 }) };
    const data = await mapYielding(sent, scoringDatum);
    return model.pass({ data, loss: 'cross_entropy', lossSettings: {}, forwardOnly: true, read });
  }

  /** The reference never changes, so it is recreated if the server loses it. */
  async #scoreByReference(samples: readonly Sample[]): Promise<Float32Array[]> {
    const reference = this.#reference;
    if (reference === undefined) {
      throw new TrainyardError('TRAINER_FAILED', 'there are no reference weights', 'call freezeReference() first');
    }
    const score = async (model: TinkerModel) => (await (await this.#score(model, samples)).result).logprobs;
    try {
      return await score(reference);
    } catch (thrown) {
      if (!isLost(thrown)) throw thrown;
      this.#reference = await TinkerModel.create(this.#parts.connection, reference.start);
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
    const read = async (output: PassOutput): Promise<ForwardBackwardResult> => {
      const logprobs = await scores(samples, output.outputs);
      const evaluated = await evaluateBatch(loss, samples, logprobs);
      const ours = named.value === undefined ? evaluated : await evaluateBatch(named.value, samples, logprobs);
      checkLossSum(ours, lossIn(output), name);
      return evaluated.result;
    };
    try {
      const data = await mapYielding(sent, (sample) => named.datum(sample, this.#masks));
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
  return isRefusal(thrown) && /\bloss_fn(?!_inputs)|\b(unknown|unsupported|invalid) loss\b/i.test(thrown.message);
}

/** Of an answer that means that the server cannot train a loss. Throws any other error. */
function asProblem(thrown: unknown): TrainyardError {
  if (isRefusal(thrown) || (thrown instanceof TrainyardError && thrown.code === 'TRAINER_FAILED')) return thrown;
  throw thrown;
}

function withoutGradient(cause: unknown): TrainyardError {
  const message = `no step was taken, since the gradient for it failed: ${messageOf(cause)}`;
  return new TrainyardError(isLost(cause) ? 'POLICY_LOST' : 'TRAINER_FAILED', message, { cause });
}
