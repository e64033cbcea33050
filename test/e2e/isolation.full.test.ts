/** Workflows in processes of their own, through the real gateway over HTTP, with a scripted engine in the policy's place. */
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import type { Workflow } from '../../src/core/contracts.ts';
import type { Limits, Trajectory } from '../../src/core/types.ts';
import { Gateway, listen } from '../../src/gateway/gateway.ts';
import { graderInput } from '../../src/grader/call.ts';
import { inlineGrader } from '../../src/grader/inline.ts';
import { runRollout, startWorkflow } from '../../src/rollout/runner.ts';
import { memoryStore } from '../../src/store/memory.ts';
import { scriptedEngine } from '../../src/testing/trajectories.ts';
import { createRenderer, type Renderer } from '../../src/tokens/renderer.ts';
import { loadTokenizer, type Tokenizer } from '../../src/tokens/tokenizer.ts';
import { eventually, isRunning, pidsIn } from '../fixtures/grader/processes.ts';
import { grader, here, isolated } from '../fixtures/processes/isolated.ts';

const url = new URL('../fixtures/processes/isolated.ts', import.meta.url).href;
const folder = mkdtempSync(join(tmpdir(), 'isolation-'));
const teardownFile = join(folder, 'teardown');
const ANSWER = 'the-answer-is-4711';
let tokenizer: Tokenizer;
let renderer: Renderer;
beforeAll(async () => {
  Object.assign(process.env, {
    TEST_TEARDOWN_FILE: teardownFile,
    MY_TOOL_KEY: 'tool-key',
    MY_OTHER_KEY: `other ${ANSWER}`,
    TINKER_API_KEY: `run-key ${ANSWER}`,
    TRAINYARD_TOKEN: `run-token ${ANSWER}`,
  });
  tokenizer = await loadTokenizer(new URL('../../models/base', import.meta.url).pathname);
  renderer = createRenderer(tokenizer);
});
afterAll(() => {
  for (const name of ['TEST_TEARDOWN_FILE', 'MY_TOOL_KEY', 'MY_OTHER_KEY', 'TINKER_API_KEY', 'TRAINYARD_TOKEN'])
    delete process.env[name];
  rmSync(folder, { recursive: true });
});

const stack: AsyncDisposable[] = [];
afterEach(async () => {
  for (const open of stack.splice(0).reverse()) await open[Symbol.asyncDispose]();
});

interface Options {
  readonly workers?: number;
  readonly limits?: Partial<Limits>;
  readonly stop?: AbortSignal;
}

async function bench(workflow: Workflow, { workers = 1, limits = {}, stop = new AbortController().signal }: Options = {}) {
  const reply = ({ seed, promptIds }: { seed: number; promptIds: Int32Array }): number[] => [
    ...tokenizer.encodeRendered(`said ${seed % 89} to ${promptIds.length}<|im_end|>`),
  ];
  const engine = scriptedEngine({ vocabSize: 1024, contextLength: 4096, reply });
  const gateway = new Gateway({ engine, renderer, modelName: 'policy' });
  stack.push(await listen(gateway));
  const module = { url, exportName: 'isolated' };
  const started = await startWorkflow(workflow, { module, workers, signal: stop });
  stack.push(started);
  const store = memoryStore();
  let n = 0;
  const rollout = (order: string, file?: string): Promise<Trajectory> =>
    runRollout(
      {
        workflow: started.workflow,
        runWorkflow: started.runWorkflow,
        concurrency: started.concurrency,
        sessions: gateway,
        grader: inlineGrader(grader),
        graderInput,
        store,
        limits: { turns: 8, tokens: 1000, deadlineMs: 20_000, ...limits },
        seed: 3,
        clock: { now: Date.now },
        artifacts: join(folder, workflow === here ? 'here' : 'isolated'),
        signal: stop,
      },
      {
        task: {
          id: 't',
          prompt: [{ role: 'user', content: 'hello' }],
          answer: ANSWER,
          metadata: { do: order, ...(file === undefined ? {} : { file }) },
        },
        identity: { rolloutId: `r${n++}`, groupId: 'g', taskId: 't', purpose: 'train' },
        sampling: { temperature: 1, topP: 1, topK: 0, maxTokens: 64 },
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
    for (const order of [
      'converse',
      'run a program',
      'return an instance',
      'throw',
      'reject',
      'run out of turns',
      'return a number',
      'return a bigint',
      'return a long text',
    ]) {
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

  it('has the answer nowhere in its memory', async () => {
    const { rollout } = await bench(isolated);
    expect(await rollout('search its memory')).toMatchObject({ output: { planted: true, answer: false } });
  });

  it('can use clients as they come: the environment says where the policy is', async () => {
    const { rollout } = await bench(isolated);
    const trajectory = await rollout('call unmodified clients');
    expect(trajectory).toMatchObject({ outcome: { kind: 'completed' }, turns: [{}, {}] });
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

  it('keeps files where the grader finds them', async () => {
    const { rollout } = await bench(isolated);
    expect((await rollout('keep a file')).output).toBe('kept');
    expect(existsSync(join(folder, 'isolated', 'r0', 'kept'))).toBe(true);
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

  it('that crashes fails with its last words, and the next rollout runs', async () => {
    const { rollout } = await bench(isolated);
    expect(await rollout('crash')).toMatchObject({
      outcome: {
        kind: 'failed',
        code: 'WORKFLOW_FAILED',
        message: expect.stringMatching(/process exited with code 3, having printed:\ndisk on fire/),
      },
    });
    expect(await rollout('tell all it has')).toMatchObject({ outcome: { kind: 'completed' } });
  });

  it('is told what cannot be done from there, and what to write instead', async () => {
    const { rollout } = await bench(isolated);
    const refusals: readonly [string, string, RegExp][] = [
      ['use token ids', 'REQUEST_INVALID', /promptIds; a policy in another process takes messages only/],
      ['give a default model', 'WORKFLOW_INVALID', /role "critic" was given a default model/],
      ['use an undeclared role', 'WORKFLOW_INVALID', /does not declare role "stranger".* keys for default, critic only/],
    ];
    for (const [order, code, message] of refusals) {
      expect(await rollout(order)).toMatchObject({ outcome: { kind: 'failed', code, message: expect.stringMatching(message) } });
    }
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

  it('is a workflow that no other process can import', async () => {
    await expect(startWorkflow(isolated, { module: undefined, workers: 1, signal })).rejects.toMatchObject({
      code: 'WORKFLOW_INVALID',
      message: expect.stringMatching(/given as a value/),
    });
    await expect(startWorkflow(isolated, { module: { url, exportName: 'grader' }, workers: 1, signal })).rejects.toMatchObject({
      code: 'WORKFLOW_NOT_FOUND',
    });
  });

  it('is given no variable of the run itself', async () => {
    const greedy = { ...isolated, env: ['TINKER_API_KEY'] };
    await expect(startWorkflow(greedy, { module: { url, exportName: 'isolated' }, workers: 1, signal })).rejects.toMatchObject({
      code: 'USAGE',
      message: expect.stringMatching(/TINKER_API_KEY cannot be passed on/),
    });
  });
});
