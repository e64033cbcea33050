/** Cases of the trainer's suite about `save`, `load` and `forget`. */
import assert from 'node:assert/strict';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { TrainyardError } from '../core/errors.ts';
import type { PolicyUnderTest } from './policy-under-test.ts';
import { crossEntropy } from './tiny-losses.ts';
import { batchFor, TrainerProbe } from './trainer-probe.ts';

type Cases = Readonly<Record<string, (probe: TrainerProbe, open: () => Promise<PolicyUnderTest>) => Promise<void>>>;

export const savingCases: Cases = {
  'loads in a fresh trainer what another saved, and both take the same next step': async (probe, open) => {
    const { engine } = probe;
    const [first, second] = [batchFor(engine, 300, 3), batchFor(engine, 310, 3)];
    const start = await probe.look();
    for (let step = 0; step < 3; step++) await probe.step(first);
    const dir = await probe.saved();
    assert.notEqual((await readdir(dir)).length, 0, 'nothing was written into the folder');
    const now = await probe.look();
    await probe.step(second);
    const next = await probe.look();

    await using policy = await open();
    await using fresh = new TrainerProbe(policy, probe.tolerance);
    await fresh.trainer.load(dir);
    fresh.unchanged(await fresh.look(), now, 'what a fresh trainer loaded');
    await fresh.step(second);
    // Three steps in one direction are still felt in the fourth, unless the optimizer's state was lost.
    fresh.same(await fresh.look(), next, now, 'the next step');
    probe.different(next, now, start, 'the next step against none');
  },
  'goes back by loading, optimizer and all, as often as it is asked': async (probe) => {
    const { engine, trainer } = probe;
    const [first, second, detour] = [batchFor(engine, 320, 3), batchFor(engine, 330, 3), batchFor(engine, 340, 3)];
    for (let step = 0; step < 2; step++) await probe.step(first);
    const dir = await probe.saved();
    const saved = await probe.look();
    await probe.step(second);
    const next = await probe.look();
    for (const steps of [1, 3]) {
      for (let step = 0; step < steps; step++) await probe.step(detour);
      await trainer.load(dir);
      probe.unchanged(await probe.look(), saved, `back after ${steps} steps`);
      await probe.step(second);
      probe.same(await probe.look(), next, saved, `the next step after ${steps} others`);
    }
  },
  'forgets by loading the gradient that no step was taken with': async (probe) => {
    const { engine, trainer } = probe;
    const [lost, kept] = [batchFor(engine, 350, 3), batchFor(engine, 360, 3)];
    const dir = await probe.saved();
    const { start, after, alone } = await probe.outcomes({
      after: async () => {
        await trainer.forwardBackward(lost, crossEntropy());
        await trainer.load(dir);
        await probe.step(kept);
      },
      alone: () => probe.step(kept),
    });
    probe.same(after, alone, start, 'a step after loading');
  },
  'saves what it is when it is called, whatever is called next': async (probe) => {
    const { trainer, engine } = probe;
    const before = await probe.look();
    const dir = await probe.folder();
    const saving = trainer.save(dir);
    const stepping = probe.step(batchFor(engine, 370, 3));
    const loading = Promise.all([saving, stepping]).then(() => trainer.load(dir));
    await loading;
    probe.unchanged(await probe.look(), before, 'what was saved before the step');
  },
  'refuses to load what was never saved, and stays as it is': async (probe) => {
    const before = await probe.look();
    const empty = await probe.folder();
    for (const dir of [empty, join(empty, 'missing')]) {
      await assert.rejects(probe.trainer.load(dir), (thrown: unknown) => {
        assert.ok(thrown instanceof TrainyardError, `expected a TrainyardError, found ${String(thrown)}`);
        return true;
      });
    }
    probe.unchanged(await probe.look(), before, 'after refusals');
    await probe.step(batchFor(probe.engine, 380, 2));
  },
  'forgets a folder without complaint, and nothing else with it': async (probe) => {
    const { trainer } = probe;
    const [forgotten, kept] = [await probe.saved(), await probe.saved()];
    const saved = await probe.look();
    await probe.step(batchFor(probe.engine, 390, 3));
    const empty = await probe.folder();
    for (const dir of [forgotten, forgotten, empty, join(empty, 'missing')]) await trainer.forget(dir);
    await trainer.load(kept);
    probe.unchanged(await probe.look(), saved, 'what was saved elsewhere');
  },
};
