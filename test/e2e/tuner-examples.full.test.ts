/** The examples in AgentScope's shape as a newcomer runs them, briefly: the real command, on the shipped policy. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Player, play, ROLES } from '../../examples/tuner/werewolves/game.ts';
import type { TrainDone } from '../../src/core/events.ts';
import type { Trajectory } from '../../src/core/types.ts';
import { isSuccess } from '../../src/run/results.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { makeBatch } from '../../src/trainer/batch.ts';
import { ROOT, scratch, trainyard } from '../cli/command.ts';

let home: Awaited<ReturnType<typeof scratch>>;
beforeAll(async () => {
  home = await scratch();
});
afterAll(() => home.remove());

interface BriefRun {
  readonly done: TrainDone;
  readonly trajectories: readonly Trajectory[];
}

/** One step of an example on tasks that lie in another example's folder, and three held-out ones. */
async function trainBriefly(entry: string, tasks: string, name: string, ...more: readonly string[]): Promise<BriefRun> {
  const folder = join(ROOT, 'examples', tasks);
  const run = join(home.dir, name);
  const lines = (await readFile(join(folder, 'held-out.jsonl'), 'utf8')).split('\n').slice(0, 3);
  const heldOut = await home.write(`${name}.jsonl`, lines.join('\n'));
  const files = ['--tasks', join(folder, 'train.jsonl'), '--held-out', heldOut, '--run', run];
  const small = ['--steps', '1', '--groups-per-step', '2', '--group', '4', '--json'];
  const { code, stdout, stderr } = await trainyard('train', join(ROOT, 'examples/tuner', entry), ...files, ...small, ...more);
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  await using store = await openSqliteStore(join(run, 'store.sqlite'));
  const done = JSON.parse(stdout.trim().split('\n').at(-1) ?? '') as BriefRun['done'];
  return { done, trajectories: await store.query() };
}

function expectNoFailure({ done, trajectories }: BriefRun): void {
  expect(done).toMatchObject({ type: 'done', steps: 1, before: { n: 3, failed: 0 }, after: { n: 3, failed: 0 } });
  expect(new Set(trajectories.map(({ outcome }) => outcome.kind))).toEqual(new Set(['completed']));
}

const said = (trajectories: readonly Trajectory[]) =>
  Object.fromEntries(trajectories.map(({ rolloutId, turns }) => [rolloutId, turns.map(({ response }) => response.content)]));
const seatsIn = (trajectories: readonly Trajectory[]) =>
  new Set(
    trajectories.flatMap(({ turns }) => turns.map(({ role, trainable, model }) => `${role} ${model ?? 'policy'} ${trainable}`)),
  );

describe('the simple agent', () => {
  it('trains, judged by its judge', async () => {
    const run = await trainBriefly('simple-agent.ts', 'triage', 'simple');
    expectNoFailure(run);
    for (const { metadata, grade } of run.trajectories) {
      expect(metadata).toHaveProperty('queue');
      expect(grade).toMatchObject({ kind: 'graded', reward: { success: expect.any(Boolean) } });
    }
  });
});

describe('the sums agent', () => {
  it('trains with tools and a structured answer, and says the same with either SDK', async () => {
    const withAiSdk = await trainBriefly('math-agent-ai-sdk.ts', 'shop', 'math-ai-sdk');
    const withAgents = await trainBriefly('math-agent-openai-agents.ts', 'shop', 'math-openai-agents');
    expectNoFailure(withAiSdk);
    expectNoFailure(withAgents);
    const calls = withAiSdk.trajectories.flatMap(({ turns }) => turns.flatMap(({ response }) => response.tool_calls ?? []));
    expect(calls.map((call) => call.function.name)).toContain('lookup');
    for (const { turns, metadata } of withAiSdk.trajectories) {
      expect(turns.at(-1)?.request.tools).toMatchObject([{ function: { name: 'final_result' } }]);
      expect(metadata).toHaveProperty('final_answer');
    }
    const ofFirstVersion = (run: BriefRun) => said(run.trajectories.filter(({ rolloutId }) => rolloutId.startsWith('e000000')));
    expect(ofFirstVersion(withAgents)).toEqual(ofFirstVersion(withAiSdk));
  });
});

describe('the two roles', () => {
  it('train the clerk; the customer is its default model', async () => {
    const run = await trainBriefly('advanced-roles.ts', 'desk', 'roles');
    expectNoFailure(run);
    expect(seatsIn(run.trajectories)).toEqual(new Set(['clerk policy true', 'customer insist false']));
  });
});

describe('the werewolves', () => {
  const GOOD = ['villager', 'seer', 'witch', 'hunter'];

  it('are trained by what their role earned, while everybody else is played by default models', async () => {
    const run = await trainBriefly('werewolves/agent.ts', 'tuner/werewolves', 'wolves', '--turns', '200');
    expectNoFailure(run);
    expect(seatsIn(run.trajectories)).toEqual(new Set(['werewolf policy true', ...GOOD.map((role) => `${role} qwen-max false`)]));
    const training = run.trajectories.filter(({ purpose }) => purpose === 'train');
    for (const { turns, grade } of training) {
      const reward = grade.kind === 'graded' ? grade.reward : undefined;
      expect(new Set(Object.keys(reward?.byRole ?? {}))).toEqual(new Set(turns.map(({ role }) => role)));
    }
    const { samples } = makeBatch(training);
    const trained = training.flatMap(({ turns }) => turns.filter(({ role }) => role === 'werewolf'));
    expect(samples.length).toBeGreaterThan(0);
    expect(samples.length).toBeLessThanOrEqual(trained.length);
    expect(run.done).toMatchObject({ turns: 200 });
  });

  it('leave the training to the village with a flag', async () => {
    const flags = ['--turns', '200', '--trainable', GOOD.join(',')];
    const run = await trainBriefly('werewolves/agent.ts', 'tuner/werewolves', 'village', ...flags);
    expectNoFailure(run);
    const seats = seatsIn(run.trajectories.filter(({ purpose }) => purpose === 'train'));
    expect(seats).toEqual(new Set(['werewolf qwen-plus false', ...GOOD.map((role) => `${role} policy true`)]));
    for (const trajectory of run.trajectories) {
      const isWon = trajectory.metadata?.['winner'] === 'village';
      expect(trajectory.grade).toMatchObject({ reward: { value: isWon ? 1 : 0 } });
      expect(isSuccess(trajectory), 'of those who are trained, not of the werewolves').toBe(isWon);
    }
  });
});

describe('the rules of werewolves', () => {
  const table = (answer: () => string) =>
    ROLES.map((role, i): Player => ({ name: `Player${i + 1}`, number: i + 1, role, answer: async () => answer() }));
  it('let any nonsense play: the game ends, and nobody dies twice', async () => {
    await fc.assert(
      fc.asyncProperty(fc.infiniteStream(fc.oneof(fc.string(), fc.nat(10).map(String))), async (stream) => {
        const { winner, alive, story, days } = await play(table(() => stream.next().value as string));
        const dead = story.flatMap((line) => /(Player\d) /.exec(line)?.[1] ?? []);
        expect(new Set(dead).size).toBe(dead.length);
        expect(dead.length + alive.length).toBe(9);
        expect(days).toBeLessThanOrEqual(5);
        const wolves = alive.filter(({ role }) => role === 'werewolf').length;
        if (winner === 'werewolves') expect(wolves * 2).toBeGreaterThanOrEqual(alive.length);
      }),
    );
  });
});
