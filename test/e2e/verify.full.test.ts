/** Runs that prove themselves, and runs with a lie in them: each lie is named by `verify`, or was refused before it could be trained. */
import { existsSync, readdirSync, writeFileSync } from 'node:fs';
import { cp, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { setTimeout as sleep } from 'node:timers/promises';
import { beforeAll, describe, expect, it } from 'vitest';
import { verify } from '../../src/audit/verify.ts';
import type { Store } from '../../src/core/contracts.ts';
import { defineGrader, defineWorkflow } from '../../src/core/define.ts';
import type { RunEvent } from '../../src/core/events.ts';
import type { Engine } from '../../src/core/policy.ts';
import { engineWith } from '../../src/core/policy.ts';
import { evaluateOnly } from '../../src/evaluation/evaluate.ts';
import type { TrainRequest } from '../../src/settings/check-settings.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { resume, type TrainOptions, train } from '../../src/training/train.ts';
import { trainyard } from '../cli/command.ts';
import { refusal } from '../fixtures/refusal.ts';
import { storeWith, useSmallHome } from './small-run.ts';

const SIZE = { group: 4, groupsPerStep: 2, threads: 1 } as const;
const home = useSmallHome();
let whole: string;

beforeAll(async () => {
  ({ run: whole } = await trained('whole', 3));
});

async function trained(name: string, steps: number, through: TrainOptions['through'] = {}, ahead: Partial<TrainRequest> = {}) {
  const run = join(home.dir, name);
  const events: RunEvent[] = [];
  await train({ ...SIZE, entry: home.entry, run, steps, evalEvery: 2, ...ahead }, (event) => events.push(event), { through });
  return { run, events };
}

async function copied(name: string): Promise<string> {
  const run = join(home.dir, name);
  await cp(whole, run, { recursive: true });
  return run;
}

/** Changes the last bit of a checkpoint's weights. */
async function flipLastBit(run: string, step: number): Promise<void> {
  const file = join(run, 'checkpoints', `step-00000${step}`, 'model.safetensors');
  const weights = await readFile(file);
  weights[weights.length - 1]! ^= 1;
  await writeFile(file, weights);
}

async function changeStore(run: string, sql: string): Promise<void> {
  using database = new DatabaseSync(join(run, 'store.sqlite'));
  database.exec(sql);
}

/** The engine, with what it says of log-probabilities changed. */
const lying =
  (lie: (logprob: number) => number) =>
  (engine: Engine): Engine =>
    engineWith(engine, async (request, signal, onTokens) => {
      const honest = await engine.sample(request, signal, onTokens);
      return { ...honest, logprobs: honest.logprobs.map(lie) };
    });

describe('a run that nobody lied in', () => {
  it('has no difference, and is as it was afterwards', async () => {
    const files = ['run.json', 'events.jsonl', 'checkpoints/step-000003/checkpoint.json'];
    const bytes = () => Promise.all(files.map((file) => readFile(join(whole, file), 'utf8')));
    const before = await bytes();
    const result = await verify({ run: whole });
    expect(result).toEqual({
      ...{ steps: 3, checkpoints: 3, scores: 3, different: 0, first: null, unchecked: [] },
      turns: expect.any(Number),
      rewards: expect.any(Number),
    });
    expect([result.turns, result.rewards].every((count) => count >= 24)).toBe(true);
    expect(await bytes()).toEqual(before);
    const told = await trainyard('verify', whole);
    expect(told).toMatchObject({
      code: 0,
      stderr: '',
      stdout: expect.stringMatching(/\{ turns: \d+, rewards: \d+, steps: 3, different: 0 \}\n$/),
    });
  });

  it('has none either if it ran ahead of the trainer, weighed what came too late, and was taken up again', async () => {
    // The first answers of three groups come three versions later.
    const late = (engine: Engine): Engine =>
      engineWith(engine, async (request, signal, onTokens) => {
        const result = await engine.sample(request, signal, onTokens);
        const isHeld = /^g00000[123]$/.test(request.affinity ?? '') && result.policyVersion === 0;
        while (isHeld && engine.policyVersion < 3) await sleep(5, undefined, signal && { signal });
        return result;
      });
    const { run, events } = await trained('ahead', 5, { engine: late }, { staleness: 2, stale: 'weigh' });
    expect(events).toContainEqual(expect.objectContaining({ type: 'step-end', staleRule: 'weigh' }));
    await rm(join(run, 'checkpoints'), { recursive: true });
    const warnings: string[] = [];
    await resume({ run, steps: 6 }, (event) => event.type === 'warning' && warnings.push(event.code));
    expect(warnings).not.toContain('NOT_REPRODUCED');
    const unchecked = [expect.stringContaining('groups without signal')];
    expect(await verify({ run })).toMatchObject({ steps: 6, different: 0, unchecked });
    await using store = await openSqliteStore(join(run, 'store.sqlite'));
    const measured = await store.query({ purpose: 'eval' });
    // Rollouts ran on beside the evaluations, and no evaluation has turns of two versions.
    const versions = Map.groupBy(measured, ({ rolloutId }) => rolloutId.split('-')[0]!).values();
    for (const all of versions) expect(new Set(all.flatMap(({ turns }) => turns.map((one) => one.policyVersion))).size).toBe(1);
    const [manifest] = (await store.manifests()).slice(3);
    expect(manifest?.stale).toEqual({ policyVersion: 3, most: 2, rule: 'weigh' });
  });

  it('may begin with the checkpoint of another, whose optimizer it leaves behind, however it is taken up again', async () => {
    const model = join(whole, 'checkpoints', 'step-000003');
    const run = join(home.dir, 'further');
    const request = { ...SIZE, entry: home.entry, run, model, evalEvery: 0, checkpointEvery: 2 };
    await train({ ...request, steps: 3 });
    expect(await verify({ run })).toMatchObject({ steps: 3, checkpoints: 2, different: 0 });
    await rm(join(run, 'checkpoints'), { recursive: true });
    const warnings: string[] = [];
    await resume({ run, steps: 4 }, (event) => event.type === 'warning' && warnings.push(event.code));
    expect(warnings).not.toContain('NOT_REPRODUCED');
    // The result of a run is a checkpoint that no manifest names, where checkpoints are rarer than steps.
    await flipLastBit(run, 4);
    expect(await verify({ run })).toMatchObject({ different: 1, first: { where: 'checkpoint of step 4' } });
  });

  it('may have a grader that sees more than was stored: which turns were trainable, credit, files', async () => {
    const workflow = defineWorkflow(async (ctx) => {
      const model = ctx.model();
      for (const thread of ['a', 'b']) await model.thread(thread).generate({ messages: [...ctx.prompt], maxTokens: 8 });
      await writeFile(join(ctx.artifactsDir ?? '', 'notes.txt'), ctx.rolloutId);
      return { trainedTurns: [0], success: true, credit: { turnDiscount: 1, per: 'turn' } };
    });
    const grader = defineGrader(({ messages, turns, result, artifactsDir }) => {
      const files = readdirSync(artifactsDir ?? '').length;
      writeFileSync(join(artifactsDir ?? '', 'notes.txt'), 'graded');
      const letters = (messages.at(-1)?.content ?? '').length % 4;
      return letters / 4 + turns.filter(({ trainable }) => trainable).length + files + (result.success ? 1 : 0);
    });
    const rows = Array.from({ length: 8 }, (_, i) => ({ id: `t${i}`, prompt: `Question ${i}?` }));
    const given = { run: join(home.dir, 'values'), entry: { workflow, grader }, tasks: rows, heldOut: rows.slice(0, 2) };
    await train({ ...SIZE, ...given, steps: 1, turnDiscount: 0.5 });
    expect(await verify(given)).toMatchObject({ steps: 1, different: 0 });
  });

  it('may be an evaluation', async () => {
    const run = join(home.dir, 'evaluation');
    await evaluateOnly({ entry: home.entry, run, n: 2, threads: 1 });
    expect(await verify({ run })).toMatchObject({ turns: 20, rewards: 10, steps: 0, scores: 1, different: 0 });
    await changeStore(run, 'DELETE FROM turns WHERE trajectory = 1; DELETE FROM trajectories WHERE seq = 1');
    expect(await verify({ run })).toMatchObject({ first: { where: 'metrics.json' } });
  });
});

describe('an engine that lies', () => {
  it('ends the run before the step is kept, with what was seen', async () => {
    for (const [name, lie] of Object.entries<(logprob: number) => number>({ flat: () => -3, certain: () => 0 })) {
      await expect(trained(`lie-${name}`, 2, { engine: lying(lie) })).rejects.toThrow(
        refusal('POLICY_DISAGREES', /step \d: .* differ by .* on average \(largest .*, mean ratio .*clipped\), expected/),
      );
    }
  });

  it('is warned of where the run is asynchronous', async () => {
    const { events } = await trained('lie-stale', 2, { engine: lying(() => -3) }, { staleness: 1 });
    expect(events.some((event) => event.type === 'warning' && event.code === 'POLICY_DISAGREES')).toBe(true);
    const step = events.find((event) => event.type === 'step-end');
    expect(step).toMatchObject({ ratio: expect.any(Number), clipped: expect.any(Number), largestDifference: expect.any(Number) });
  });

  it('is found by verify where the lie is too small to stop for', async () => {
    const { run } = await trained('lie-small', 1, { engine: lying((logprob) => logprob - 0.001) });
    const { different, first } = await verify({ run });
    expect(different).toBeGreaterThan(0);
    expect(first).toMatchObject({
      where: expect.stringMatching(/rollout .*, turn/),
      kept: expect.stringContaining('log-probability'),
    });
  });
});

describe('what was changed', () => {
  it('rewards that the store keeps otherwise than they were trained', async () => {
    const store = (own: Store): Store =>
      storeWith(own, {
        append: (trajectory) => {
          const { grade } = trajectory;
          const other = grade.kind === 'graded' ? { ...grade, reward: { value: 1 - grade.reward.value } } : grade;
          return own.append({ ...trajectory, grade: other });
        },
      });
    const { run } = await trained('other-rewards', 1, { store });
    const { different, first } = await verify({ run });
    expect(first).toMatchObject({ where: 'evaluation after step 0', meaning: expect.stringContaining('score') });
    expect(different).toBeGreaterThan(10);
  });

  it('a grader that was edited since', async () => {
    const source = await readFile(home.entry, 'utf8');
    const warnings: string[] = [];
    try {
      await writeFile(home.entry, source.replace('(sum % 3) / 2', '(sum % 2)'));
      const result = await verify({ run: whole }, { warn: (code) => warnings.push(code) });
      expect(result).toMatchObject({ first: { where: expect.stringMatching(/^rollout/), again: expect.any(String) } });
      expect(warnings).toContain('ENTRY_CHANGED');
    } finally {
      await writeFile(home.entry, source);
    }
  });

  it('the store, which is gone, and is not made again by looking for it', async () => {
    const run = await copied('no-store');
    await rm(join(run, 'store.sqlite'));
    await expect(verify({ run })).rejects.toMatchObject({ code: 'FILE_NOT_FOUND' });
    expect(existsSync(join(run, 'store.sqlite'))).toBe(false);
  });

  it('rollouts of an evaluation, of which one is missing', async () => {
    const run = await copied('fewer');
    const seq = `(SELECT seq FROM trajectories WHERE rollout_id = 'e000000-00002')`;
    await changeStore(run, `DELETE FROM turns WHERE trajectory = ${seq}; DELETE FROM trajectories WHERE seq = ${seq}`);
    expect(await verify({ run })).toMatchObject({
      first: { where: 'evaluation after step 0', kept: 'n 5', again: 'n 4' },
      unchecked: [expect.stringContaining('something differed before')],
    });
  });

  it('the settings in run.json', async () => {
    const run = await copied('other-seed');
    const file = join(run, 'run.json');
    await writeFile(file, (await readFile(file, 'utf8')).replace('"seed": 1', '"seed": 2'));
    expect(await verify({ run })).toMatchObject({ first: { where: 'checkpoint of step 2', kept: 'a run with other settings' } });
  });

  it('checkpoints, of which there are more than steps; the one that a kill kept from being committed is no difference', async () => {
    const run = await copied('further-weights');
    const at = (step: number) => join(run, 'checkpoints', `step-00000${step}`);
    await cp(at(3), at(4), { recursive: true });
    expect(await verify({ run })).toMatchObject({ different: 0 });
    await cp(at(3), at(5), { recursive: true });
    expect(await verify({ run })).toMatchObject({ first: { where: 'checkpoint of step 5' } });
  });

  it('the weights of a checkpoint', async () => {
    const run = await copied('other-weights');
    await flipLastBit(run, 3);
    expect(await verify({ run })).toMatchObject({ different: 1, first: { where: 'checkpoint of step 3' } });
  });

  it('the store, for another run’s: neither verified nor gone on with', async () => {
    const [run, { run: other }] = [await copied('foreign'), await trained('other', 1)];
    await cp(join(other, 'store.sqlite'), join(run, 'store.sqlite'));
    const refusal = { code: 'STORE_FORMAT', message: expect.stringContaining('found the store of run') };
    await expect(verify({ run })).rejects.toMatchObject(refusal);
    await expect(resume({ run, steps: 4 })).rejects.toMatchObject(refusal);
  });
});
