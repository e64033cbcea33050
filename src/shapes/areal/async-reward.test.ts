import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { ask } from '../../../test/fixtures/areal/ask.ts';
import type * as rewards from '../../../test/fixtures/areal/rewards.ts';
import { sharedFolder } from '../../../test/fixtures/folder.ts';
import { refuses } from '../../../test/fixtures/refusal.ts';
import { scriptedRollouts } from '../../../test/fixtures/scripted-rollouts.ts';
import { runInRollout } from '../../core/context.ts';
import type { WorkflowContext } from '../../core/contracts.ts';
import { agentWorkflow } from './agent-workflow.ts';
import { type AsyncRewardOptions, AsyncRewardWrapper } from './async-reward.ts';

const module = new URL('../../../test/fixtures/areal/rewards.ts', import.meta.url);

/** A reward function of that module, wrapped. */
const wrap = <Name extends Exclude<keyof typeof rewards, 'half'>>(exportName: Name, options: AsyncRewardOptions = {}) =>
  new AsyncRewardWrapper<(typeof rewards)[Name]>({ module, exportName }, { maxWorkers: 1, ...options });

const dir = sharedFolder();
let files = 0;

const attemptsFile = (): string => join(dir, String(files++));
const pidsIn = async (file: string): Promise<string[]> => (await readFile(file, 'utf8')).trim().split('\n');
const isAlive = (pid: number): boolean => {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
};

describe('a wrapped reward function', () => {
  it('is called like the function itself, in another process', async () => {
    await using reward = wrap('equal');
    expect(await Promise.all([reward('a', 'a'), reward('a', 'b')])).toEqual([1, 0]);
    await using id = wrap('workerId');
    expect(await id()).not.toBe(process.pid);
  });

  it('is given the answer in the episode’s data or a copy of it, which the workflow does not see', async () => {
    await using reward = wrap('isRight');
    const agent = agentWorkflow(async (data, extras) => {
      const said = await ask(extras, data);
      return (await reward('', said, data)) + (await reward('', said, { ...data }));
    });
    await using rollouts = await scriptedRollouts(agent);
    expect(await rollouts.run({ answer: 'answer 0' })).toMatchObject({ grade: { reward: { value: 2 } } });
    expect(await rollouts.run({ answer: 'another' })).toMatchObject({ grade: { reward: { value: 0 } } });
    await using onWorker = await scriptedRollouts(agent, 0, undefined, undefined, true);
    expect(await onWorker.run()).toMatchObject({ outcome: { kind: 'failed', message: expect.stringContaining('no answer') } });
  });

  it('is not called with data that has no answer, as in an isolated process', async () => {
    await using reward = wrap('isRight');
    const data = { id: 't', messages: [], metadata: undefined };
    const ctx = { task: { id: 't' }, signal: new AbortController().signal } as unknown as WorkflowContext;
    await expect(runInRollout(ctx, () => reward('', 'said', data))).rejects.toThrow('where there is no answer to add to it');
  });

  it('shares its processes with other wrappers of it, and the last one ends them', async () => {
    const [one, two] = [wrap('workerId'), wrap('workerId')];
    const pid = await one();
    expect(await two()).toBe(pid);
    await one[Symbol.asyncDispose]();
    expect(await two()).toBe(pid);
    await expect(one()).rejects.toThrow(/disposed/);
    await two[Symbol.asyncDispose]();
    expect(isAlive(pid)).toBe(false);
  });

  const quick: AsyncRewardOptions = { timeoutSeconds: 0.4, maxRetries: 2 };

  it('that hangs is killed and tried again, in the same slot', async () => {
    const file = attemptsFile();
    await using reward = wrap('blocks', quick);
    expect(await reward(file, 2)).toBe(1);
    const pids = await pidsIn(file);
    expect(new Set(pids).size).toBe(3);
    expect(pids.slice(0, 2).map((pid) => isAlive(Number(pid)))).toEqual([false, false]);
  });

  it('that always hangs throws after the retries and the first attempt; it is never a reward of its own accord', async () => {
    const file = attemptsFile();
    await using reward = wrap('blocks', quick);
    await refuses(reward(file, 99), 'GRADER_TIMEOUT', /blocks did not return within 400 ms \(attempt 3 of 3\)/);
    expect((await pidsIn(file)).length).toBe(3);
    const once = attemptsFile();
    await using zero = wrap('blocks', { ...quick, maxRetries: 0, onTimeout: 0 });
    expect(await zero(once, 99)).toBe(0);
    expect((await pidsIn(once)).length).toBe(1);
  });

  it('that always hangs rejects the rollout where that was asked for', async () => {
    const reward = wrap('blocks', { ...quick, maxRetries: 0, onTimeout: null });
    const file = attemptsFile();
    await using rollouts = await scriptedRollouts(
      agentWorkflow(async (data, extras) => {
        await ask(extras, data);
        return await reward(file, 99);
      }),
    );
    expect((await rollouts.run()).outcome).toEqual({ kind: 'rejected', reason: 'reward_timeout' });
  });

  it('that throws is tried again, then thrown', async () => {
    const file = attemptsFile();
    await using reward = wrap('throws', { ...quick, timeoutSeconds: 20 });
    expect(await reward(file, 2)).toBe(1);
    const always = attemptsFile();
    await expect(reward(always, 99)).rejects.toMatchObject({ code: 'GRADER_FAILED', message: expect.stringMatching(/not yet/) });
    expect((await pidsIn(always)).length).toBe(3);
  });

  it('gives a finite number or an error', async () => {
    await using reward = new AsyncRewardWrapper({ module, exportName: 'half' }, quick);
    await expect(reward()).rejects.toMatchObject({
      code: 'GRADER_BAD_REWARD',
      message: "half returned '0.5', expected a finite number",
    });
  });

  it('given as a function is refused with what to write instead', () => {
    const closure = (): number => 1;
    expect(() => new AsyncRewardWrapper(closure as never)).toThrowError(
      expect.objectContaining({
        message: expect.stringMatching(/the function closure itself/),
        hint: expect.stringMatching(/export it.*exportName: 'closure'/),
      }),
    );
    expect(() => new AsyncRewardWrapper('rewards.ts' as never)).toThrowError(/expected \{ module, exportName \}/);
  });

  it('is refused with all that is wrong with its options', () => {
    const options = { timeoutSeconds: 0, maxWorkers: 1.5, maxRetries: -1, onTimeout: 1 as never };
    expect(() => new AsyncRewardWrapper({ module, exportName: 'equal' }, options)).toThrowError(
      /timeoutSeconds.*also: maxWorkers.*also: maxRetries.*also: onTimeout/,
    );
  });
});

it('with a workflow its processes end at the teardown, and a later run has new ones', async () => {
  const reward = wrap('workerId');
  const agent = agentWorkflow(async () => 1);
  let pid: number;
  {
    await using _rollouts = await scriptedRollouts(agent);
    pid = await reward();
    expect(isAlive(pid)).toBe(true);
  }
  expect(isAlive(pid)).toBe(false);
  await using _again = await scriptedRollouts(agent);
  expect(await reward()).not.toBe(pid);
});
