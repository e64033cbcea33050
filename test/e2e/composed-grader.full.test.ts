/** The example with a composed grader as a newcomer runs it, briefly: every part real, on the shipped policy. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Reward } from '../../src/core/types.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { ROOT, scratch, trainyard } from '../cli/command.ts';

let home: Awaited<ReturnType<typeof scratch>>;
beforeAll(async () => {
  home = await scratch();
});
afterAll(() => home.remove());

describe('examples/shop/composed.ts', () => {
  it('trains on a sum whose parts are all kept by name', async () => {
    const folder = join(ROOT, 'examples/shop');
    const lines = (await readFile(join(folder, 'held-out.jsonl'), 'utf8')).split('\n').slice(0, 8);
    const heldOut = await home.write('held-out.jsonl', lines.join('\n'));
    const run = join(home.dir, 'run');
    const small = ['--steps', '1', '--groups-per-step', '4', '--held-out', heldOut, '--run', run, '--json'];
    const { code, stderr } = await trainyard('train', join(folder, 'composed.ts'), ...small);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    await using store = await openSqliteStore(join(run, 'store.sqlite'));
    const rewards = (await store.query()).map(({ grade }): Reward => {
      if (grade.kind !== 'graded') throw new Error(`expected a reward, found ${JSON.stringify(grade)}`);
      return grade.reward;
    });
    expect(rewards.length).toBeGreaterThan(8);
    for (const { value, success, parts = {}, metrics = {} } of rewards) {
      const { correct = Number.NaN, lookedUp = Number.NaN, length = Number.NaN } = parts;
      expect(value).toBeCloseTo(0.8 * correct + 0.2 * lookedUp + 0.1 * length, 12);
      expect(success).toBe(correct === 1);
      expect(length).toBeCloseTo(-Math.min(1, Math.max(0, metrics['length.tokens']! - 80) / 400), 12);
    }
    expect(new Set(rewards.map(({ parts }) => parts?.['lookedUp']))).toEqual(new Set([0, 1]));
  });
});
