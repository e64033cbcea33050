/** `Grader` in real rollouts: what it sees, what its rewards become, and what is a failed grading instead of a number. */
import { describe, expect, it } from 'vitest';
import { asGrader, moduleOf } from '../../src/core/define.ts';
import type { Task } from '../../src/core/types.ts';
import {
  AgentWorkflow,
  type AgentWorkflowContext,
  ConcurrencyConfig,
  Grader,
  GraderConfig,
  type GraderContext,
  RolloutSample,
} from '../../src/osmosis.ts';
import { turnAdvantagesOf } from '../../src/training/advantages.ts';
import { bench, TASK } from './rollouts.ts';

/** Two conversations: first and second. */
class Pair extends AgentWorkflow {
  async run(ctx: AgentWorkflowContext): Promise<void> {
    for (const name of ['first', 'second']) await ctx.model().thread(name).generate({ messages: ctx.prompt });
  }
}
class Single extends AgentWorkflow {
  async run(ctx: AgentWorkflowContext): Promise<void> {
    await ctx.model().generate({ messages: ctx.prompt });
  }
}

async function rollout(Workflow: object, grade: (ctx: GraderContext) => void, task: Task = TASK) {
  class Told extends Grader {
    async grade(ctx: GraderContext): Promise<void> {
      grade(ctx);
    }
  }
  const { run } = await bench({ Workflow, Told });
  return await run(task);
}

const gradeOf = async (...given: Parameters<typeof rollout>) => (await rollout(...given)).grade;

describe('what a grader sees', () => {
  it('is the label, the same metadata, and each conversation with the policy’s last word', async () => {
    let seen: GraderContext | undefined;
    await rollout(Pair, (ctx) => {
      seen = ctx;
    });
    const { answer: label, metadata } = TASK;
    expect(seen).toMatchObject({ label, metadata, artifactsDir: null, config: null, truncated: null });
    expect(Object.keys(seen!.samples)).toEqual(['first', 'second']);
    expect(seen!.getSamples()).toBe(seen!.samples);
    expect(seen!.samples.second).toMatchObject({
      id: 'second',
      label: 'hi',
      reward: null,
      removeSample: false,
      messages: [...TASK.prompt, { role: 'assistant', content: 'answer 1' }],
    });
  });

  it('may be a row with metadata alone or a label alone; with neither there is nothing to grade by', async () => {
    const { prompt } = TASK;
    const graded = (row: object) => gradeOf(Single, (ctx) => ctx.setReward(1), { id: 't', prompt, ...row });
    expect(await graded({ answer: 'x' })).toMatchObject({ kind: 'graded' });
    expect(await graded({ metadata: { a: 1 } })).toMatchObject({ kind: 'graded' });
    expect(await graded({})).toEqual({
      kind: 'failed',
      code: 'GRADER_FAILED',
      message: expect.stringContaining('neither an answer (the label) nor metadata'),
    });
  });

  it('is a config of its own', async () => {
    class Config extends GraderConfig {
      override name = 'strict';
      weights = { right: 0.5 };
    }
    class Weighted extends Grader<Config> {
      async grade(ctx: GraderContext<Config>): Promise<void> {
        expect(this.config).toBe(ctx.config);
        ctx.setReward(ctx.config?.weights.right ?? 0);
        if (ctx.config !== null) ctx.config.weights.right = 9;
      }
    }
    const { run } = await bench({ Single, Weighted, config: new Config() });
    for (const { grade } of [await run(), await run()]) expect(grade).toMatchObject({ reward: { value: 0.5 } });
  });
});

describe('rewards', () => {
  it('of samples are the reward of their threads, and their mean that of the rollout', async () => {
    const grade = await gradeOf(Pair, (ctx) => {
      ctx.setSampleReward('first', 1);
      ctx.setSampleReward('second', 0.5);
      ctx.samples.first!.metrics.words = 4;
      Object.assign(ctx.samples.second!.metrics, { words: 2, broken: Number.NaN });
    });
    const reward = { value: 0.75, byThread: { first: 1, second: 0.5 }, parts: { words: 3 } };
    expect(grade).toEqual({ kind: 'graded', reward });
    expect(await gradeOf(Single, (ctx) => ctx.setReward(0.25))).toMatchObject({ reward: { value: 0.25 } });
  });

  it.each<[string, object, (ctx: GraderContext) => void, string]>([
    ['for all of two', Pair, (ctx) => ctx.setReward(1), 'setReward is for one sample, and there are 2'],
    [
      'for a sample that is not there',
      Pair,
      (ctx) => ctx.setSampleReward('third', 1),
      'Sample third not found; the samples are first, second',
    ],
    ['for what every object has', Pair, (ctx) => ctx.setSampleReward('toString', 1), 'Sample toString not found'],
    ['for one of two', Pair, (ctx) => ctx.setSampleReward('first', 1), 'Sample second has no reward after grading'],
    ...[Number.NaN, Number.POSITIVE_INFINITY, '1', true].map((reward): [string, object, (ctx: GraderContext) => void, string] => [
      `of ${reward}`,
      Single,
      (ctx) => ctx.setReward(reward as number),
      'expected a finite number or null',
    ]),
  ])('%s are a failed grading, never 0', async (_, Workflow, grade, message) => {
    const code = expect.stringMatching(Workflow === Pair ? /^GRADER_FAILED$/ : /^GRADER_BAD_REWARD$/);
    expect(await gradeOf(Workflow, grade)).toEqual({ kind: 'failed', code, message: expect.stringContaining(message) });
  });
});

describe('a sample that is removed', () => {
  it('needs no reward, counts for nothing, and none of its turns is trained', async () => {
    const rewarded = (reward: number) =>
      rollout(Pair, (ctx) => {
        ctx.setSampleReward('second', reward);
        ctx.samples.first!.removeSample = true;
      });
    const group = [await rewarded(1), { ...(await rewarded(0)), rolloutId: 'other' }];
    expect(group[0]?.grade).toEqual({ kind: 'graded', reward: { value: 1, byThread: { second: 1 }, untrained: ['first'] } });
    const advantageOf = turnAdvantagesOf(group, 'dr-grpo');
    expect(group.map((trajectory) => trajectory.turns.map((turn) => advantageOf(trajectory, turn)))).toEqual([
      [undefined, 0.5],
      [undefined, -0.5],
    ]);
  });

  it('with all the others leaves a rollout without a grade', async () => {
    const grade = await gradeOf(Pair, (ctx) => {
      for (const sample of Object.values(ctx.samples)) sample.removeSample = true;
    });
    expect(grade).toEqual({ kind: 'ungraded', why: 'the grader removed every sample' });
  });
});

describe('a sample', () => {
  it('checks what is assigned to it', () => {
    const sample = new RolloutSample({ id: 's', messages: [] });
    expect(() => Object.assign(sample, { reward: 'a' })).toThrow("expected a finite number or null, found 'a'");
    expect(() => Object.assign(sample, { removeSample: 1 })).toThrow('expected true or false, found 1');
    expect(() => new RolloutSample({ id: '', messages: [] })).toThrow('the id of a sample');
    expect(() => new RolloutSample({ id: 's', messages: 'hello' as never })).toThrow('expected a list of messages');
    sample.reward = 2;
    sample.reward = null;
    expect(sample.reward).toBe(null);
  });
});

it('the concurrency of a grader is known to whoever runs it', () => {
  class Slow extends Grader {
    async grade(): Promise<void> {}
  }
  const config = new GraderConfig({ name: 'slow', concurrency: new ConcurrencyConfig({ maxConcurrent: 3 }) });
  expect(asGrader(Slow, moduleOf({ Slow, config }))).toMatchObject({ name: 'slow', concurrency: 3 });
  expect(asGrader(Slow, moduleOf({ Slow }))).not.toHaveProperty('concurrency');
});
