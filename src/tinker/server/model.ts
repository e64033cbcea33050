/**
 * A model that a client made: its verbs in their order, and the unnamed sets of sampler weights it left behind. It is there before it
 * is open: what is asked of it meanwhile waits.
 */
import { messageOf } from '../../core/errors.ts';
import type { AdamSettings } from '../../core/policy.ts';
import type { PassRequest } from '../wire/messages.ts';
import { ApiError } from './api-error.ts';
import type { Future, Futures, Outcome } from './futures.ts';
import { TINKER_LIMITS } from './limits.ts';
import { Order, type Turn } from './order.ts';
import type { Weights } from './sampler-pool.ts';
import type { Broken, TrainingModel } from './training-model.ts';
import type { RunLabel, WeightsFolder } from './weights-folder.ts';

export interface ModelOptions {
  readonly id: string;
  readonly sessionId: string;
  readonly label: RunLabel;
  readonly opened: Promise<TrainingModel>;
  readonly futures: Futures;
  readonly folder: WeightsFolder;
  readonly gapMs: number;
}

/** What tells one request from another. */
export interface Sent {
  readonly seqId: number | undefined;
  readonly digest: string;
}

/** Without one of these, the gradient is not what its client thinks. */
const GRADIENT_VERBS: ReadonlySet<string> = new Set(['forward_backward', 'optim_step']);

export class Model {
  readonly id: string;
  readonly sessionId: string;
  readonly label: RunLabel;
  readonly #opened: Promise<TrainingModel>;
  /** Once it is open. */
  #training: TrainingModel | undefined;
  readonly #order: Order;
  readonly #folder: WeightsFolder;
  /** Oldest first. */
  readonly #unnamed: { gone: boolean; readonly folder: string }[] = [];
  #made = 0;

  constructor({ id, sessionId, label, opened, futures, folder, gapMs }: ModelOptions) {
    this.id = id;
    this.sessionId = sessionId;
    this.label = label;
    this.#opened = opened;
    this.#order = new Order((work) => futures.start(work, sessionId), gapMs);
    this.#folder = folder;
    opened.then(
      (training) => {
        this.#training = training;
      },
      () => undefined,
    );
  }

  pass(sent: Sent, request: PassRequest): Future {
    // Taken now: what the client knew when it sent this.
    const known = this.#training?.knownFailures() ?? new Set();
    const failure = this.#failureOf('forward_backward', sent, () => future);
    const future: Future = this.#order.submit({
      ...sent,
      run: async () => ({ kind: 'pass', result: await (await this.#opened).pass(request, failure, known) }),
      skipped: this.#breakOff(failure),
    });
    return future;
  }

  /** A request that was refused as it came has its place in the order too, and fails there. */
  refused(sent: Sent & { readonly seqId: number }, verb: string, why: string): void {
    // Whoever sent it is told at once.
    const failure: Broken = { what: `the ${verb} before it (seq_id ${sent.seqId}) was refused`, known: () => true };
    this.#order.skip(sent.seqId, sent.digest, this.#leftBy(verb, failure), why);
  }

  step(sent: Sent, adam: AdamSettings): Future {
    const failure = this.#failureOf('optim_step', sent, () => future);
    const future: Future = this.#order.submit({
      ...sent,
      run: async () => {
        const { gradNorm } = await (await this.#opened).step(adam);
        return { kind: 'reply', value: { metrics: { 'grad_norm:mean': gradNorm } } };
      },
      skipped: this.#breakOff(failure),
    });
    return future;
  }

  load(sent: Sent, find: () => Promise<Weights>, optimizer: boolean, path: string): Future {
    const failure = this.#failureOf('load_weights', sent, () => future);
    const future: Future = this.#order.submit({
      ...sent,
      run: async () => {
        const training = await this.#opened;
        try {
          await training.load(await find(), optimizer);
        } catch (thrown) {
          training.loadFailed(failure, messageOf(thrown));
          throw thrown;
        }
        return { kind: 'reply', value: { path, model_id: this.id, type: 'load_weights' } };
      },
      skipped: this.#loadFailed(failure),
    });
    return future;
  }

  save(sent: Sent, save: (write: (dir: string) => Promise<void>) => Promise<object>): Future {
    return this.#submit(sent, async (training) => ({ kind: 'reply', value: await save((dir) => training.save(dir)) }));
  }

  /** Weights without a name, as they are in this turn. The oldest go: a client that wants to keep them names them. */
  saveUnnamed(sent: Sent, use: (weights: Weights) => object): Future {
    return this.#submit(sent, async (training) => {
      const { id, folder } = await this.#folder.saveUnnamed(this.id, ++this.#made, (dir) => training.save(dir));
      const kept = { gone: false, folder };
      this.#unnamed.push(kept);
      if (this.#unnamed.length > TINKER_LIMITS.unnamed) await this.#forget(this.#unnamed.shift()!);
      const check = async (): Promise<void> => {
        if (!kept.gone) return;
        throw new ApiError(
          'unknown_sampler',
          `these weights are gone: of each model the latest ${TINKER_LIMITS.unnamed} are kept`,
          {
            hint: 'save weights under a name to keep them',
          },
        );
      };
      return { kind: 'reply', value: use({ id, folder, check }) };
    });
  }

  /** After everything that came before. */
  unload(ended: () => void): Future {
    return this.#submit({ seqId: undefined, digest: '' }, async () => {
      ended();
      void this.close('the model was unloaded');
      return { kind: 'reply', value: { model_id: this.id, type: 'unload_model' } };
    });
  }

  /** Whatever waits fails. */
  async close(why: string): Promise<void> {
    await this.#order.close(why);
    const training = await this.#opened.catch(() => undefined);
    await training?.close();
    for (const kept of this.#unnamed.splice(0)) await this.#forget(kept);
  }

  async #forget(kept: { gone: boolean; readonly folder: string }): Promise<void> {
    kept.gone = true;
    await this.#folder.removeFolder(kept.folder);
  }

  #submit(sent: Sent, run: (training: TrainingModel) => Promise<Outcome>): Future {
    return this.#order.submit({ ...sent, run: async () => run(await this.#opened), skipped: () => {} });
  }

  #failureOf(what: string, { seqId }: Sent, future: () => Future): Broken {
    const which = seqId === undefined ? '' : ` (seq_id ${seqId})`;
    return { what: `the ${what} before it${which} failed`, known: () => future().delivered };
  }

  /** What a request that was not carried out means for those behind it. */
  #leftBy(verb: string, failure: Broken): Turn['skipped'] {
    if (verb === 'load_weights') return this.#loadFailed(failure);
    return GRADIENT_VERBS.has(verb) ? this.#breakOff(failure) : () => {};
  }

  #loadFailed(failure: Broken): Turn['skipped'] {
    return async (why) => {
      const training = await this.#opened.catch(() => undefined);
      training?.loadFailed(failure, why);
    };
  }

  #breakOff(failure: Broken): Turn['skipped'] {
    return async () => {
      const training = await this.#opened.catch(() => undefined);
      training?.breakOff(failure);
    };
  }
}
