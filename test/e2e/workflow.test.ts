/** What the contract of a workflow promises, through the real runner, gateway and store, with a scripted engine as the policy. */
import { existsSync } from 'node:fs';
import { appendFile, mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { currentRollout } from '../../src/core/context.ts';
import type { GraderInput, Workflow } from '../../src/core/contracts.ts';
import { defineGrader, defineWorkflow } from '../../src/core/define.ts';
import type { Task, Trajectory } from '../../src/core/types.ts';
import { startWorkflow } from '../../src/rollout/runner.ts';
import { sharedFolder } from '../fixtures/folder.ts';
import { tokenizer } from '../fixtures/gateway/streams.ts';
import { refusal } from '../fixtures/refusal.ts';
import { rolloutsThrough, scriptedGateway } from '../fixtures/scripted-gateway.ts';

const dir = sharedFolder();

const TASK: Task = { id: 't', prompt: [{ role: 'user', content: 'hello' }], metadata: { deep: { list: [1] } }, answer: 'SECRET' };

interface Options {
  readonly grade?: (input: GraderInput) => number;
  readonly artifacts?: string;
  readonly trainable?: readonly string[];
}

async function yardOf(workflow: Workflow, { grade, artifacts, trainable }: Options = {}) {
  const { engine, gateway } = scriptedGateway();
  const run = rolloutsThrough(gateway);
  const started = await startWorkflow(workflow);
  const parts = { workflow: started.workflow, concurrency: started.concurrency, artifacts, trainable };
  const rollOut = (): Promise<Trajectory> => run({ ...parts, grader: grade && defineGrader(grade) }, TASK);
  return { rollOut, started, gateway, engine };
}

const ask = { messages: [{ role: 'user', content: 'well?' }] } as const;

describe('a workflow', () => {
  it('gets a copy of row and config in every rollout, and shares what is not data', async () => {
    const tool = (): number => 1;
    const seen: unknown[] = [];
    const { rollOut } = await yardOf(
      defineWorkflow({
        config: { list: [0], tool },
        async run(ctx) {
          seen.push(structuredClone([ctx.metadata, ctx.config.list, ctx.prompt]), ctx.config.tool === tool);
          (ctx.metadata as { deep: { list: number[] } }).deep.list.push(2);
          ctx.config.list.push(9);
          ctx.prompt.length = 0;
          await ctx.model().generate(ask);
          return { reward: 1 };
        },
      }),
    );
    await Promise.all([rollOut(), rollOut()]);
    await rollOut();
    const fresh = [{ deep: { list: [1] } }, [0], [{ role: 'user', content: 'hello' }]];
    expect(seen).toEqual([fresh, true, fresh, true, fresh, true]);
  });

  it('that is a class is made anew for each rollout', async () => {
    let made = 0;
    class Agent {
      readonly number = ++made;
      #calls = 0;
      async run(ctx: { model(): { generate(request: typeof ask): Promise<{ text: string }> } }) {
        await ctx.model().generate(ask);
        return { reward: ++this.#calls, metadata: { number: this.number } };
      }
    }
    const { rollOut } = await yardOf(defineWorkflow(Agent as never));
    const all = await Promise.all([rollOut(), rollOut(), rollOut()]);
    expect(all.map(({ metadata }) => metadata?.number)).toEqual([1, 2, 3]);
    expect(all.map(({ grade }) => grade)).toEqual(Array(3).fill({ kind: 'graded', reward: { value: 1, source: 'workflow' } }));
  });

  it('never finds the answer in what it is given, nor does the policy or the stored record', async () => {
    const reached: string[] = [];
    const { rollOut, engine } = await yardOf(
      defineWorkflow(async (ctx) => {
        reached.push(...everythingIn(ctx), ...everythingIn(currentRollout()), ...Object.values(process.env).map(String));
        await ctx.model().generate(ask);
      }),
      { grade: ({ task }) => (task.answer === 'SECRET' ? 1 : 0) },
    );
    const trajectory = await rollOut();
    expect(trajectory.grade).toEqual({ kind: 'graded', reward: { value: 1 } });
    reached.push(...engine.requests.map(({ promptIds }) => tokenizer.decode(promptIds)), JSON.stringify(trajectory));
    expect(reached).toContain('hello');
    expect(reached.join('\n')).not.toContain('SECRET');
  });

  it('runs as often at once as it says, its wait does not count towards the deadline, and what throws gives its place back', async () => {
    let [running, most] = [0, 0];
    const { rollOut } = await yardOf(
      defineWorkflow({
        concurrency: 2,
        async run(ctx) {
          most = Math.max(most, ++running);
          await ctx.model().generate(ask);
          running--;
          throw new Error('no');
        },
      }),
    );
    const all = await Promise.all(Array.from({ length: 7 }, rollOut));
    expect(most).toBe(2);
    expect(all.map(({ outcome }) => outcome)).toEqual(Array(7).fill({ kind: 'failed', code: 'WORKFLOW_FAILED', message: 'no' }));
  });

  it('is set up once and torn down once', async () => {
    const events: string[] = [];
    const { rollOut, started } = await yardOf(
      defineWorkflow({
        setup: () => void events.push('setup'),
        teardown: async () => void events.push('teardown'),
        async run(ctx) {
          events.push('run');
          await ctx.model().generate(ask);
          return { reward: 0 };
        },
      }),
    );
    await rollOut();
    await rollOut();
    await started[Symbol.asyncDispose]();
    expect(events).toEqual(['setup', 'run', 'run', 'teardown']);
  });

  it('whose setup fails is not run at all', async () => {
    const workflow = defineWorkflow({
      name: 'heavy',
      setup: () => {
        throw new Error('no index');
      },
      run: async () => {},
    });
    await expect(startWorkflow(workflow)).rejects.toThrow(refusal('WORKFLOW_INIT_FAILED', /heavy.*no index/));
  });

  it('keeps lines and files with its rollout', async () => {
    const { rollOut } = await yardOf(
      defineWorkflow(async (ctx) => {
        ctx.log('looking');
        await appendFile(join(ctx.artifactsDir ?? '', 'found.txt'), ctx.rolloutId);
        await ctx.model().generate(ask);
      }),
      { grade: ({ artifactsDir }) => (artifactsDir?.endsWith('r0') ? 1 : 0), artifacts: join(dir, 'kept') },
    );
    // Of an attempt that was killed.
    await mkdir(join(dir, 'kept', 'r0'), { recursive: true });
    await writeFile(join(dir, 'kept', 'r0', 'found.txt'), 'left behind');
    const { logs, grade } = await rollOut();
    expect(logs).toMatchObject([{ text: 'looking' }]);
    expect(grade).toMatchObject({ reward: { value: 1 } });
    expect(await readFile(join(dir, 'kept', 'r0', 'found.txt'), 'utf8')).toBe('r0');
  });

  it('has no folder where none can be made, and goes on; none is made for who keeps nothing', async () => {
    const blocked = join(dir, 'a-file');
    await writeFile(blocked, '');
    const run = async (artifacts: string, looks: boolean) => {
      const workflow = defineWorkflow(async (ctx) => {
        await ctx.model().generate(ask);
        return { reward: looks && ctx.artifactsDir === null ? 1 : 0 };
      });
      return (await yardOf(workflow, { artifacts })).rollOut();
    };
    expect(await run(blocked, true)).toMatchObject({ outcome: { kind: 'completed' }, grade: { reward: { value: 1 } } });
    await run(join(dir, 'untouched'), false);
    expect(existsSync(join(dir, 'untouched'))).toBe(false);
  });

  it('has a seed of its own, the same whenever it is run again', async () => {
    const seeds = new Map<string, Set<number>>();
    const workflow = defineWorkflow(async (ctx) => {
      seeds.set(ctx.rolloutId, (seeds.get(ctx.rolloutId) ?? new Set()).add(ctx.seed));
      await ctx.model().generate(ask);
      return { reward: 0 };
    });
    for (let time = 0; time < 2; time++) {
      const { rollOut } = await yardOf(workflow);
      await rollOut();
      await rollOut();
    }
    expect([...seeds.values()].map(({ size }) => size)).toEqual([1, 1]);
    expect([...seeds.get('r0')!]).not.toEqual([...seeds.get('r1')!]);
  });
});

describe('the reward', () => {
  const giving = (grading: 'always' | 'when-missing', reward?: number) =>
    defineWorkflow({
      grading,
      async run(ctx) {
        await ctx.model().generate(ask);
        return reward === undefined ? {} : { reward };
      },
    });

  it('is the grader’s where there is one, and it sees what the workflow said', async () => {
    const { rollOut } = await yardOf(giving('always', 0.5), {
      grade: ({ result }) => (result.reward as { value: number }).value + 1,
    });
    expect((await rollOut()).grade).toEqual({ kind: 'graded', reward: { value: 1.5 } });
  });

  it('missing on both sides ends the run', async () => {
    const { rollOut, gateway } = await yardOf(giving('always'));
    await expect(rollOut()).rejects.toMatchObject({ code: 'REWARD_MISSING', hint: expect.stringContaining('defineGrader') });
    expect(gateway.openSessions).toBe(0);
  });
});

/** Every text that can be reached from a value, through fields, getters and prototypes. */
function everythingIn(value: unknown, seen = new Set<unknown>()): string[] {
  if (typeof value === 'string') return [value];
  if ((typeof value !== 'object' && typeof value !== 'function') || value === null || seen.has(value)) return [];
  seen.add(value);
  return Reflect.ownKeys(value).flatMap((key) => {
    try {
      return [String(key), ...everythingIn((value as Record<PropertyKey, unknown>)[key], seen)];
    } catch {
      return [];
    }
  });
}
