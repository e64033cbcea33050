/** A whole run, small, with every part real: process, policy, gateway over HTTP, grader process, store, checkpoints. */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import type { RunEvent, TrainDone } from '../../src/core/events.ts';
import type { Trajectory } from '../../src/core/types.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { makeBatch } from '../../src/training/batch.ts';
import { jsonLines, trainyard } from '../cli/command.ts';
import { CANARY, useSmallHome } from './small-run.ts';

const home = useSmallHome();

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
    const ended = await trainyard(...home.flags(run, 3), '--transcripts', '1', '--json');
    expect(ended).toMatchObject({ code: 0, stderr: '' });
    printed = ended.stdout;
    events = jsonLines(printed);
    await using store = await openSqliteStore(join(run, 'store.sqlite'));
    trajectories = await store.query();
  });

  it('says in its last line what came of it, keeps its events, and stores every rollout exactly once', async () => {
    const scored = { before: { n: 5 }, after: { n: 5 } };
    expect(events.at(-1)).toMatchObject({ type: 'done', ...scored, steps: 3, seconds: expect.any(Number) });
    expect((await readFile(join(run, 'events.jsonl'), 'utf8')).trim()).toBe(printed.trim());
    const steps = events.filter((event) => event.type === 'step-end');
    expect(steps.length).toBe(3);
    const expected = 2 * 5 + steps.reduce((sum, { rollouts }) => sum + rollouts, 0);
    expect(trajectories.length).toBe(expected);
    expect(new Set(trajectories.map(({ rolloutId }) => rolloutId)).size).toBe(expected);
  });

  it('trains the rollouts of groups with signal, each in one step, sampled by the version before it, each token once', async () => {
    await using store = await openSqliteStore(join(run, 'store.sqlite'));
    const manifests = await store.manifests();
    expect(manifests.map(({ step, policyVersion }) => `${step} ${policyVersion}`)).toEqual(['1 1', '2 2', '3 3']);
    const trained = manifests.flatMap(({ rolloutIds }) => rolloutIds);
    const training = trajectories.filter(({ purpose }) => purpose === 'train');
    const { samples, rolloutIds: expected, trainedTokens } = makeBatch(training);
    expect(trained.toSorted()).toEqual([...expected].toSorted());
    const turnsIn = (ids: readonly string[]) =>
      training.filter(({ rolloutId }) => ids.includes(rolloutId)).flatMap(({ turns }) => turns);
    for (const { policyVersion, rolloutIds } of manifests)
      expect(new Set(turnsIn(rolloutIds).map((turn) => turn.policyVersion))).toEqual(new Set([policyVersion - 1]));
    expect(trainedTokens).toBe(turnsIn(trained).reduce((sum, { sampledIds }) => sum + sampledIds.length, 0));
    // Two turns of one conversation are one sample: the second extends the first's recorded ids.
    expect(samples.length).toBe(trained.length);
  });

  it('leaves whole checkpoints that can be evaluated', async () => {
    expect((await readdir(join(run, 'checkpoints'))).toSorted()).toEqual(['step-000002', 'step-000003']);
    const model = join(run, 'checkpoints', 'step-000003');
    const measuring = ['eval', join(home.dir, 'agent.ts'), '--model', model, '--run', join(home.dir, 'measured')];
    const { code, stdout } = await trainyard(...measuring, '--json');
    expect(code).toBe(0);
    const { after } = events.at(-1) as TrainDone;
    expect(jsonLines(stdout).at(-1)).toMatchObject({ type: 'done', success: after?.success });
  });

  it('shows the answer to nobody but the grader', async () => {
    const seen = await readFile(join(home.dir, 'seen.txt'), 'utf8');
    expect(seen).toMatch(/Question \d\?/);
    const prompts = trajectories.flatMap(({ turns }) => turns.map(({ request }) => JSON.stringify(request)));
    for (const text of [seen, printed, prompts.join('\n'), await everythingIn(run)]) expect(text.includes(CANARY)).toBe(false);
  });

  it.each([1, 2, 3])('gives the same result again for the same seed, on %i threads', async (threads) => {
    const again = join(home.dir, `again-${threads}`);
    await trainyard(...home.flags(again, 3), '--threads', `${threads}`, '--concurrency', `${4 - threads}`);
    for (const file of ['model.safetensors', 'optimizer.safetensors']) {
      const bytes = (dir: string) => readFile(join(dir, 'checkpoints/step-000003', file));
      expect((await bytes(again)).equals(await bytes(run))).toBe(true);
    }
  });
});

describe('rollouts that run ahead', () => {
  it('are trained at most so many versions later, each once, and the last step leaves none running', async () => {
    const run = join(home.dir, 'ahead');
    const ended = await trainyard(...home.flags(run, 5), '--staleness', '2', '--json');
    expect(ended).toMatchObject({ code: 0, stderr: '' });
    await using store = await openSqliteStore(join(run, 'store.sqlite'));
    const manifests = await store.manifests();
    expect(manifests.length).toBe(5);
    const trained = manifests.flatMap(({ rolloutIds }) => rolloutIds);
    expect(new Set(trained).size).toBe(trained.length);
    const behind: number[] = [];
    for (const { step, rolloutIds } of manifests)
      for (const id of rolloutIds)
        behind.push(...(await store.read(id))!.turns.map(({ policyVersion }) => step - 1 - policyVersion));
    expect(Math.max(...behind)).toBeLessThanOrEqual(2);
    // Otherwise nothing ran ahead and this shows nothing.
    expect(Math.max(...behind)).toBeGreaterThan(0);
    expect(manifests.at(-1)?.groups.pending).toEqual([]);
  });
});

describe('other ways to learn', () => {
  it.each(['--algorithm rloo', '--algorithm dr-grpo', '--kl 0.05'])('%s', async (flags) => {
    const run = join(home.dir, `other${flags.replace(' ', '-')}`);
    const { code, stdout, stderr } = await trainyard(...home.flags(run, 2), ...flags.split(' '), '--json');
    expect({ code, stderr, losses: stdout.match(/"loss":[^,]+/g)?.length }).toEqual({ code: 0, stderr: '', losses: 2 });
    const weights = (dir: string) => readFile(join(dir, 'checkpoints/step-000002/model.safetensors'));
    expect((await weights(run)).equals(await weights(join(home.dir, 'run')))).toBe(false);
  });

  it('--trainable trains only the roles it names', async () => {
    const { code, stderr } = await trainyard(...home.flags(join(home.dir, 'nobody'), 1), '--trainable', 'somebody-else');
    expect(code).toBe(1);
    expect(stderr).toContain('NO_SIGNAL: 8 rollouts were made, but no turn of a trainable role was sampled');
  });
});

it('a run whose signal ends after a step ends as others do, with its evaluation', async () => {
  const entry = await home.write(
    'once.ts',
    `import { defineWorkflow } from 'trainyard';
export default defineWorkflow(async (ctx) => {
  await ctx.model().generate({ messages: ctx.prompt, maxTokens: 4 });
  const { groupId, rolloutId } = ctx;
  return { reward: groupId <= 'g000002' && rolloutId.endsWith('-0') ? 1 : 0 };
});
`,
  );
  const [, , ...flags] = home.flags(join(home.dir, 'once'), 5);
  const { code, stdout } = await trainyard('train', entry, ...flags, '--json');
  expect(code).toBe(0);
  const events = jsonLines<RunEvent>(stdout);
  expect(events.at(-1)).toMatchObject({ type: 'done', ending: 'no-signal', steps: 1, after: { n: 5 } });
  expect(events.filter((event) => event.type === 'warning' && event.code === 'NO_SIGNAL')).toHaveLength(3);
});

describe('the demo', () => {
  it('earns more in each window of its steps than in the one before', async () => {
    const few = (await readFile('examples/shop/held-out.jsonl', 'utf8')).split('\n').slice(0, 20).join('\n');
    const heldOut = ['--held-out', await home.write('few.jsonl', few)];
    const flags = ['--run', join(home.dir, 'learning'), '--steps', '12', '--eval-every', '0', ...heldOut];
    const { stdout } = await trainyard('train', 'examples/shop/agent.ts', ...flags, '--json');
    const rewards = jsonLines(stdout).flatMap((event) => (event.type === 'step-end' ? [event.reward] : []));
    const windows = [0, 4, 8].map((from) => rewards.slice(from, from + 4).reduce((sum, reward) => sum + reward, 0) / 4);
    expect(windows[0]).toBeLessThan(0.6);
    expect(windows[1]).toBeGreaterThan(windows[0]!);
    expect(windows[2]).toBeGreaterThan(windows[1]!);
  }, 60_000);
});
