/**
 * What is new in the runs, as server-sent events for one client. Directories are looked at only while somebody listens, and only when the
 * client has taken what was sent before: one that never reads costs no memory.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { BodyStream } from '../http/message.ts';
import type { Change } from './api.ts';
import type { ShownRun } from './shown-run.ts';

/** Milliseconds. */
const INTERVAL = 500;
/** So that proxies and clients do not take silence for an end. */
const LONGEST_SILENCE = 15_000;

interface Known {
  readonly events: number;
  readonly rollouts: number;
  readonly restarts: number;
  readonly state: Change['state'];
}

export class Changes implements BodyStream {
  readonly drained = false;
  onCut: ((reason: unknown) => void) | undefined;
  readonly #runs: readonly ShownRun[];
  readonly #gone: AbortSignal;
  readonly #known = new Map<ShownRun, Known>();

  constructor(runs: readonly ShownRun[], gone: AbortSignal) {
    this.#runs = runs;
    this.#gone = gone;
  }

  /** Rejects once the client has left. */
  async read(): Promise<string> {
    const since = performance.now();
    while (performance.now() - since < LONGEST_SILENCE) {
      const texts: string[] = [];
      for (const run of this.#runs) {
        const change = await this.#changeOf(run);
        if (change !== undefined) texts.push(`data: ${JSON.stringify(change)}\n\n`);
      }
      if (texts.length > 0) return texts.join('');
      await sleep(INTERVAL, undefined, { signal: this.#gone });
    }
    return ': still here\n\n';
  }

  delivered(): void {}

  cut(reason: unknown): void {
    this.onCut?.(reason);
  }

  async #changeOf(run: ShownRun): Promise<Change | undefined> {
    // Its info says what is wrong.
    await run.look().catch(() => {});
    const { events, rollouts, restarts } = run;
    const known = this.#known.get(run);
    const now: Known = { events: events.length, rollouts, restarts, state: run.state() };
    this.#known.set(run, now);
    const from = known?.restarts === restarts ? known.events : events.length;
    const isSame = known !== undefined && (Object.keys(now) as (keyof Known)[]).every((key) => known[key] === now[key]);
    if (isSame) return undefined;
    const restart = known?.restarts === restarts ? {} : { restart: true as const };
    return { run: run.id, state: now.state, events: events.slice(from), from, rollouts, ...restart };
  }
}
