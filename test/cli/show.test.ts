/** `trainyard show`: what a run kept, and why its conversations forked. */
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Turn } from '../../src/core/types.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { randomTrajectory } from '../../src/testing/trajectories.ts';
import { scratch, trainyard } from './command.ts';

const turn = (index: number, more: Partial<Turn>): Turn => ({
  index,
  thread: 'main',
  role: 'policy',
  trainable: true,
  promptIds: Int32Array.of(1, 2, 3),
  sampledIds: Int32Array.of(4, 5),
  logprobs: Float32Array.of(-1, -2),
  policyVersion: 0,
  stopReason: 'stop',
  sampling: { requested: {}, effective: { temperature: 1, topP: 1, topK: 0, maxTokens: 9 }, seed: index },
  request: { messages: [{ role: 'user', content: 'hi' }], tools: [] },
  response: { role: 'assistant', content: `answer ${index}` },
  startedAt: 0,
  endedAt: 1,
  ...more,
});

let home: Awaited<ReturnType<typeof scratch>>;
beforeAll(async () => {
  home = await scratch();
  await using store = await openSqliteStore(join(home.dir, 'store.sqlite'));
  const common = { taskId: 't', outcome: { kind: 'completed' }, grade: { kind: 'graded', reward: { value: 1 } } } as const;
  const fork = { cause: 'edited_message', from: 0, message: 1 } as const;
  const coloured = { role: 'assistant' as const, content: '\u001b[31mred' };
  await store.append(randomTrajectory(1, { ...common, purpose: 'train', rolloutId: 'plain', turns: [turn(0, {})] }));
  await store.append(
    randomTrajectory(2, {
      ...common,
      purpose: 'train',
      rolloutId: 'forked',
      turns: [turn(0, {}), turn(1, { fork, response: coloured })],
    }),
  );
});
afterAll(() => home.remove());

describe('trainyard show', () => {
  it('lists rollouts with their turns, samples and the causes of their forks', async () => {
    const { code, stdout } = await trainyard('show', home.dir);
    expect(code).toBe(0);
    expect(stdout).toMatch(/plain · task t · completed · reward 1 · 1 turn · 1 sample\n/);
    expect(stdout).toMatch(/forked · .* · 2 turns · 2 samples · forks: edited_message\n/);
    expect(stdout).toContain('2 rollouts, 1 with forks');
  });

  it('with --forks lists only those that did not simply go on', async () => {
    const { stdout } = await trainyard('show', home.dir, '--forks', '--json');
    expect(
      stdout
        .trim()
        .split('\n')
        .map((line) => JSON.parse(line)),
    ).toMatchObject([{ rolloutId: 'forked', forks: { edited_message: 1 }, samples: 2 }]);
  });

  it('shows one rollout turn by turn, without the escapes a model may have said', async () => {
    const { stdout } = await trainyard('show', home.dir, 'forked');
    expect(stdout).toContain('0 main · 3 + 2 tokens · rendered afresh');
    expect(stdout).toContain('edited_message at message 1, instead of going on from turn 0');
    expect(stdout).toContain('was assistant: answer 0');
    expect(stdout).not.toContain('\u001b[31m');
  });

  it('says what to do when there is no such run or rollout', async () => {
    const missing = await trainyard('show', join(home.dir, 'nowhere'));
    expect([missing.code, missing.stderr]).toEqual([2, expect.stringContaining('give the directory of a run')]);
    const unknown = await trainyard('show', home.dir, 'nobody');
    expect([unknown.code, unknown.stderr]).toEqual([2, expect.stringContaining('holds no rollout "nobody"')]);
  });
});
