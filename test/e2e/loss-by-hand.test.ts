/**
 * The loss of a real step, computed again from the store alone by the formulas of docs/reference/training.md. At the policy that sampled them
 * every ratio is 1, so the loss is minus the weighted sum of the advantages: a rollout, turn or token too many shows in it.
 */
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { defineGrader, defineWorkflow } from '../../src/core/define.ts';
import type { Trajectory } from '../../src/core/types.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { train } from '../../src/training/train.ts';
import { temporaryFolder } from '../fixtures/folder.ts';

const TOKENS = 200;
const tasks = Array.from({ length: 6 }, (_, i) => ({ id: `t${i}`, prompt: `Question ${i}?`, metadata: { turns: 1 + (i % 3) } }));
const codes = (text: string): number => [...text].reduce((sum, letter) => sum + (letter.codePointAt(0) ?? 0), 0);

/** As many turns as the task says; what is said decides the reward, and whether the rollout breaks or is not graded. */
const workflow = defineWorkflow(async (ctx) => {
  const messages = [...ctx.prompt];
  let said = '';
  for (let turn = 0; turn < (ctx.metadata as { readonly turns: number }).turns; turn++) {
    const { text } = await ctx.model().generate({ messages, maxTokens: 8 });
    messages.push({ role: 'assistant', content: text }, { role: 'user', content: 'and?' });
    said += text;
  }
  if (codes(said) % 9 === 8) throw new Error('broke');
  return said;
});
const grader = defineGrader(({ output }) => {
  const code = codes(String(output));
  return code % 7 === 6 ? { kind: 'ungraded', why: 'nothing to see' } : (code % 5) / 4;
});

interface Case {
  readonly algorithm: 'grpo' | 'dr-grpo' | 'rloo';
  readonly weighting?: 'rollouts';
}

const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0);
const tokensOf = ({ turns }: Trajectory): number => sum(turns.map(({ sampledIds }) => sampledIds.length));

function lossByHand(groups: readonly (readonly Trajectory[])[], { algorithm, weighting }: Case): number {
  const trained = groups.flatMap((group) => {
    const graded = group.flatMap((one) => (one.grade.kind === 'graded' ? [{ one, reward: one.grade.reward.value }] : []));
    const rewards = graded.map(({ reward }) => reward);
    const mean = sum(rewards) / rewards.length;
    const deviation = Math.sqrt(sum(rewards.map((reward) => (reward - mean) ** 2)) / rewards.length);
    const advantage = (reward: number): number => {
      if (algorithm === 'grpo') return (reward - mean) / (deviation + 1e-4);
      return algorithm === 'dr-grpo' ? reward - mean : reward - (sum(rewards) - reward) / (rewards.length - 1);
    };
    return graded.map(({ one, reward }) => ({ tokens: tokensOf(one), advantage: advantage(reward) }));
  });
  if (weighting === 'rollouts') return -sum(trained.map((rollout) => rollout.advantage)) / trained.length;
  const divisor = algorithm === 'dr-grpo' ? trained.length * TOKENS : sum(trained.map(({ tokens }) => tokens));
  return -sum(trained.map(({ tokens, advantage }) => tokens * advantage)) / divisor;
}

it.each<Case>([
  { algorithm: 'grpo' },
  { algorithm: 'dr-grpo' },
  { algorithm: 'rloo' },
  { algorithm: 'rloo', weighting: 'rollouts' },
])('is what the formula says, with failed and ungraded rollouts beside: %j', async (settings) => {
  const run = temporaryFolder();
  const size = { steps: 2, group: 8, groupsPerStep: 3, seed: 4, limits: { turns: 4, tokens: TOKENS, deadlineMs: 60_000 } };
  await train({ entry: { workflow, grader }, tasks, heldOut: undefined, run, maxErrorShare: 1, ...size, ...settings });
  await using store = await openSqliteStore(join(run, 'store.sqlite'));
  const manifests = await store.manifests();
  expect(manifests.length).toBe(2);
  const left: Trajectory[] = [];
  for (const { rolloutIds, metrics } of manifests) {
    const members = await Promise.all(rolloutIds.map((id) => store.read(id)));
    const groupIds = [...new Set(members.map((one) => one!.groupId))];
    const groups = await Promise.all(groupIds.map((groupId) => store.query({ groupId })));
    const graded = groups.flat().filter(({ grade }) => grade.kind === 'graded');
    expect(graded.map(({ rolloutId }) => rolloutId).toSorted()).toEqual(rolloutIds);
    left.push(...groups.flat().filter(({ grade }) => grade.kind !== 'graded'));
    expect(metrics['ratio']).toBeCloseTo(1, 6);
    expect(metrics['loss']).toBeCloseTo(lossByHand(groups, settings), settings.algorithm === 'dr-grpo' ? 9 : 6);
  }
  expect(left.length).toBeGreaterThan(0);
});
