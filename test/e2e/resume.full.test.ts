/** Runs that end early, for real, and are taken up again. */
import { cp, mkdir, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import type { TrainDone } from '../../src/core/events.ts';
import { jsonLines, killedAt, sharedTrainyard, start, trainyard } from '../cli/command.ts';
import { useSmallHome } from './small-run.ts';

const STEPS = 6;
const home = useSmallHome();
/** A run that nothing disturbed. */
let whole: string;

beforeAll(async () => {
  whole = join(home.dir, 'whole');
  expect(await trainyard(...flags(whole))).toMatchObject({ code: 0, stderr: '' });
});

const flags = (run: string): string[] => [...home.flags(run, STEPS), '--eval-every', '2', '--checkpoint-every', '3', '--json'];

const weightsOf = (run: string, step = STEPS): Promise<Buffer> =>
  readFile(join(run, 'checkpoints', `step-00000${step}`, 'model.safetensors'));
const expectWhole = async (run: string) => expect((await weightsOf(run)).equals(await weightsOf(whole))).toBe(true);

describe('a killed run', () => {
  const killed = (name: string): string => join(home.dir, name);
  beforeAll(async () => {
    await killedAt('"step":5,', flags(killed('killed')));
    await cp(killed('killed'), killed('killed-again'), { recursive: true });
  });

  it('goes back to an earlier checkpoint when the newest is damaged, and computes the steps between again', async () => {
    const run = killed('killed');
    const [newest] = (await readdir(join(run, 'checkpoints'))).toSorted().toReversed();
    await truncate(join(run, 'checkpoints', newest ?? '', 'model.safetensors'), 1000);
    // What a kill between checkpoint and commit, or in the middle of a checkpoint, leaves.
    await mkdir(join(run, 'checkpoints', 'step-000006'), { recursive: true });
    await mkdir(join(run, 'checkpoints', 'step-000007.unfinished'));
    await writeFile(join(run, 'events.jsonl'), '{"type":"step-en', { flag: 'a' });
    const { code, stdout } = await trainyard('train', '--resume', run, '--json');
    expect(code).toBe(0);
    expect(stdout).toContain('CHECKPOINT_UNREADABLE');
    expect(stdout).not.toContain('NOT_REPRODUCED');
    expect(stdout).toContain('"resumedAt":5');
    await expectWhole(run);
    const events = jsonLines(await readFile(join(run, 'events.jsonl'), 'utf8'));
    const steps = events.filter((event) => event.type === 'step-end').map(({ step }) => step);
    expect(new Set(steps).size).toBe(steps.length);
  });

  it('is refused with other settings or other tasks, and goes on with more steps', async () => {
    const run = killed('killed-again');
    const refused = async (...args: string[]) => (await sharedTrainyard('train', '--resume', run, ...args)).stderr;
    expect(await refused('--seed', '2')).toContain('RESUME_IMPOSSIBLE: the run was begun with --seed 1, now it is 2');
    expect(await refused('--run', run)).toContain('USAGE: found both --resume and --run');
    const tasks = join(home.dir, 'train.jsonl');
    const kept = await readFile(tasks, 'utf8');
    await writeFile(tasks, kept.replace('Question 3?', 'Question three?'));
    expect(await refused()).toContain('have changed since the run began');
    await writeFile(tasks, kept);
    const more = await trainyard('train', '--resume', run, '--steps', '7', '--seed', '1', '--json');
    expect(more).toMatchObject({ code: 0, stderr: '' });
    expect(jsonLines(more.stdout).at(-1)).toMatchObject({ type: 'done', steps: 7, ending: 'steps' });
    expect(await readdir(join(run, 'checkpoints'))).toContain('step-000007');
  });
});

describe('an interrupted run', () => {
  /** Begins a run and sends it signals, the first as soon as its output contains the text. */
  async function interruptedAt(name: string, text: string, ...signals: readonly NodeJS.Signals[]) {
    const run = join(home.dir, name);
    const { child, ended, prints } = start(flags(run));
    await prints(text);
    for (const [i, signal] of signals.entries()) {
      if (i > 0) await prints('"INTERRUPTED"');
      child.kill(signal);
    }
    return { run, ...(await ended) };
  }

  it.each([
    ['SIGINT', 130],
    ['SIGTERM', 0],
  ] as const)(
    'by %s finishes its step, has a checkpoint of it, exits with %i and goes on to the same weights',
    async (signal, expected) => {
      const { run, code, stdout } = await interruptedAt(`finished-${signal}`, '"step":2,', signal);
      expect(code).toBe(expected);
      const events = jsonLines(stdout);
      const done = events.at(-1) as TrainDone;
      expect(done).toMatchObject({ type: 'done', ending: 'interrupted', after: null });
      expect(events.findLast((event) => event.type === 'step-end')?.step).toBe(done.steps);
      expect(await readdir(done.checkpoint ?? '')).toContain('optimizer.safetensors');
      expect((await trainyard('train', '--resume', run)).code).toBe(0);
      await expectWhole(run);
    },
  );

  it('in its first evaluation ends without a step, and twice leaves at once; both go on to the same weights', async () => {
    const early = await interruptedAt('interrupted-early', '"run-start"', 'SIGINT');
    expect(early.code).toBe(130);
    expect(jsonLines(early.stdout).at(-1)).toMatchObject({ type: 'done', ending: 'interrupted', steps: 0, checkpoint: null });
    const twice = await interruptedAt('interrupted-twice', '"step":1,', 'SIGINT', 'SIGTERM');
    expect([130, 143]).toContain(twice.code);
    for (const { run } of [early, twice]) {
      expect((await trainyard('train', '--resume', run)).code).toBe(0);
      await expectWhole(run);
    }
  });
});

describe('a run that is over', () => {
  it('can be resumed without doing anything again', async () => {
    const run = join(home.dir, 'over');
    await cp(whole, run, { recursive: true });
    const { code, stdout } = await trainyard('train', '--resume', run, '--json');
    expect(code).toBe(0);
    expect(jsonLines(stdout).some(({ type }) => type === 'step-end')).toBe(false);
    await expectWhole(run);
  });

  it('says where the best checkpoint is, and keeps it', async () => {
    const events = jsonLines(await readFile(join(whole, 'events.jsonl'), 'utf8'));
    const done = events.at(-1) as TrainDone;
    expect(done.best?.success).toBe(
      Math.max(...events.flatMap((event) => (event.type === 'eval-end' && event.when !== 'before' ? [event.score.success] : []))),
    );
    expect(await readdir(done.best?.checkpoint ?? '')).toContain('model.safetensors');
  });
});

describe('a budget', () => {
  it('ends the run after a whole step, with a checkpoint and an evaluation, and the next command goes on', async () => {
    const run = join(home.dir, 'budget');
    const { code, stdout } = await trainyard(...flags(run), '--max-tokens', '150');
    expect(code).toBe(0);
    const done = jsonLines(stdout).at(-1) as TrainDone;
    expect(done).toMatchObject({ ending: 'max-tokens', after: { n: 5 } });
    expect(done.steps).toBeLessThan(STEPS);
    expect((await trainyard('train', '--resume', run, '--max-time', '0.001s', '--json')).stdout).toContain('"ending":"max-time"');
    expect((await trainyard('train', '--resume', run)).code).toBe(0);
    await expectWhole(run);
  });
});

describe('a run whose files were changed', () => {
  /** A copy of the undisturbed run, from which its last step was taken back. */
  async function copy(name: string): Promise<string> {
    const run = join(home.dir, name);
    await cp(whole, run, { recursive: true });
    return run;
  }
  const more = (run: string) => sharedTrainyard('train', '--resume', run, '--steps', `${STEPS + 1}`, '--json');
  let expected: Buffer;
  beforeAll(async () => {
    const run = await copy('extended');
    expect((await more(run)).code).toBe(0);
    expected = await weightsOf(run, STEPS + 1);
  });

  it.each([
    ['without its optimizer', (folder: string) => rm(join(folder, 'optimizer.safetensors'))],
    ['with other weights', (folder: string) => flipBits(join(folder, 'model.safetensors'))],
    ['of another step', (folder: string) => edit(join(folder, 'checkpoint.json'), `"step": ${STEPS}`, '"step": 3')],
    ['of another run', (folder: string) => edit(join(folder, 'checkpoint.json'), '"run": "', '"run": "0')],
  ])('does not use a checkpoint %s, computes it again and replaces it', async (what, damage) => {
    const run = await copy(`damaged ${what}`);
    const folder = join(run, 'checkpoints', `step-00000${STEPS}`);
    await damage(folder);
    const { code, stdout } = await more(run);
    expect(code).toBe(0);
    expect(stdout).toContain('CHECKPOINT_UNREADABLE');
    expect(stdout).not.toContain('NOT_REPRODUCED');
    expect((await weightsOf(run, STEPS + 1)).equals(expected)).toBe(true);
  });

  it('is refused when its store is gone, and its checkpoints are left alone', async () => {
    const run = await copy('without store');
    await rm(join(run, 'store.sqlite'));
    await mkdir(join(run, 'checkpoints', 'my-copy'));
    const before = await readdir(join(run, 'checkpoints'));
    const { code, stderr } = await more(run);
    expect(code).toBe(2);
    expect(stderr).toContain('RESUME_IMPOSSIBLE: there is a checkpoint of step 6, but the store knows 0 steps');
    expect(await readdir(join(run, 'checkpoints'))).toEqual(before);
  });

  it('remembers the steps it was last given, and never takes back any', async () => {
    const run = await copy('longer');
    await mkdir(join(run, 'checkpoints', 'my-copy'));
    expect((await more(run)).code).toBe(0);
    expect(await readdir(join(run, 'checkpoints')), 'what else lies there').toContain('my-copy');
    expect(JSON.parse(await readFile(join(run, 'run.json'), 'utf8'))).toMatchObject({ settings: { steps: STEPS + 1 } });
    const { code, stderr } = await sharedTrainyard('train', '--resume', run, '--steps', '2');
    expect(code).toBe(2);
    expect(stderr).toContain(`the run has taken ${STEPS + 1} steps, now it is to end after 2`);
  });

  it('says when the entry is another than before', async () => {
    const run = await copy('other entry');
    const source = await readFile(home.entry, 'utf8');
    await writeFile(home.entry, `${source}\n// changed\n`);
    const { stdout } = await trainyard('train', '--resume', run, '--json');
    await writeFile(home.entry, source);
    expect(stdout).toContain('ENTRY_CHANGED');
  });
});

async function edit(path: string, from: string, to: string): Promise<void> {
  await writeFile(path, (await readFile(path, 'utf8')).replace(from, to));
}

async function flipBits(path: string): Promise<void> {
  const bytes = await readFile(path);
  for (let i = bytes.length - 400; i < bytes.length; i += 4) bytes[i] = (bytes[i] ?? 0) ^ 1;
  await writeFile(path, bytes);
}

describe('a full disk', () => {
  it('ends the run with its last checkpoint whole; with more room it goes on to the same weights', async () => {
    const run = join(home.dir, 'full');
    // The agent's own notes would reach the limit first.
    await rm(join(home.dir, 'seen.txt'));
    // A limit on file size is the full disk an ordinary user can make: here the store's log reaches it.
    const full = await start(flags(run), undefined, 'ulimit -f 3072').ended;
    expect(full.code).toBe(1);
    expect(full.stderr).toContain('STORE_FAILED');
    // As npm or npx would have it called, if vitest was started by them.
    expect(full.stderr).toMatch(/trainyard (?:-- )?train --resume /);
    expect(full.stderr).toContain(run);
    expect((await trainyard('train', '--resume', run)).code).toBe(0);
    await expectWhole(run);
  });
});
