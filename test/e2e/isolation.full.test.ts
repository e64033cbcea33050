/** Workflows in processes of their own, through the real gateway over HTTP, with a scripted engine in the policy's place. */
import { existsSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import type { Workflow } from '../../src/core/contracts.ts';
import type { Limits, Trajectory } from '../../src/core/types.ts';
import { listen } from '../../src/gateway/gateway.ts';
import { startWorkflow } from '../../src/rollout/runner.ts';
import { sharedFolder } from '../fixtures/folder.ts';
import { eventually, isRunning, pidsIn } from '../fixtures/grader/processes.ts';
import { grader, here, isolated } from '../fixtures/processes/isolated.ts';
import { refusal } from '../fixtures/refusal.ts';
import { rolloutsThrough, scriptedGateway } from '../fixtures/scripted-gateway.ts';

const url = new URL('../fixtures/processes/isolated.ts', import.meta.url).href;
const folder = sharedFolder();
const teardownFile = join(folder, 'teardown');
const ANSWER = 'the-answer-is-4711';
const environment = {
  TEST_TEARDOWN_FILE: teardownFile,
  MY_TOOL_KEY: 'tool-key',
  MY_OTHER_KEY: `other ${ANSWER}`,
  TINKER_API_KEY: `run-key ${ANSWER}`,
  TRAINYARD_TOKEN: `run-token ${ANSWER}`,
};
beforeAll(() => void Object.assign(process.env, environment));
afterAll(() => {
  for (const name of Object.keys(environment)) delete process.env[name];
});

interface Options {
  readonly workers?: number;
  readonly limits?: Partial<Limits>;
  readonly stop?: AbortSignal;
}

async function bench(workflow: Workflow, { workers = 1, limits, stop = new AbortController().signal }: Options = {}) {
  const { gateway } = scriptedGateway((_, { seed, promptIds }) => `said ${seed % 89} to ${promptIds.length}`);
  const listener = await listen(gateway);
  const started = await startWorkflow(workflow, { module: { url, exportName: 'isolated' }, workers, signal: stop });
  onTestFinished(async () => {
    await started[Symbol.asyncDispose]();
    await listener[Symbol.asyncDispose]();
  });
  const artifacts = join(folder, workflow === here ? 'here' : 'isolated');
  const run = rolloutsThrough(gateway);
  const rollout = (order: string, file?: string): Promise<Trajectory> =>
    run(
      { ...started, grader, limits: { turns: 8, ...limits }, artifacts, signal: stop },
      {
        id: 't',
        prompt: [{ role: 'user', content: 'hello' }],
        answer: ANSWER,
        metadata: { do: order, ...(file === undefined ? {} : { file }) },
      },
    );
  return { rollout, gateway, started };
}

/** All but when, and but for the way a question came: `generate` has no dialect in process. */
const timeless = (trajectory: Trajectory): unknown => ({
  ...trajectory,
  startedAt: 0,
  endedAt: 0,
  logs: trajectory.logs?.map(({ text }) => text),
  unanswered: trajectory.unanswered?.map((call) => ({ ...call, startedAt: 0, endedAt: 0 })),
  turns: trajectory.turns.map((turn) => ({
    ...turn,
    startedAt: 0,
    endedAt: 0,
    request: { ...turn.request, dialect: undefined },
  })),
});

describe('a workflow in a process of its own', () => {
  it('gives the same trajectories as in this process, however it ends', async () => {
    const [apart, inside] = [await bench(isolated), await bench(here)];
    const returned = ['return an instance', 'return a number', 'return a bigint', 'return a long text'];
    for (const order of ['converse', 'run a program', 'throw', 'reject', 'run out of turns', ...returned]) {
      const expected = await inside.rollout(order);
      expect(timeless(await apart.rollout(order)), order).toEqual(timeless(expected));
    }
    const spoken = await inside.rollout('converse');
    expect(spoken.turns.map(({ role, thread, trainable }) => [role, thread, trainable])).toEqual([
      ['default', 'default', true],
      ['default', 'default', true],
      ['critic', 'critic', false],
      ['default', 'aside', false],
      ['default', 'default', false],
    ]);
    expect(spoken).toMatchObject({ outcome: { kind: 'completed' }, logs: [{ text: expect.stringMatching(/^heard said/) }] });
    const byProgram = await apart.rollout('run a program');
    expect(byProgram).toMatchObject({
      turns: [{}],
      output: { end: { kind: 'exited', code: 0 }, stdout: byProgram.turns[0]?.response.content },
    });
    expect(apart.gateway.openSessions).toBe(0);
  });

  it('has neither the answer nor the keys of the run: not in its context, environment or arguments', async () => {
    const { rollout } = await bench(isolated);
    const trajectory = await rollout('tell all it has');
    expect(trajectory.outcome).toEqual({ kind: 'completed' });
    expect(trajectory.metadata?.['pid']).not.toBe(process.pid);
    const told = String(trajectory.output);
    expect(told).not.toContain(ANSWER);
    const { env, task } = JSON.parse(told) as { env: Record<string, string>; task: object };
    expect(task).toEqual({ id: 't', prompt: [{ role: 'user', content: 'hello' }], metadata: { do: 'tell all it has' } });
    expect(env).toMatchObject({
      PATH: process.env['PATH'],
      MY_TOOL_KEY: 'tool-key',
      OPENAI_API_KEY: expect.stringMatching(/^ty-/),
    });
    expect(Object.keys(env).filter((name) => /^TINKER_|^TRAINYARD_(?!POOL$)|^MY_OTHER_KEY$/.test(name))).toEqual([]);
  });

  it('has the answer nowhere in its memory, uses clients as they come, and keeps files where the grader finds them', async () => {
    const { rollout } = await bench(isolated);
    expect(await rollout('search its memory')).toMatchObject({ output: { planted: true, answer: false } });
    expect(await rollout('call unmodified clients')).toMatchObject({ outcome: { kind: 'completed' }, turns: [{}, {}] });
    expect((await rollout('keep a file')).output).toBe('kept');
    expect(existsSync(join(folder, 'isolated', 'r2', 'kept'))).toBe(true);
  });

  it('is set up once in each process, has its own config in each rollout, and is torn down at the end', async () => {
    const { rollout, started } = await bench(isolated);
    const outputs = [await rollout('count set-ups'), await rollout('count set-ups')].map(({ output }) => output);
    expect(outputs).toEqual([
      { setUps: 1, rollouts: 1, config: 1, ambient: true },
      { setUps: 1, rollouts: 2, config: 1, ambient: true },
    ]);
    rmSync(teardownFile, { force: true });
    await started[Symbol.asyncDispose]();
    expect(readFileSync(teardownFile, 'utf8')).toBe('torn down;');
  });

  it('that loops without awaiting is killed at its deadline with what it spawned; what it logged is kept, and the next rollout runs', async () => {
    const { rollout } = await bench(isolated, { limits: { deadlineMs: 3_000 } });
    const file = join(folder, 'loop');
    const looping = rollout('loop for ever', file);
    const pids = await pidsIn(file);
    expect(await looping).toMatchObject({
      outcome: { kind: 'truncated', limit: 'deadline' },
      logs: [{ text: 'before the loop' }],
    });
    expect(await eventually(() => !pids.some(isRunning))).toBe(true);
    expect(await rollout('tell all it has')).toMatchObject({ outcome: { kind: 'completed' } });
  });

  it('hears of its deadline, and keeps its process if it minds it', async () => {
    const { rollout } = await bench(isolated, { limits: { deadlineMs: 1_000 } });
    const first = await rollout('tell all it has');
    const file = join(folder, 'signal');
    expect(await rollout('wait for the signal', file)).toMatchObject({ outcome: { kind: 'truncated', limit: 'deadline' } });
    expect(await eventually(() => existsSync(file))).toBe(true);
    expect((await rollout('tell all it has')).metadata).toEqual(first.metadata);
  });

  it.each<[string, string, RegExp]>([
    ['crash', 'WORKFLOW_FAILED', /process exited with code 3, having printed:\ndisk on fire/],
    ['use token ids', 'REQUEST_INVALID', /promptIds; a policy in another process takes messages only/],
    ['give a default model', 'WORKFLOW_INVALID', /role "critic" was given a default model/],
    ['use an undeclared role', 'WORKFLOW_INVALID', /does not declare role "stranger".* keys for default, critic only/],
  ])('fails with what happened when it is to %s, and the next rollout runs', async (order, code, message) => {
    const { rollout } = await bench(isolated);
    expect(await rollout(order)).toMatchObject({ outcome: { kind: 'failed', code, message: expect.stringMatching(message) } });
    expect(await rollout('tell all it has')).toMatchObject({ outcome: { kind: 'completed' } });
  });

  it('runs as many rollouts at once as it has processes', async () => {
    const { rollout } = await bench(isolated, { workers: 2 });
    const trajectories = await Promise.all(Array.from({ length: 6 }, () => rollout('tell all it has')));
    expect(new Set(trajectories.map(({ metadata }) => metadata?.['pid'])).size).toBe(2);
    const keys = trajectories.map(
      ({ output }) => (JSON.parse(String(output)) as { env: { OPENAI_API_KEY: string } }).env.OPENAI_API_KEY,
    );
    expect(new Set(keys).size).toBe(6);
  });

  it('ends with the run', async () => {
    const stop = new AbortController();
    const { rollout } = await bench(isolated, { stop: stop.signal });
    const file = join(folder, 'stop');
    const looping = rollout('loop for ever', file);
    const pids = await pidsIn(file);
    stop.abort(new Error('stopped'));
    await expect(looping).rejects.toThrow('stopped');
    expect(await eventually(() => !pids.some(isRunning))).toBe(true);
  });
});

describe('what cannot be isolated', () => {
  const signal = new AbortController().signal;
  it.each([
    ['a workflow given as a value', isolated, undefined, refusal('WORKFLOW_INVALID', /as a value/)],
    ['an export that is none', isolated, { url, exportName: 'grader' }, refusal('WORKFLOW_NOT_FOUND')],
    [
      'one that wants a key of the run itself',
      { ...isolated, env: ['TINKER_API_KEY'] },
      { url, exportName: 'isolated' },
      refusal('USAGE', /TINKER_API_KEY cannot be passed on/),
    ],
  ])('is %s', async (_, workflow, module, refused) => {
    await expect(startWorkflow(workflow, { module, workers: 1, signal })).rejects.toThrow(refused as Error);
  });
});
