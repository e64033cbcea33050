import { describe, expect, it } from 'vitest';
import { gradedRollout as rollout, trainedTurn } from '../../test/fixtures/trained-rows.ts';
import type { ForwardBackwardResult, Loss, Trainer } from '../core/policy.ts';
import type { Sample } from '../core/types.ts';
import { trainSettings } from '../settings/check-settings.ts';
import { hasSignal } from './advantages.ts';
import { batchOf, compared, objectiveOf } from './objective.ts';
import { update } from './step.ts';

const settingsOf = (more: object) =>
  trainSettings({ entry: 'agent.ts', limits: { turns: 1, tokens: 100, deadlineMs: 1 }, ...more });
const long = (tokens: number) => [trainedTurn(0, { sampledIds: new Int32Array(tokens).fill(3) })];
const valuesIn = (rows: ReturnType<typeof compared>) => rows.map(({ grade }) => grade.kind === 'graded' && grade.reward.value);

describe('an overlong rollout', () => {
  const rows = [60, 80, 90, 100].map((tokens) => rollout(`r${tokens}`, { value: 1, success: true }, long(tokens)));
  const settings = settingsOf({ overlongBuffer: 20, overlongFactor: 0.5 });

  it('loses linearly from the buffer on, where rewards are compared and nowhere else', () => {
    expect(valuesIn(compared(rows, settings))).toEqual([1, 1, 0.75, 0.5]);
    expect(valuesIn(rows)).toEqual([1, 1, 1, 1]);
    expect(compared(rows, settingsOf({}))).toBe(rows);
  });

  it('gives signal to a group that is equally good otherwise, in its batch as in the judgement of it', () => {
    expect([hasSignal(rows), hasSignal(compared(rows, settings))]).toEqual([false, true]);
    const { samples } = batchOf(rows, { ...settings, algorithm: 'dr-grpo' });
    const found = Object.fromEntries(samples.map(({ rolloutId, advantages }) => [rolloutId, advantages.at(-1)]));
    expect(found).toEqual({ r60: 0.1875, r80: 0.1875, r90: -0.0625, r100: -0.3125 });
    expect(batchOf(rows, settingsOf({})).samples).toEqual([]);
  });

  it('keeps rewards by turn, thread and role as they are', () => {
    const reward = { value: 1, byTurn: { 0: 3 }, byThread: { main: 2 }, byRole: { policy: 1 } };
    const [row] = compared([rollout('r', reward, long(100))], settings);
    expect(row!.grade).toEqual({ kind: 'graded', reward: { ...reward, value: 0.5 } });
  });
});

describe('dpo', () => {
  it('sees no signal in rewards by role, which make no pair', () => {
    const rows = [1, 0].map((earned) => rollout(`r${earned}`, { value: 0, byRole: { policy: earned } }, long(2)));
    expect([hasSignal(rows), hasSignal(compared(rows, settingsOf({ loss: 'dpo' })))]).toEqual([true, false]);
  });

  it('steps on a cross-entropy, weighted after one pass of the policy and one of the reference, and reports −log σ', async () => {
    const rows = [1, 0].map((value) => rollout(`r${value}`, { value }, long(2)));
    const settings = settingsOf({ loss: 'dpo', dpoBeta: 0.5 });
    let trained: readonly Sample[] = [];
    // The better rollout, r1, is the first: it has become e² times as likely, the other has not moved.
    const trainer = {
      forward: async (_: readonly Sample[], weights = 'current') =>
        weights === 'current'
          ? [Float32Array.of(-1, -1), Float32Array.of(-1, -1)]
          : [Float32Array.of(-2, -2), Float32Array.of(-1, -1)],
      forwardBackward: async (samples: readonly Sample[], loss: Loss): Promise<ForwardBackwardResult> => {
        trained = samples;
        expect(loss.name).toBe('cross_entropy');
        return { loss: 99, trainedTokens: 4, metrics: {}, logprobs: samples.map(() => Float32Array.of(-1, -1)) };
      },
      optimStep: async () => ({ gradNorm: 1 }),
    } as unknown as Trainer;
    const batch = batchOf(rows, settings);
    const { loss, metrics } = await update(trainer, { step: 1, batch, learningRate: 0.1 }, settings);
    expect(loss).toBeCloseTo(Math.log(1 + Math.exp(-1)), 6);
    expect(metrics).toMatchObject({ dpoMargin: 1, dpoAccuracy: 1 });
    const slope = 0.5 / (1 + Math.E);
    expect(trained.map(({ advantages, weight }) => [advantages.at(-1), weight])).toEqual([
      [expect.closeTo(slope, 6), 1],
      [expect.closeTo(-slope, 6), 1],
    ]);
    expect((await objectiveOf(trainer, batch, settings)).reported?.loss).toBe(loss);
  });
});
