/** Workflows in processes of their own that do what nobody should: it costs their rollout at most, never another's. */
import { afterEach, beforeAll, describe, expect, it } from 'vitest';
import type { Trajectory } from '../../src/core/types.ts';
import { Gateway, listen } from '../../src/gateway/gateway.ts';
import { graderInput } from '../../src/grader/call.ts';
import { inlineGrader } from '../../src/grader/inline.ts';
import { runRollout, startWorkflow } from '../../src/rollout/runner.ts';
import { memoryStore } from '../../src/store/memory.ts';
import { scriptedEngine } from '../../src/testing/trajectories.ts';
import { createRenderer } from '../../src/tokens/renderer.ts';
import { loadTokenizer, type Tokenizer } from '../../src/tokens/tokenizer.ts';
import { grader, hostile } from '../fixtures/processes/hostile.ts';

let tokenizer: Tokenizer;
beforeAll(async () => {
  tokenizer = await loadTokenizer(new URL('../../models/base', import.meta.url).pathname);
});
const stack: AsyncDisposable[] = [];
afterEach(async () => {
  for (const open of stack.splice(0).reverse()) await open[Symbol.asyncDispose]();
});

async function bench(workers: number) {
  const reply = ({ seed }: { seed: number }): number[] => [...tokenizer.encodeRendered(`said ${seed}<|im_end|>`)];
  const engine = scriptedEngine({ vocabSize: 1024, contextLength: 4096, reply });
  const gateway = new Gateway({ engine, renderer: createRenderer(tokenizer), modelName: 'policy' });
  stack.push(await listen(gateway));
  const module = { url: new URL('../fixtures/processes/hostile.ts', import.meta.url).href, exportName: 'hostile' };
  const started = await startWorkflow(hostile, { module, workers, signal: new AbortController().signal });
  stack.push(started);
  const store = memoryStore();
  let n = 0;
  const rollout = (order: string): Promise<Trajectory> =>
    runRollout(
      {
        ...{ workflow: started.workflow, runWorkflow: started.runWorkflow, concurrency: started.concurrency },
        ...{ sessions: gateway, grader: inlineGrader(grader), graderInput, store, seed: 3, clock: { now: Date.now } },
        limits: { turns: 8, tokens: 1000, deadlineMs: 30_000 },
        signal: new AbortController().signal,
      },
      {
        task: { id: 't', prompt: [{ role: 'user', content: 'hello' }], answer: 'SECRET', metadata: { do: order } },
        identity: { rolloutId: `r${n++}`, groupId: 'g', taskId: 't', purpose: 'train' },
        sampling: { temperature: 1, topP: 1, topK: 0, maxTokens: 64 },
      },
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
  ])('may %s; the next rollout is as good as any', async (order, expected) => {
    const { rollout, gateway } = await bench(1);
    const trajectory = await rollout(order);
    expect(trajectory).toMatchObject(expected);
    expect(trajectory.output).not.toBe('stolen');
    expect(trajectory.turns.length).toBe(1);
    await new Promise((resolve) => setTimeout(resolve, 100));
    const next = await rollout('do as told');
    expect(next).toMatchObject(FINE);
    expect(next.turns.map(({ request }) => request.messages.at(-1)?.content)).toEqual(['I am r1']);
    expect(gateway.openSessions).toBe(0);
  });

  it('cannot speak in the next rollout of its process by what it left behind', async () => {
    const { rollout } = await bench(1);
    expect(await rollout('leave a call for later')).toMatchObject(FINE);
    const next = await rollout('take its time');
    expect(next).toMatchObject(FINE);
    expect(next.turns.map(({ request }) => request.messages.at(-1)?.content)).toEqual(['I am r1']);
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
