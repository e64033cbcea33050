/** A whole run, small, with every part real: process, policy, gateway over HTTP, grader process, store, checkpoints. */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { RunEvent, TrainDone } from '../../src/core/events.ts';
import type { Trajectory } from '../../src/core/types.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { makeBatch } from '../../src/trainer/batch.ts';
import { trainyard } from '../cli/command.ts';
import { CANARY, type Home, smallHome } from './small-run.ts';

let home: Home;
beforeAll(async () => {
  home = await smallHome();
});
afterAll(() => home.remove());

const smallRun = (run: string, steps: number): string[] => home.flags(run, steps);

async function everythingIn(dir: string): Promise<string> {
  const files = await readdir(dir, { recursive: true, withFileTypes: true });
  const texts = await Promise.all(
    files.filter((file) => file.isFile()).map((file) => readFile(join(file.parentPath, file.name), 'latin1')),
  );
  return texts.join('\n');
}

describe('a run', () => {
  let run: string;
  let events: RunEvent[];
  let trajectories: readonly Trajectory[];
  let printed: string;

  beforeAll(async () => {
    run = join(home.dir, 'run');
    const ended = await trainyard(...smallRun(run, 3), '--transcripts', '1', '--json');
    expect(ended).toMatchObject({ code: 0, stderr: '' });
    printed = ended.stdout;
    events = printed
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as RunEvent);
    await using store = await openSqliteStore(join(run, 'store.sqlite'));
    trajectories = await store.query();
  });

  it('ends with one line that says what came of it', () => {
    expect(events.at(-1)).toMatchObject({
      type: 'done',
      before: { n: 5 },
      after: { n: 5 },
      steps: 3,
      seconds: expect.any(Number),
    });
    expect(events.filter(({ type }) => type === 'step-end').length).toBe(3);
  });

  it('keeps its events, and stores every rollout exactly once', async () => {
    expect((await readFile(join(run, 'events.jsonl'), 'utf8')).trim()).toBe(printed.trim());
    const steps = events.filter((event) => event.type === 'step-end');
    const expected = 2 * 5 + steps.reduce((sum, { rollouts }) => sum + rollouts, 0);
    expect(trajectories.length).toBe(expected);
    expect(new Set(trajectories.map(({ rolloutId }) => rolloutId)).size).toBe(expected);
  });

  it('trains exactly the rollouts of groups with signal, each in one step, sampled by the version before it', async () => {
    await using store = await openSqliteStore(join(run, 'store.sqlite'));
    const manifests = await store.manifests();
    expect(manifests.map(({ step, policyVersion }) => [step, policyVersion])).toEqual([
      [1, 1],
      [2, 2],
      [3, 3],
    ]);
    const trained = manifests.flatMap(({ rolloutIds }) => rolloutIds);
    expect(new Set(trained).size).toBe(trained.length);
    const training = trajectories.filter(({ purpose }) => purpose === 'train');
    expect(trained.toSorted()).toEqual([...makeBatch(training).rolloutIds].toSorted());
    for (const { policyVersion, rolloutIds } of manifests) {
      const turns = training.filter(({ rolloutId }) => rolloutIds.includes(rolloutId)).flatMap((trajectory) => trajectory.turns);
      expect(new Set(turns.map((turn) => turn.policyVersion))).toEqual(new Set([policyVersion - 1]));
    }
  });

  it('trains each sampled token once, and nothing else', () => {
    const training = trajectories.filter(({ purpose }) => purpose === 'train');
    const { samples, rolloutIds, trainedTokens } = makeBatch(training);
    const sampled = training.filter(({ rolloutId }) => rolloutIds.includes(rolloutId)).flatMap(({ turns }) => turns);
    expect(trainedTokens).toBe(sampled.reduce((sum, { sampledIds }) => sum + sampledIds.length, 0));
    // Two turns of one conversation are one sample: the second extends the first's recorded ids.
    expect(samples.length).toBe(rolloutIds.length);
  });

  it('leaves whole checkpoints that can be evaluated', async () => {
    expect((await readdir(join(run, 'checkpoints'))).toSorted()).toEqual(['step-000002', 'step-000003']);
    const model = join(run, 'checkpoints', 'step-000003');
    const { code, stdout } = await trainyard(
      'eval',
      join(home.dir, 'agent.ts'),
      '--model',
      model,
      '--run',
      join(home.dir, 'measured'),
      '--json',
    );
    expect(code).toBe(0);
    const { after } = events.at(-1) as TrainDone;
    expect(JSON.parse(stdout.trim().split('\n').at(-1) ?? '')).toMatchObject({ type: 'done', success: after?.success });
  });

  it('shows the answer to nobody but the grader', async () => {
    const seen = await readFile(join(home.dir, 'seen.txt'), 'utf8');
    expect(seen).toMatch(/Question \d\?/);
    const prompts = trajectories.flatMap(({ turns }) => turns.map(({ request }) => JSON.stringify(request)));
    for (const text of [seen, printed, prompts.join('\n'), await everythingIn(run)]) expect(text.includes(CANARY)).toBe(false);
  });

  it.each([1, 2, 3])('gives the same result again for the same seed, on %i threads', async (threads) => {
    const again = join(home.dir, `again-${threads}`);
    await trainyard(...smallRun(again, 3), '--threads', `${threads}`, '--concurrency', `${4 - threads}`);
    for (const file of ['model.safetensors', 'optimizer.safetensors']) {
      const bytes = (dir: string) => readFile(join(dir, 'checkpoints/step-000003', file));
      expect((await bytes(again)).equals(await bytes(run))).toBe(true);
    }
  });
});

describe('rollouts that run ahead', () => {
  it('are trained at most so many versions later, each once, and the last step leaves none running', async () => {
    const run = join(home.dir, 'ahead');
    const ended = await trainyard(...smallRun(run, 5), '--staleness', '2', '--json');
    expect(ended).toMatchObject({ code: 0, stderr: '' });
    await using store = await openSqliteStore(join(run, 'store.sqlite'));
    const manifests = await store.manifests();
    expect(manifests.length).toBe(5);
    const trained = manifests.flatMap(({ rolloutIds }) => rolloutIds);
    expect(new Set(trained).size).toBe(trained.length);
    const behind: number[] = [];
    for (const { step, rolloutIds } of manifests) {
      for (const id of rolloutIds) {
        const trajectory = await store.read(id);
        behind.push(...(trajectory?.turns ?? []).map(({ policyVersion }) => step - 1 - policyVersion));
      }
    }
    expect(Math.max(...behind)).toBeLessThanOrEqual(2);
    // Otherwise nothing ran ahead and this shows nothing.
    expect(Math.max(...behind)).toBeGreaterThan(0);
    expect(manifests.at(-1)?.groups.pending).toEqual([]);
  });
});

describe('other ways to learn', () => {
  it.each([
    ['--algorithm', 'rloo'],
    ['--algorithm', 'dr-grpo'],
    ['--kl', '0.05'],
  ])('%s %s', async (flag, value) => {
    const run = join(home.dir, `other-${value}`);
    const { code, stdout, stderr } = await trainyard(...smallRun(run, 2), flag, value, '--json');
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    const losses = (stdout.match(/"loss":[^,]+/g) ?? []).length;
    expect(losses).toBe(2);
    const weights = (dir: string) => readFile(join(dir, 'checkpoints/step-000002/model.safetensors'));
    expect((await weights(run)).equals(await weights(join(home.dir, 'run')))).toBe(false);
  });
});

describe('--trainable', () => {
  it('trains only the roles it names', async () => {
    const { code, stderr } = await trainyard(...smallRun(join(home.dir, 'nobody'), 1), '--trainable', 'somebody-else');
    expect(code).toBe(1);
    expect(stderr).toContain('NO_SIGNAL: rewards differ, but no turn of a trainable role was sampled');
  });
});
