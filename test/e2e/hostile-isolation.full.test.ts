/** Workflows in processes of their own that do what nobody should: it costs their rollout at most, never another's. */
import { describe, expect, it, onTestFinished } from 'vitest';
import { listen } from '../../src/gateway/gateway.ts';
import { startWorkflow } from '../../src/rollout/runner.ts';
import { grader, hostile } from '../fixtures/processes/hostile.ts';
import { rolloutsThrough, scriptedGateway } from '../fixtures/scripted-gateway.ts';

async function bench(workers: number) {
  const { gateway } = scriptedGateway((_, { seed }) => `said ${seed}`);
  const listener = await listen(gateway);
  const module = { url: new URL('../fixtures/processes/hostile.ts', import.meta.url).href, exportName: 'hostile' };
  const started = await startWorkflow(hostile, { module, workers, signal: new AbortController().signal });
  onTestFinished(async () => {
    await started[Symbol.asyncDispose]();
    await listener[Symbol.asyncDispose]();
  });
  const run = rolloutsThrough(gateway);
  const rollout = (order: string) =>
    run(
      { ...started, grader, limits: { turns: 8, deadlineMs: 30_000 } },
      { id: 't', prompt: [{ role: 'user', content: 'hello' }], answer: 'SECRET', metadata: { do: order } },
    );
  return { rollout, gateway };
}

const FINE = { outcome: { kind: 'completed' }, grade: { kind: 'graded', reward: { value: 1 } } };

describe('a workflow in a process of its own', () => {
  it.each([
    ['exit as if all were well', { outcome: { kind: 'failed', message: expect.stringMatching(/exited with code 0/) } }],
    ['end by a signal to its group', { outcome: { kind: 'failed', message: expect.stringMatching(/SIGKILL/) } }],
    ['flood its output', FINE],
    ['log without end', FINE],
    ['return far too much', { outcome: { kind: 'failed', code: 'WORKFLOW_BAD_RESULT' } }],
    ['claim results of others', FINE],
    ['say nonsense on the channel', FINE],
    ['reject where a tool catches it', { outcome: { kind: 'rejected', reason: 'too hard' }, grade: { kind: 'ungraded' } }],
    ['forget promises and timers that fail', FINE],
    ['leave a call for later', FINE],
  ])('may %s; the next rollout is as good as any', async (order, expected) => {
    const { rollout, gateway } = await bench(1);
    const trajectory = await rollout(order);
    expect(trajectory).toMatchObject(expected);
    expect(trajectory.output).not.toBe('stolen');
    expect(trajectory.turns.length).toBe(1);
    const next = await rollout('wait for what was left');
    expect(next).toMatchObject(FINE);
    expect(next.turns.map(({ request }) => request.messages.at(-1)?.content)).toEqual(['I am r1']);
    expect(gateway.openSessions).toBe(0);
  });

  it('takes its turn: many rollouts, few processes, each result its own', async () => {
    const { rollout, gateway } = await bench(4);
    const all = await Promise.all(Array.from({ length: 200 }, () => rollout('do as told')));
    for (const trajectory of all) {
      expect(trajectory).toMatchObject(FINE);
      expect(trajectory.turns[0]?.request.messages.at(-1)?.content).toBe(`I am ${trajectory.rolloutId}`);
    }
    expect(new Set(all.map(({ turns }) => turns[0]?.sampling.seed)).size).toBe(200);
    expect(gateway.openSessions).toBe(0);
  });
});
