/**
 * Decides when the policy of a server that restarted or dropped the weights is restored, and keeps steps and recoveries apart. Does not restore
 * it: the training does.
 */
import { type Downtime, Mutex } from '../core/async.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Warn } from '../core/events.ts';
import { type Engine, engineWith } from '../core/policy.ts';

type Repeat = <T>(work: () => Promise<T>) => Promise<T>;

/** How trainer work runs: once, or repeated after a server has lost the policy. */
export interface TrainerWork {
  /** Repeated from the start after a loss. The work must have no lasting effect before its last verb resolves. */
  step<T>(work: () => Promise<T>): Promise<T>;
  /**
   * Several pieces of repeatable work, each run through `again`, without another caller's recovery in between. A recovery between saving
   * and committing a step would restore the previous step and remove the save.
   */
  exclusively<T>(work: (again: Repeat) => Promise<T>): Promise<T>;
}

/** Consecutive losses without a completed step, after which the server is not trusted any more. */
const MOST_LOSSES = 3;
/** Errors that affect every rollout, so they end the run. */
const ENDS_THE_RUN: ReadonlySet<string> = new Set(['POLICY_UNREACHABLE', 'POLICY_REFUSED', 'POLICY_LOST']);

/**
 * Recovery for a policy at a server that restarted or dropped the weights. Whichever notices the loss first, a sample or a step, restores
 * the last committed step; then both retry. Steps and recoveries never overlap: otherwise a gradient from before the loss could be missing
 * from the update after it. A repeated sample keeps its seed and version, so its turn is recorded once and correctly.
 */
export class Recovery implements TrainerWork {
  readonly #warn: Warn;
  readonly #downtime: Downtime | undefined;
  /** Restores the last committed step and serves it. May itself throw POLICY_LOST. */
  restore: () => Promise<unknown>;
  readonly #fatal = new AbortController();
  #restored = 0;
  #inARow = 0;
  readonly #mutex = new Mutex();

  constructor(warn: Warn, restore: () => Promise<unknown>, downtime?: Downtime) {
    this.#warn = warn;
    this.restore = restore;
    this.#downtime = downtime;
  }

  /** Aborts, with the error as reason, when sampling has become impossible. */
  get fatal(): AbortSignal {
    return this.#fatal.signal;
  }

  /** Wraps an engine so that it samples again after a loss. */
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

  step<T>(work: () => Promise<T>): Promise<T> {
    return this.exclusively((again) => again(work));
  }

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

  /** Does nothing if another caller has recovered since. */
  async #recover(loss: TrainyardError, restored: number): Promise<void> {
    if (this.#restored > restored) return;
    // Another caller's recovery failed for good.
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
