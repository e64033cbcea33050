/**
 * Trains a model at a Tinker server: the Trainer contract in Tinker's verbs, sent in the order they are called and without waiting for
 * the results of earlier ones.
 *
 * A loss that the server has by name is computed there; any other is computed here, between a forward pass and a weighted
 * cross-entropy, whose gradient is the same. What is reported is always computed here, from the log-probabilities that the server
 * gives, by our own definition of the loss; a server whose loss of the same name is another one is found out. Tinker's passes have no
 * temperature, so only samples of temperature 1 are trained. A verb that fails at the server spoils the model (`tinker-model.ts`)
 * until `load`. Weights stay at the server: a checkpoint folder only says where they are.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { mapYielding } from '../../core/async.ts';
import { TrainyardError } from '../../core/errors.ts';
import type { AdamSettings, ForwardBackwardResult, Loss, Trainer } from '../../core/policy.ts';
import { checkSample } from '../../core/policy.ts';
import type { Sample } from '../../core/types.ts';
import { checkLossSum, checkPlainSum, evaluateBatch } from '../../trainer/evaluate-batch.ts';
import type { TinkerConnection } from './connection.ts';
import { isTrained, type NamedLoss, namedLoss, scoredTokens, scoringDatum, weightedDatum } from './datum.ts';
import { isLost, type ModelStart, TinkerModel, type Underway } from './tinker-model.ts';
import type { PassFormat, PassOutput } from './tinker-pass.ts';
import { readSavedState, removalPath, writeSavedState } from './tinker-saved.ts';

export interface TinkerTrainerParts {
  readonly connection: TinkerConnection;
  readonly baseModel: string;
  readonly loraRank: number;
  /** Of the adapter's initial weights. */
  readonly seed: number;
  readonly vocabSize: number;
  readonly contextLength: number;
  /** The weights of this version can be sampled from in this session. */
  readonly onPublished: (samplingSessionId: string, policyVersion: number) => void;
}

/** What a pass without a gradient gives. */
interface Scored {
  readonly logprobs: Float32Array[];
  /** As the server reports it. */
  readonly lossSum: number | undefined;
}

/** A model, and from what another one like it can be made as long as it was not trained. */
interface Held {
  readonly model: TinkerModel;
  readonly start: ModelStart;
}

const GOODBYE_MS = 2000;

export class TinkerTrainer implements Trainer, AsyncDisposable {
  readonly #parts: TinkerTrainerParts;
  readonly #format: PassFormat = { kind: undefined };
  /** Losses that the server has computed by name, and those it has refused. */
  readonly #provenLosses = new Set<string>();
  readonly #refusedLosses = new Set<string>();
  /** Backward passes that were called and have not ended. */
  readonly #backwards = new Set<{ failure: unknown }>();
  /** Why the latest backward pass was not sent. */
  #unsent: unknown;
  #current: Held | undefined;
  #reference: Held | undefined;
  /** Whether a step was sent since the current model began. */
  #hasStepped = false;
  /** The end of the last submission. */
  #sending: Promise<unknown> = Promise.resolve();
  #publishing: Promise<unknown> = Promise.resolve();

  constructor(parts: TinkerTrainerParts) {
    this.#parts = parts;
  }

  forward(samples: readonly Sample[], weights: 'current' | 'reference' = 'current'): Promise<Float32Array[]> {
    return this.#inTurn(async () => {
      await this.#check(samples);
      if (weights === 'current') {
        const { result } = await this.#score(await this.#model(), samples);
        return { result: result.then(({ logprobs }) => logprobs) };
      }
      return { result: this.#scoreByReference(samples) };
    });
  }

  async forwardBackward(samples: readonly Sample[], loss: Loss): Promise<ForwardBackwardResult> {
    const backward: { failure: unknown } = { failure: undefined };
    this.#backwards.add(backward);
    try {
      return await this.#inTurn(async () => {
        try {
          await this.#check(samples);
          const underway = await this.#backward(samples, loss);
          this.#unsent = undefined;
          return underway;
        } catch (thrown) {
          backward.failure = thrown;
          this.#unsent = thrown;
          throw thrown;
        }
      });
    } finally {
      this.#backwards.delete(backward);
    }
  }

  optimStep(adam: AdamSettings): Promise<{ readonly gradNorm: number | undefined }> {
    // Whoever calls this before those have ended counts on their gradient.
    const awaited = [...this.#backwards];
    return this.#inTurn(async () => {
      const failure = awaited.find((backward) => backward.failure !== undefined)?.failure;
      if (failure !== undefined) throw withoutGradient(failure);
      const model = await this.#model();
      model.assertSound();
      if (this.#unsent !== undefined) throw withoutGradient(this.#unsent);
      this.#hasStepped = true;
      return model.optimStep(adam);
    });
  }

  publish(policyVersion: number): Promise<void> {
    return this.#inTurn(async () => {
      const { result } = await (await this.#model()).publish();
      const published = this.#publishing.then(() => result).then((id) => this.#parts.onPublished(id, policyVersion));
      this.#publishing = published.catch(() => undefined);
      return { result: published };
    });
  }

  /** Writes tinker.json; the weights stay at the server. */
  save(dir: string): Promise<void> {
    return this.#inTurn(async () => {
      const { result } = await (await this.#model()).save();
      return { result: result.then((path) => this.#writeState(dir, path)) };
    });
  }

  /** A new model at the server, in a new session where that is needed; a folder without tinker.json means the base model. */
  load(dir: string): Promise<void> {
    return this.#inTurn(async () => {
      const path = await this.#savedPath(dir);
      const previous = this.#current;
      this.#current = await this.#begin({ ...this.#base(), path });
      this.#hasStepped = false;
      this.#unsent = undefined;
      void previous?.model.unload();
      return { result: Promise.resolve() };
    });
  }

  async forget(dir: string): Promise<void> {
    const state = await readSavedState(dir).catch(() => undefined);
    if (state === undefined || state.server !== this.#parts.connection.address) return;
    // The reference may have to be made from it again.
    if (state.path === this.#reference?.start.path) return;
    await this.#parts.connection.mention('DELETE', removalPath(state));
  }

  freezeReference(): Promise<void> {
    return this.#inTurn(async () => {
      const model = await this.#model();
      const start = this.#current!.start;
      const path = this.#hasStepped ? await (await model.save()).result : start.path;
      void this.#reference?.model.unload();
      this.#reference = await this.#begin({ ...start, path });
      return { result: Promise.resolve() };
    });
  }

  /** Tells the server to drop the models; does not wait long for it. */
  async [Symbol.asyncDispose](): Promise<void> {
    const unloaded = Promise.all([this.#current?.model.unload(), this.#reference?.model.unload()]);
    const patience = new AbortController();
    await Promise.race([unloaded, sleep(GOODBYE_MS, undefined, { signal: patience.signal }).catch(() => undefined)]);
    patience.abort();
  }

  /** Sends what `send` sends when its turn comes, and waits for the result while others have theirs. */
  async #inTurn<T>(send: () => Promise<Underway<T>>): Promise<T> {
    const sent = this.#sending.then(send);
    this.#sending = sent.catch(() => undefined);
    return (await sent).result;
  }

  async #model(): Promise<TinkerModel> {
    this.#current ??= await this.#begin(this.#base());
    return this.#current.model;
  }

  async #begin(start: ModelStart): Promise<Held> {
    return { model: await TinkerModel.create(this.#parts.connection, this.#format, start), start };
  }

  #base(): ModelStart {
    const { baseModel, loraRank, seed } = this.#parts;
    return { baseModel, loraRank, seed };
  }

  async #check(samples: readonly Sample[]): Promise<void> {
    await mapYielding(samples, (sample, i) => {
      checkSample(sample, i, this.#parts);
      if (sample.temperature === 1) return;
      const rollout = JSON.stringify(sample.rolloutId);
      throw new TrainyardError(
        'SAMPLE_REFUSED',
        `sample ${i} (rollout ${rollout}): its temperature is ${sample.temperature}, expected 1`,
        {
          hint: 'a Tinker server scores at temperature 1 only; sample with temperature 1',
        },
      );
    });
  }

  async #score(model: TinkerModel, samples: readonly Sample[]): Promise<Underway<Scored>> {
    const sent = samples.filter(isTrained);
    const read = async ({ outputs, lossSum }: PassOutput) => ({ logprobs: await scores(samples, outputs), lossSum });
    if (sent.length === 0) return { result: read({ outputs: [], lossSum: 0 }) };
    const data = await mapYielding(sent, scoringDatum);
    return model.pass({ data, loss: 'cross_entropy', lossSettings: {}, forwardOnly: true, read });
  }

  /** The reference never changes, so one that the server has lost is made again. */
  async #scoreByReference(samples: readonly Sample[]): Promise<Float32Array[]> {
    const held = this.#reference;
    if (held === undefined) {
      throw new TrainyardError('TRAINER_FAILED', 'there are no reference weights', { hint: 'call freezeReference() first' });
    }
    try {
      return (await (await this.#score(held.model, samples)).result).logprobs;
    } catch (thrown) {
      if (!isLost(thrown)) throw thrown;
      this.#reference = await this.#begin(held.start);
      return (await (await this.#score(this.#reference.model, samples)).result).logprobs;
    }
  }

  async #backward(samples: readonly Sample[], loss: Loss): Promise<Underway<ForwardBackwardResult>> {
    const model = await this.#model();
    const sent = samples.filter(isTrained);
    if (sent.length === 0) {
      const { result } = await evaluateBatch(loss, samples, await scores(samples, []));
      return { result: Promise.resolve(result) };
    }
    const named = this.#refusedLosses.has(loss.name) ? undefined : namedLoss(loss, sent);
    if (named === undefined) return this.#customBackward(model, samples, loss);
    const proven = this.#provenLosses.has(named.name);
    try {
      const underway = await this.#namedBackward(model, samples, loss, named);
      // Until the server has shown that it has this loss, nothing may be sent that counts on it.
      if (!proven) await underway.result;
      this.#provenLosses.add(named.name);
      return underway;
    } catch (thrown) {
      if (proven || !isUnknownLoss(thrown)) throw thrown;
      this.#refusedLosses.add(named.name);
      return this.#customBackward(model, samples, loss);
    }
  }

  async #namedBackward(model: TinkerModel, samples: readonly Sample[], loss: Loss, named: NamedLoss) {
    return model.pass({
      data: await mapYielding(samples.filter(isTrained), named.datum),
      loss: named.name,
      lossSettings: named.settings,
      forwardOnly: false,
      isHarmless: isUnknownLoss,
      read: async ({ outputs, lossSum }) => {
        const evaluated = await evaluateBatch(loss, samples, await scores(samples, outputs));
        checkLossSum(evaluated, lossSum, named.name);
        return evaluated.result;
      },
    });
  }

  /**
   * The gradient of cross-entropy by a log-probability is minus its weight: with the loss's own derivatives as weights, it is the loss's.
   * That holds only where the server adds up what it is given; one that divides by the weights' sum would make nonsense of them.
   */
  async #customBackward(model: TinkerModel, samples: readonly Sample[], loss: Loss): Promise<Underway<ForwardBackwardResult>> {
    const { logprobs, lossSum } = await (await this.#score(model, samples)).result;
    checkPlainSum(logprobs, lossSum, loss.name);
    const { result, gradients } = await evaluateBatch(loss, samples, logprobs);
    const datums = await mapYielding(samples, (sample, i) => {
      const weights = gradients[i]!.map((derivative) => -derivative * sample.weight);
      return isTrained(sample) ? [weightedDatum(sample, weights)] : [];
    });
    const data = datums.flat();
    const read = async ({ outputs }: PassOutput) => {
      await scores(samples, outputs);
      return result;
    };
    return model.pass({ data, loss: 'cross_entropy', lossSettings: {}, forwardOnly: false, read });
  }

  async #writeState(dir: string, path: string): Promise<void> {
    const { connection, baseModel, loraRank } = this.#parts;
    await writeSavedState(dir, { server: connection.address, baseModel, loraRank, path, savedAt: new Date().toISOString() });
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

/** Of each sample's masked tokens; `outputs` are those of the samples that were sent, in order. */
async function scores(samples: readonly Sample[], outputs: PassOutput['outputs']): Promise<Float32Array[]> {
  const sent = samples.filter(isTrained).length;
  if (outputs.length !== sent) {
    throw new TrainyardError('POLICY_GARBLED', `the server gave ${outputs.length} outputs for ${sent} samples`);
  }
  let next = 0;
  return mapYielding(samples, (sample) => (isTrained(sample) ? scoredTokens(sample, outputs[next++]) : new Float32Array(0)));
}

/** Refused because of the loss, not because of what it was given. */
function isUnknownLoss(thrown: unknown): boolean {
  if (!(thrown instanceof TrainyardError) || thrown.code !== 'POLICY_REFUSED') return false;
  return /\bloss_fn(?!_inputs)|\b(unknown|unsupported|invalid) loss\b/i.test(thrown.message);
}

function withoutGradient(failure: unknown): TrainyardError {
  const lost = isLost(failure);
  const message = failure instanceof Error ? failure.message : String(failure);
  return new TrainyardError(
    lost ? 'POLICY_LOST' : 'TRAINER_FAILED',
    `no step was taken, since the gradient for it failed: ${message}`,
    {
      cause: failure,
    },
  );
}
