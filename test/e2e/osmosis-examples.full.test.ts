/** The Osmosis examples as a newcomer runs them, briefly: the real command on the shipped policy. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Trajectory } from '../../src/core/types.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { ROOT, scratch, trainyard } from '../cli/command.ts';

let home: Awaited<ReturnType<typeof scratch>>;
const files = { triage: '', shop: '' };
beforeAll(async () => {
  home = await scratch();
  for (const domain of ['triage', 'shop'] as const) {
    const lines = (await readFile(join(ROOT, 'examples', domain, 'held-out.jsonl'), 'utf8')).split('\n');
    files[domain] = await home.write(`${domain}.jsonl`, lines.slice(0, 6).join('\n'));
  }
});
afterAll(() => home.remove());

async function trainBriefly(example: string, domain: 'triage' | 'shop') {
  const run = join(home.dir, example);
  const tasks = join(ROOT, 'examples', domain, 'train.jsonl');
  const small = ['--steps', '1', '--group', '4', '--groups-per-step', '2', '--eval-every', '0'];
  const where = ['--tasks', tasks, '--held-out', files[domain], '--run', run, '--json'];
  const { code, stdout, stderr } = await trainyard('train', join(ROOT, 'examples/osmosis', `${example}.ts`), ...small, ...where);
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  await using store = await openSqliteStore(join(run, 'store.sqlite'));
  return { done: JSON.parse(stdout.trim().split('\n').at(-1) ?? ''), trajectories: await store.query() };
}

const threadsOf = (trajectories: readonly Trajectory[]) =>
  new Set(trajectories.flatMap(({ turns }) => turns.map(({ thread }) => thread)));

describe.each([
  ['minimal', 'triage', ['default']],
  ['simple-strands', 'triage', ['simple-strands-agent']],
  ['simple-openai', 'triage', ['simple-openai-agent']],
  ['custom-config', 'triage', ['search-agent']],
  ['tools', 'shop', ['shop-agent']],
  ['two-agents', 'triage', ['first', 'second']],
] as const)('the example %s', (example, domain, samples) => {
  it('trains a step, is evaluated before and after, no rollout fails, and its samples have their names', async () => {
    const { done, trajectories } = await trainBriefly(example, domain);
    expect(done).toMatchObject({ type: 'done', steps: 1, before: { n: 6, failed: 0 }, after: { n: 6, failed: 0 } });
    expect(new Set(trajectories.map(({ outcome }) => outcome.kind))).toEqual(new Set(['completed']));
    expect(new Set(trajectories.map(({ grade }) => grade.kind))).toEqual(new Set(['graded']));
    expect(trajectories.some(({ turns }) => turns.length > samples.length)).toBe(example === 'tools');
    expect(threadsOf(trajectories)).toEqual(new Set(samples));
    const rewards = trajectories.flatMap(({ grade }) =>
      grade.kind === 'graded' ? Object.values(grade.reward.byThread ?? {}) : [],
    );
    expect(new Set(rewards)).toEqual(new Set([0, 1]));
  });
});
