import { describe, expect, it } from 'vitest';
import { type AttemptQueue, checkAttempts, type Kept } from './attempts-model.ts';

/** The least that keeps the rules, and ways to break them. */
type Broken = 'no fencing' | 'forgets what expires' | 'expires the living' | 'same attempt again' | 'keeps every result';

async function smallQueue(rollouts: readonly string[], broken?: Broken): Promise<AttemptQueue> {
  const waiting = rollouts.map((rollout) => ({ rollout, attempt: 1 }));
  const running = new Map<string, Kept>();
  const lost = new Set<string>();
  const results: Kept[] = [];
  return {
    async fetch(worker) {
      const job = waiting.shift();
      if (job !== undefined) running.set(job.rollout, { ...job, worker });
      return job;
    },
    async finish(worker, { rollout, attempt }) {
      const current = running.get(rollout);
      const isOwn = current?.attempt === attempt && current.worker === worker;
      const isDone = results.some((result) => result.rollout === rollout);
      const isTaken = isOwn || (broken === 'no fencing' && !isDone) || broken === 'keeps every result';
      if (!isTaken) return false;
      running.delete(rollout);
      results.push({ rollout, attempt, worker });
      return true;
    },
    lose: async (worker) => void lost.add(worker),
    async expire() {
      for (const { rollout, attempt, worker } of running.values()) {
        if (!lost.has(worker) && broken !== 'expires the living') continue;
        running.delete(rollout);
        if (broken === 'forgets what expires') continue;
        waiting.push({ rollout, attempt: broken === 'same attempt again' ? attempt : attempt + 1 });
      }
    },
    results: async () => results,
    [Symbol.asyncDispose]: async () => {},
  };
}

describe('the model of attempts', () => {
  it('agrees with a queue that keeps the rules, and has met late, repeated and expired attempts', async () => {
    const seen = await checkAttempts(smallQueue, 200);
    expect(seen).toEqual(new Set(['taken', 'repeated', 'late', 'expired']));
  });

  it.each<Broken>(['no fencing', 'forgets what expires', 'expires the living', 'same attempt again', 'keeps every result'])(
    'finds a queue that is broken: %s',
    async (broken) => {
      await expect(checkAttempts((rollouts) => smallQueue(rollouts, broken), 200)).rejects.toThrow();
    },
  );
});
