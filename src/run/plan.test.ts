/** What a run that is resumed must still be. */
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { folderOfEach } from '../../test/fixtures/folder.ts';
import { refusal, refuses } from '../../test/fixtures/refusal.ts';
import { defineGrader, defineWorkflow } from '../core/define.ts';
import { planResumedTraining, planTraining } from './plan.ts';

const at = folderOfEach();

const entry = { workflow: defineWorkflow(async () => undefined), grader: defineGrader(() => 1) };
const rows = (count: number) => Array.from({ length: count }, (_, i) => ({ prompt: `Question ${i}?`, answer: i }));
const keep = (record: object, run = at()) => writeFile(join(run, 'run.json'), JSON.stringify(record));

it('is refused where the state at the server that it began from is another one', async () => {
  const tasks = at('train.jsonl');
  const state = at('tinker.json');
  await writeFile(tasks, '{"id":"t1","prompt":"Question?"}\n');
  await writeFile(state, '{"path":"tinker://m1/weights/a"}');
  const begun = await planTraining({ entry, model: at(), tasks, run: at(), minTasks: 1 });
  await keep(begun.record);
  const again = { run: at(), entry, model: at(), tasks };
  expect((await planResumedTraining(again)).identity).toBe(begun.identity);
  await writeFile(state, '{"path":"tinker://m1/weights/b"}');
  await expect(planResumedTraining(again)).rejects.toMatchObject(refusal('RESUME_IMPOSSIBLE', /has changed since the run began/));
});

it('takes the usual values of settings that there were not when it began', async () => {
  const tasks = rows(4);
  const { record } = await planTraining({ entry, model: at(), tasks, run: at() });
  const { weighting: _w, maxErrorShare: _e, graderRetries: _r, graderMemoryMb: _m, ...newer } = record.settings;
  const { loss: _l, klEstimator: _k, entropy: _n, ...settings } = newer;
  // It ran ahead with ppo, when there was nothing else.
  await keep({ ...record, settings: { ...settings, staleness: 2 } });
  const resumed = await planResumedTraining({ run: at(), entry, tasks });
  expect(resumed.settings).toMatchObject({ weighting: 'tokens', maxErrorShare: 0.05, graderRetries: 1, graderMemoryMb: 2048 });
  expect(resumed.settings).toMatchObject({ loss: 'ppo', klEstimator: 'k3', entropy: 0 });
});

describe('tasks of a run', () => {
  const plan = (more: object) => planTraining({ entry, model: at(), run: at(), ...more });

  it('may be given as values, once as an iterable, and have to be the same when it is resumed', async () => {
    const begun = await plan({ tasks: rows(5).values(), heldOut: rows(2) });
    expect(begun.tasks).toHaveLength(5);
    expect(begun.record.settings).not.toHaveProperty('tasks');
    await keep(begun.record);
    const again = { run: at(), entry, model: at(), heldOut: rows(2) };
    expect((await planResumedTraining({ ...again, tasks: rows(5) })).identity).toBe(begun.identity);
    await expect(planResumedTraining(again)).rejects.toMatchObject({ message: expect.stringContaining('tasks given as values') });
    await expect(planResumedTraining({ ...again, tasks: rows(6) })).rejects.toMatchObject({
      message: expect.stringMatching(/^the tasks have changed/),
    });
  });

  it('are at least four, where not fewer are allowed', async () => {
    await refuses(plan({ tasks: rows(3) }), 'DATASET_INVALID', 'Dataset too small: 3 rows. A minimum of 4 rows is required.');
    expect((await plan({ tasks: rows(3), minTasks: 3, heldOut: rows(1) })).tasks).toHaveLength(3);
  });

  it('are split by a share, without overlap, and warned about where held-out ones were seen', async () => {
    const { tasks, heldOut, warnings } = await plan({ tasks: rows(100), split: 0.2 });
    expect(tasks.length + heldOut.length).toBe(100);
    expect(heldOut.length).toBeGreaterThan(5);
    expect(warnings).toEqual([]);
    const seen = await plan({ tasks: rows(100), heldOut: rows(7) });
    expect(seen.warnings).toEqual([{ code: 'HELD_OUT_SEEN', message: expect.stringMatching(/^7 of 7 held-out tasks/) }]);
  });

  it.each([
    [{ tasks: 5 }, 'tasks: expected a path, or a list or iterable of rows'],
    [{ split: 1 }, 'split: expected a share between 0 and 1'],
    [{ split: 0 }, 'split: '],
    [{ split: 0.1, heldOut: [] }, 'found both'],
    [{ minTasks: 0 }, 'minTasks: '],
  ])('are refused as %j', async (given, message) => {
    await expect(plan({ tasks: rows(5), ...given })).rejects.toMatchObject(refusal('USAGE', message));
  });
});

describe('the code of a run', () => {
  const from = (file: string) => JSON.stringify(new URL(`../core/${file}`, import.meta.url).href);
  const tasks = rows(4);

  async function begun() {
    const file = at('agent.ts');
    await writeFile(at('right.ts'), 'export const right = 1;');
    await writeFile(
      file,
      `import { defineGrader, defineWorkflow } from ${from('define.ts')};
      import { right } from './right.ts';
      export default defineWorkflow(async () => undefined);
      export const grader = defineGrader(() => right);`,
    );
    const run = at('run');
    await mkdir(run);
    const { record, identity, warnings } = await planTraining({ entry: file, model: at(), run, tasks });
    expect(warnings).toEqual([]);
    await keep(record, run);
    return { record, identity, keepAgain: (kept: object) => keep(kept, run), again: () => planResumedTraining({ run, tasks }) };
  }

  it('may change, a file that the entry imports too: it is named once, and the run stays the run it was', async () => {
    const { identity, keepAgain, again } = await begun();
    expect((await again()).warnings).toEqual([]);
    await writeFile(at('right.ts'), 'export const right = 0;');
    const changed = await again();
    const message = expect.stringMatching(/^since the run began: \S*right\.ts has changed; /);
    expect(changed.warnings).toEqual([{ code: 'ENTRY_CHANGED', message }]);
    expect(changed.identity).toBe(identity);
    await keepAgain(changed.record);
    expect((await again()).warnings).toEqual([]);
  });

  it('is in run.json: a run of a version that kept none of it is refused by name', async () => {
    const { record, keepAgain, again } = await begun();
    expect(Object.keys(record.sources)).toEqual(['agent.ts', 'right.ts']);
    const { sources: _, ...old } = record;
    await keepAgain({ ...old, entry: 'a digest' });
    await expect(again()).rejects.toMatchObject({
      code: 'RESUME_IMPOSSIBLE',
      message: expect.stringMatching(/run.json is not of this version of Trainyard$/),
      hint: 'finish it with the version that began it',
    });
  });
});
