/**
 * Going on when the server of the policy has lost the weights in training: it was restarted, or let them go.
 *
 * Whatever notices it first, a sample or a step, has the policy put back to the last committed step; then both are tried again. A step
 * and a recovery never overlap: otherwise a gradient taken before the loss could be missing from the update after it. The seed and the
 * version of a repeated sample are the same as before, so its turn is recorded once and truly.
 */
import type { Downtime } from '../core/async.ts';
import { Mutex } from '../core/async.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Warn } from '../core/events.ts';
import type { Engine } from '../core/policy.ts';
import { engineWith } from '../core/policy.ts';

/** Losses in a row, with no step between them, after which the server is not trusted to keep anything. */
const MOST_LOSSES = 3;
/** What no rollout can do anything about: it ends the run, not one rollout after the other. */
const ENDS_THE_RUN: ReadonlySet<string> = new Set(['POLICY_UNREACHABLE', 'POLICY_REFUSED', 'POLICY_LOST']);

/** Does the work, and does it again from its start after a loss. */
export type Repeat = <T>(work: () => Promise<T>) => Promise<T>;

export class Recovery {
  readonly #warn: Warn;
  /** Runs while the policy is put back. */
  readonly #downtime: Downtime | undefined;
  /** Puts the policy back to where the last committed step left it, and serves it. May itself meet with a loss. */
  restore: () => Promise<void>;
  readonly #fatal = new AbortController();
  /** How often the policy was put back. */
  #restored = 0;
  #inARow = 0;
  #mutex = new Mutex();

  constructor(warn: Warn, restore: () => Promise<void>, downtime?: Downtime) {
    this.#warn = warn;
    this.restore = restore;
    this.#downtime = downtime;
  }

  /** Aborts, with the error as its reason, when nothing can be sampled any more. */
  get fatal(): AbortSignal {
    return this.#fatal.signal;
  }

  /** The engine, asked again after a loss. */
  around(engine: Engine): Engine {
    const sample: Engine['sample'] = async (request, signal, onTokens) => {
      while (true) {
        const restored = this.#restored;
        try {
          return await engine.sample(request, signal, onTokens);
        } catch (thrown) {
          if (!isLoss(thrown)) throw this.#ending(thrown);
          await this.exclusively(() => this.#recover(thrown, restored)).catch((failed: unknown) => {
            throw this.#ending(failed);
          });
        }
      }
    };
    return engineWith(engine, sample);
  }

  /** Work on the trainer, begun again from the start after a loss. It must have no effect that lasts before its last verb resolved. */
  step<T>(work: () => Promise<T>): Promise<T> {
    return this.exclusively((again) => again(work));
  }

  /**
   * Several such pieces of work, each done through `again`, and what must lie between them: nobody else's recovery comes in between. One
   * that came between saving a step and committing it would put the policy back to the step before, and remove what was saved.
   */
  exclusively<T>(work: (again: Repeat) => Promise<T>): Promise<T> {
    return this.#mutex.run(() => work((piece) => this.#untilDone(piece)));
  }

  async #untilDone<T>(work: () => Promise<T>): Promise<T> {
    while (true) {
      const restored = this.#restored;
      try {
        const result = await work();
        this.#inARow = 0;
        return result;
      } catch (thrown) {
        if (!isLoss(thrown)) throw thrown;
        await this.#recover(thrown, restored);
      }
    }
  }

  /** Nothing where someone else has done it since. */
  async #recover(loss: TrainyardError, restored: number): Promise<void> {
    if (this.#restored > restored) return;
    // Someone else has tried, and failed for good.
    if (this.fatal.aborted) throw this.fatal.reason;
    if (++this.#inARow > MOST_LOSSES) throw loss;
    this.#warn('POLICY_LOST', `${loss.message}; going back to the last saved state`);
    this.#downtime?.begin();
    try {
      await this.restore();
    } catch (thrown) {
      if (!isLoss(thrown)) throw this.#ending(thrown);
      return await this.#recover(thrown, restored);
    } finally {
      this.#downtime?.end();
    }
    this.#restored++;
    this.#warn('POLICY_RESTORED', 'the policy is back at the last committed step; nothing was trained twice');
  }

  #ending(thrown: unknown): unknown {
    if (thrown instanceof TrainyardError && ENDS_THE_RUN.has(thrown.code)) this.#fatal.abort(thrown);
    return thrown;
  }
}

function isLoss(thrown: unknown): thrown is TrainyardError {
  return thrown instanceof TrainyardError && thrown.code === 'POLICY_LOST';
}
