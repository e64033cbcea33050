/** The shop agent in each framework as a newcomer runs it, briefly: every part real, on the shipped policy. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { SYSTEM_PROMPT } from '../../models/shop-domain.ts';
import type { RunEvent } from '../../src/core/events.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { ROOT, scratch, trainyard } from '../cli/command.ts';

let home: Awaited<ReturnType<typeof scratch>>;
beforeAll(async () => {
  home = await scratch();
});
afterAll(() => home.remove());

it.each(['ai-sdk', 'openai-agents', 'strands', 'langchain'])(
  'the shop agent with %s is trained, and no rollout fails',
  async (name) => {
    const tasks = join(ROOT, 'examples/shop/train.jsonl');
    const lines = (await readFile(join(ROOT, 'examples/shop/held-out.jsonl'), 'utf8')).split('\n').slice(0, 8);
    const heldOut = await home.write(`${name}.jsonl`, lines.join('\n'));
    const run = join(home.dir, name);
    const small = ['--steps', '1', '--groups-per-step', '2', '--group', '4', '--run', run, '--json'];
    const entry = join(ROOT, 'examples/frameworks', `${name}.ts`);
    const { code, stdout, stderr } = await trainyard('train', entry, '--tasks', tasks, '--held-out', heldOut, ...small);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    const done = JSON.parse(stdout.trim().split('\n').at(-1) ?? '') as RunEvent;
    expect(done).toMatchObject({ type: 'done', steps: 1, before: { n: 8, failed: 0 }, after: { n: 8, failed: 0 } });
    await using store = await openSqliteStore(join(run, 'store.sqlite'));
    const trajectories = await store.query();
    expect(new Set(trajectories.map(({ outcome }) => outcome.kind))).toEqual(new Set(['completed']));
    for (const { turns } of trajectories) {
      expect(turns[0]?.request.messages[0]?.content).toBe(SYSTEM_PROMPT);
      expect(turns.map(({ fork }) => fork)).toEqual(turns.map(() => undefined));
    }
    expect(trajectories.some(({ turns }) => turns.length > 1)).toBe(true);
  },
);
