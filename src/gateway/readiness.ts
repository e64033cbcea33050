/** Whether model calls can be answered: not before the engine has started, and never if it did not. */
import { messageOf } from '../core/errors.ts';
import { refused } from './http-errors.ts';

export class Readiness {
  #why: string | undefined;

  /** Without something to wait for it is there from the start. */
  constructor(ready: Promise<unknown> | undefined) {
    if (ready === undefined) return;
    this.#why = 'the engine is starting';
    ready.then(
      () => {
        this.#why = undefined;
      },
      (thrown) => {
        this.#why = `the engine did not start: ${messageOf(thrown)}`;
      },
    );
  }

  /** Throws a Refusal with 503. */
  check(): void {
    if (this.#why !== undefined) throw refused('not_ready', this.#why, { headers: { 'retry-after': '1' } });
  }
}
