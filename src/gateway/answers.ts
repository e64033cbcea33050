/**
 * The answers of one session by request, so that a client's retry gets the answer it missed instead of a second turn.
 *
 * A request repeated after an answer that could not be delivered, or marked as a retry by its client, gets the earlier answer; one
 * marked as a retry while the first is still being sampled waits for that one. Any other repetition is a new sample: asking
 * the same question k times is how an agent gets k opinions.
 */
export class Answers {
  readonly #latest = new Map<string, string>();
  readonly #missed = new Set<string>();
  readonly #running = new Map<string, Promise<string>>();

  async get(key: string, isRetry: boolean, sample: () => Promise<string>): Promise<string> {
    const latest = this.#latest.get(key);
    if (this.#missed.delete(key) || isRetry) {
      if (latest !== undefined) return latest;
      // The first attempt may yet be cancelled with its connection; then this one samples.
      const first = await this.#running.get(key)?.catch(() => undefined);
      if (first !== undefined) return first;
    }
    const running = sample();
    this.#running.set(key, running);
    try {
      const answer = await running;
      this.#latest.set(key, answer);
      return answer;
    } finally {
      if (this.#running.get(key) === running) this.#running.delete(key);
    }
  }

  /** The answer to this request did not reach the client. */
  miss(key: string): void {
    this.#missed.add(key);
  }
}

/** Whether the client's SDK says that it has asked this before. */
export function isMarkedRetry(headers: Headers): boolean {
  return ['x-stainless-retry-count', 'x-retry-count'].some((name) => Number(headers.get(name) ?? 0) > 0);
}
