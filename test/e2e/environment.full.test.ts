/** A training through an environment service: its tasks, its steps, its scores, over real HTTP. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { expect, it, onTestFinished } from 'vitest';
import { defineWorkflow } from '../../src/core/define.ts';
import { train } from '../../src/run/train.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { EnvironmentClient, environmentTasks } from '../../src/tuner/environment.ts';
import { scratch } from '../cli/command.ts';

interface Call {
  readonly instance_id: string;
  readonly task_id?: string;
  readonly messages: { readonly content?: string };
  readonly params: { readonly split?: string };
}

/** Scores by what was said last; where that has an odd number of characters, it has no score to give. */
async function service() {
  const open = new Map<string, string>();
  const created: string[] = [];
  const answers: Record<string, (call: Call) => unknown> = {
    get_env_profile: ({ params }) => Array.from({ length: params.split === 'dev' ? 3 : 6 }, (_, i) => `${params.split}-${i}`),
    create: ({ instance_id, task_id = '' }) => {
      created.push(instance_id);
      open.set(instance_id, '');
      return { state: [{ role: 'user', content: `Room ${task_id}: where to?` }] };
    },
    step: ({ instance_id, messages }) => {
      open.set(instance_id, messages.content ?? '');
      return { state: [], reward: null, is_terminated: true };
    },
    evaluate: ({ instance_id }) => {
      const said = open.get(instance_id) ?? '';
      return said.length % 2 === 1 ? null : said.length / 100;
    },
    release: ({ instance_id }) => open.delete(instance_id),
  };
  const server = createServer(async (request, response) => {
    const call = JSON.parse(await text(request)) as Call;
    const data = answers[request.url?.slice(1) ?? '']?.(call);
    response.setHeader('content-type', 'application/json').end(JSON.stringify({ success: true, data }));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, envType: 'maze', open, created };
}

it('trains on what the service scored, on nothing that it did not score, and leaves no environment behind', async () => {
  const { open, created, ...options } = await service();
  const home = await scratch();
  onTestFinished(() => home.remove());
  const workflow = defineWorkflow({
    name: 'maze',
    async run(ctx) {
      const { task_id: taskId } = ctx.metadata as { readonly task_id: string };
      await using environment = await new EnvironmentClient({ ...options, signal: ctx.signal }).create(taskId);
      const messages = environment.state as { readonly role: 'user'; readonly content: string }[];
      const { message } = await ctx.model().generate({ messages, maxTokens: 8 });
      await environment.step({ role: 'assistant', content: message.content ?? '' });
      return { reward: await environment.evaluate() };
    },
  });
  const run = join(home.dir, 'run');
  const { steps, before } = await train({
    entry: { workflow },
    tasks: environmentTasks(options),
    heldOut: environmentTasks({ ...options, split: 'dev' }),
    ...{ run, steps: 2, group: 6, groupsPerStep: 2, seed: 3 },
  });
  expect(steps).toBe(2);
  expect(before?.n).toBe(3);
  await using store = await openSqliteStore(join(run, 'store.sqlite'));
  const rollouts = await store.query({});
  expect(created.length).toBe(rollouts.length);
  expect([...open.keys()]).toEqual([]);
  const unscored = rollouts.filter(({ turns }) => (turns[0]?.response.content ?? '').length % 2 === 1);
  expect(unscored.length).toBeGreaterThan(0);
  for (const { outcome, grade } of unscored) {
    expect(outcome).toMatchObject({ kind: 'failed', message: expect.stringContaining('expected a finite number') });
    expect(grade.kind).toBe('ungraded');
  }
  const trained = new Set((await store.manifests()).flatMap(({ rolloutIds }) => rolloutIds));
  expect(unscored.filter(({ rolloutId }) => trained.has(rolloutId))).toEqual([]);
  for (const { rolloutId, grade, turns } of rollouts) {
    if (!trained.has(rolloutId)) continue;
    expect(grade).toMatchObject({ kind: 'graded', reward: { value: (turns[0]?.response.content ?? '').length / 100 } });
  }
}, 30_000);
