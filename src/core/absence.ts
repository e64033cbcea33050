/**
 * How long something that is counted on was away: a clock that runs while anyone says that it is. Only adds up; whoever measures a
 * stretch of time takes the difference.
 */
export class Absence {
  #holders = 0;
  #since = 0;
  #before = 0;

  get milliseconds(): number {
    return this.#before + (this.#holders > 0 ? performance.now() - this.#since : 0);
  }

  begin(): void {
    if (this.#holders++ === 0) this.#since = performance.now();
  }

  /** Once for every `begin`. */
  end(): void {
    if (--this.#holders === 0) this.#before += performance.now() - this.#since;
  }
}
