/** An AReaL agent in a process of its own, with the real policy. */
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { rolloutBatch } from '../../src/run/groups.ts';
import { hasSandbox } from '../fixtures/sandbox.ts';

const entry = fileURLToPath(new URL('../fixtures/areal/isolated-agent.ts', import.meta.url));

beforeAll(() => {
  process.env['TRAINYARD_TEST_PARENT'] = 'a secret of the run';
});
afterAll(() => {
  delete process.env['TRAINYARD_TEST_PARENT'];
});

it.skipIf(!hasSandbox)(
  'an agent in a process of its own finds the policy in its environment, nothing else, and is discounted as any other',
  async () => {
    const prompt = [{ role: 'user', content: 'Where is it?' }] as const;
    const [slot] = await rolloutBatch({ entry, tasks: [{ id: 't', prompt, answer: 'secret' }], concurrency: 1, threads: 1 });
    const [trajectory] = slot ?? [];
    expect(trajectory?.turns.map(({ after }) => after)).toEqual([undefined, 0]);
    const { grade } = trajectory!;
    if (grade.kind !== 'graded') throw new Error('graded');
    const { value, byTurn } = grade.reward;
    expect(value).toBeGreaterThan(0);
    expect(value).not.toBe(process.pid);
    expect(byTurn).toEqual({ 0: value / 2, 1: value });
  },
);
