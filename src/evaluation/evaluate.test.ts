import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { ended } from '../../test/fixtures/evaluation.ts';
import { memoryStore } from '../../test/fixtures/store/memory-store.ts';
import type { RunEvent } from '../core/events.ts';
import type { Task } from '../core/types.ts';
import type { Rollouts } from '../run/rollouts.ts';
import type { TrainSettings } from '../settings/check-settings.ts';
import { TRAIN_DEFAULTS } from '../settings/setting-rows.ts';
import { evaluateOnly, HeldOut } from './evaluate.ts';

const tasks: Task[] = Array.from({ length: 10 }, (_, i) => ({ id: `t${i + 1}`, prompt: [{ role: 'user', content: 'hi' }] }));

interface World extends Partial<Pick<TrainSettings, 'evalEvery' | 'evalTasks' | 'patience' | 'steps'>> {
  /** Share of right answers after each step: the tasks with low numbers are learnt first. */
  readonly skill: (step: number) => number;
}

function world({ skill, ...settings }: World) {
  const store = memoryStore();
  const events: RunEvent[] = [];
  const ran: string[] = [];
  const temperatures = new Set<number>();
  const halt = new AbortController();
  const rollouts: Rollouts = {
    sampledTokens: 0,
    settle: () => {},
    run: async (identity, task, { temperature }) => {
      temperatures.add(temperature);
      const kept = await store.read(identity.rolloutId);
      if (kept !== undefined) return kept;
      const [step, number] = identity.rolloutId.slice(1).split('-').map(Number) as [number, number];
      const trajectory = { ...ended(task.id, 1, number <= 10 * skill(step) ? 1 : 0), ...identity };
      ran.push(identity.rolloutId);
      await store.append(trajectory);
      return trajectory;
    },
  };
  const told = { tell: (event: RunEvent) => void events.push(event), onProgress: () => {}, halt: halt.signal };
  const defaults = { ...TRAIN_DEFAULTS, steps: 12, evalEvery: 2, evalTasks: 5 };
  const open = () => new HeldOut({ tasks, settings: { ...defaults, ...settings }, rollouts, ...told });
  return { open, store, events, ran, temperatures, halt };
}

describe('held-out evaluation on the way', () => {
  it('comes every few steps but the last, on tasks spread over the file, and says which step was best', async () => {
    const { open, events, ran, temperatures } = world({ skill: (step) => [0, 0, 0.4, 0, 0.8, 0, 0.6][step] ?? 0 });
    const heldOut = open();
    for (let step = 0; step <= 12; step++) await heldOut.onTheWay(step);
    expect(ran.slice(0, 5)).toEqual(['e000002-00001', 'e000002-00003', 'e000002-00005', 'e000002-00007', 'e000002-00009']);
    const scores = events.map((event) => event.type === 'eval-end' && `${event.when} ${event.step}: ${event.score.success}`);
    expect(scores).toEqual(['during 2: 0.4', 'during 4: 0.8', 'during 6: 0.6', 'during 8: 0', 'during 10: 0']);
    expect(heldOut.best).toEqual({ step: 4, success: 0.8 });
    expect([...temperatures], 'greedy, whatever the temperature of training').toEqual([0]);
  });

  it('prefers the later of two equally good steps, and compares the last step on the same tasks', async () => {
    const { open } = world({ skill: (step) => (step >= 4 ? 0.8 : 0.2) });
    const heldOut = open();
    for (const step of [2, 4, 6]) await heldOut.onTheWay(step);
    expect(heldOut.best).toEqual({ step: 6, success: 0.8 });
    expect(await heldOut.full('after', 12)).toMatchObject({ success: 0.8, n: 10 });
    expect(heldOut.best).toEqual({ step: 12, success: 0.8 });
  });

  it.each([
    ['the last step, though an earlier one was a little better', 0.9, { step: 12, success: 0.9 }],
    ['the earlier one, where that is more than chance', 0.2, { step: 4, success: 1 }],
  ])('recommends %s', async (_, atTheEnd, expected) => {
    const { open, store } = world({ evalTasks: 10, skill: (step) => ({ 4: 1, 12: atTheEnd })[step] ?? 0.5 });
    const heldOut = open();
    for (const step of [2, 4, 6]) await heldOut.onTheWay(step);
    expect(heldOut.recommended(7), 'a step that was not measured').toEqual({ step: 4, success: 1 });
    await heldOut.full('after', 12);
    expect(heldOut.best).toEqual({ step: 4, success: 1 });
    expect(heldOut.recommended(12)).toEqual(expected);
    const again = open();
    await again.recall(store, 12);
    expect(again.recommended(12)).toEqual(expected);
  });

  it('runs out of patience after so many evaluations without a better one', async () => {
    const skills: Record<number, number> = { 2: 0.2, 4: 0.6, 6: 0.4, 8: 0.6, 10: 0.8 };
    const { open } = world({ patience: 2, skill: (step) => skills[step] ?? 0 });
    const heldOut = open();
    const out: boolean[] = [];
    for (const step of [2, 4, 6, 8, 10]) {
      await heldOut.onTheWay(step);
      out.push(heldOut.outOfPatience);
    }
    expect(out).toEqual([false, false, false, true, false]);
  });

  it('is read back from the store, and only what is missing is run', async () => {
    const { open, ran, store, events } = world({ skill: (step) => step / 10 });
    const before = open();
    await before.full('before', 0);
    for (const step of [2, 4]) await before.onTheWay(step);
    const done = ran.length;
    const after = open();
    await after.recall(store, 4);
    expect(after.best).toEqual(before.best);
    await after.full('before', 0);
    await after.onTheWay(4);
    expect(ran.length).toBe(done);
    await after.onTheWay(6);
    expect(ran.slice(done)).toEqual(['e000006-00001', 'e000006-00003', 'e000006-00005', 'e000006-00007', 'e000006-00009']);
    expect(events.filter((event) => event.type === 'eval-end' && event.step === 4).length).toBe(1);
  });

  it('knows the evaluation after what was the last step, where a run is given more steps', async () => {
    const skill = (step: number): number => (step === 5 ? 0.8 : 0.2);
    const shorter = world({ skill, steps: 5, patience: 1 });
    await shorter.open().onTheWay(2);
    await shorter.open().full('after', 5);
    const longer = world({ skill, steps: 9, patience: 1 }).open();
    await longer.recall(shorter.store, 5);
    expect(longer.best).toEqual({ step: 5, success: 0.8 });
    await longer.onTheWay(6);
    expect(longer.best).toEqual({ step: 5, success: 0.8 });
    expect(longer.outOfPatience, 'evaluations on the way are what patience counts').toBe(true);
  });

  it('does not count an evaluation that was halted', async () => {
    const { open, halt, events } = world({ skill: () => 1 });
    const heldOut = open();
    halt.abort();
    await heldOut.onTheWay(2);
    expect(await heldOut.full('after', 12)).toBeNull();
    expect(heldOut.best).toBeUndefined();
    expect(events).toEqual([]);
  });

  it('is nothing without held-out tasks or with an interval of 0', async () => {
    const { open, ran } = world({ evalEvery: 0, skill: () => 1 });
    await open().onTheWay(2);
    expect(ran).toEqual([]);
  });

  it('refuses to go on from an evaluation before training that its failures ended', async () => {
    const { open, store } = world({ skill: () => 0 });
    const failing = { kind: 'failed', code: 'GRADER_THREW', message: 'no key' } as const;
    for (const [number, task] of tasks.entries()) {
      const rolloutId = `e000000-${String(number + 1).padStart(5, '0')}`;
      const kept = { ...ended(task.id, 1, 0), rolloutId, groupId: rolloutId };
      await store.append(number < 3 ? { ...kept, grade: failing } : kept);
    }
    const refused = expect.objectContaining({ code: 'RESUME_IMPOSSIBLE', message: expect.stringContaining('3 of 10 rollouts') });
    await expect(open().refuseFailedStart(store, 0.05)).rejects.toThrow(refused);
    await open().refuseFailedStart(store, 1);
  });
});

it('an evaluation tells at its first rollout that no prompt fits into the context, and by how much', async () => {
  const events: RunEvent[] = [];
  const entry = fileURLToPath(new URL('../../examples/shop/agent.ts', import.meta.url));
  const request = { entry, rows: '1-3', context: 16, threads: 1, graderWorkers: 1 };
  await evaluateOnly(request, (event) => void events.push(event));
  const told = events.filter((event) => event.type === 'warning' && event.code === 'CONTEXT_OVERFLOW');
  expect(told).toMatchObject([{ message: expect.stringMatching(/the prompt has \d+ tokens, the context is 16.*--context/) }]);
});
