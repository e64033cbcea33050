/**
 * The answers of one session by request, so that a client's retry gets the answer it missed instead of a second turn.
 *
 * A request repeated after an answer that could not be delivered, or marked as a retry by its client, gets the earlier answer; one
 * marked as a retry while the first is still being sampled waits for that one. Any other repetition is a new sample: asking
 * the same question k times is how an agent gets k opinions.
 */
import type { Turn } from '../core/types.ts';

export class Answers {
  readonly #latest = new Map<string, Turn>();
  readonly #missed = new Map<string, Turn[]>();
  readonly #running = new Map<string, Promise<Turn>>();

  async get(key: string, isRetry: boolean, sample: () => Promise<Turn>): Promise<Turn> {
    const missed = this.#missed.get(key)?.shift();
    if (missed !== undefined) return missed;
    if (isRetry) {
      const latest = this.#latest.get(key);
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

  /** This answer to the request did not reach the client. */
  miss(key: string, answer: Turn): void {
    const missed = this.#missed.get(key) ?? [];
    this.#missed.set(key, missed);
    if (!missed.includes(answer)) missed.push(answer);
  }
}

/** Whether the client's SDK says that it has asked this before. */
export function isMarkedRetry(header: (name: string) => string | null | undefined): boolean {
  return ['x-stainless-retry-count', 'x-retry-count'].some((name) => Number(header(name) ?? 0) > 0);
}
