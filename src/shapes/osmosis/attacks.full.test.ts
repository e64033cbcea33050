/** Many at once, in every order, with a policy and controllers that mean no good. */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { type Controller, send, startController } from '../../../test/fixtures/rollout-server/controller.ts';
import type { GraderInput, WorkflowContext } from '../../core/contracts.ts';
import { defineGrader, defineWorkflow } from '../../core/define.ts';
import { LocalBackend } from './local-backend.ts';
import { createRolloutServer } from './rollout-server.ts';

const ask = async (ctx: WorkflowContext): Promise<undefined> => void (await ctx.model().generate({ messages: ctx.prompt }));

let controller: Controller;
const nodeWarnings: string[] = [];
const onWarning = ({ message }: Error): void => void nodeWarnings.push(message);
beforeEach(async () => {
  controller = await startController();
  process.on('warning', onWarning);
});
afterEach(async () => {
  process.off('warning', onWarning);
  await controller[Symbol.asyncDispose]();
});

async function served(grade: (input: GraderInput) => Promise<number>, run = ask) {
  const backend = new LocalBackend({ workflow: defineWorkflow(run), workflowConfig: {}, grader: defineGrader(grade) });
  const server = createRolloutServer({ backend, drainMs: 50, patience: { firstMs: 1, longestMs: 2 }, warn: () => undefined });
  const { origin } = await server.listen();
  return { origin, [Symbol.asyncDispose]: () => server[Symbol.asyncDispose]() };
}

describe('a rollout server under load', () => {
  it('tells each of 200 rollouts once, and leaves no listeners behind', async () => {
    await using server = await served(async () => 1);
    const ids = Array.from({ length: 200 }, (_, i) => `r${i}`);
    const taken = await Promise.all(ids.map((id) => send(server.origin, '/rollout', controller.begin(id).body)));
    expect(new Set(taken.map(({ status }) => status))).toEqual(new Set([202]));
    for (const heard of await Promise.all(ids.map((id) => controller.heard(id, 2)))) {
      expect(heard.map(({ kind, body }) => [kind, body.status])).toEqual([
        ['completion', 'success'],
        ['grader', 'success'],
      ]);
    }
    expect(nodeWarnings).toEqual([]);
  }, 60_000);

  it('takes one of a hundred requests with the same id', async () => {
    const { promise: all, resolve: go } = Promise.withResolvers<void>();
    const patient = async (ctx: WorkflowContext): Promise<undefined> => await all.then(() => ask(ctx));
    await using server = await served(async () => 1, patient);
    const { body } = controller.begin('same');
    const taken = await Promise.all(Array.from({ length: 100 }, () => send(server.origin, '/rollout', body)));
    expect(taken.map(({ status }) => status).toSorted()).toEqual([202, ...Array.from({ length: 99 }, () => 409)]);
    go();
    await controller.heard('same', 2);
    expect(controller.callbacks).toHaveLength(2);
  });

  it('tells a rollout that is cancelled at any moment once, and never a reward with its cancellation', async () => {
    await using server = await served(async () => {
      await sleep(5);
      return 1;
    });
    const ids = Array.from({ length: 60 }, (_, i) => `c${i}`);
    await Promise.all(
      ids.map(async (id, i) => {
        await send(server.origin, '/rollout', controller.begin(id).body);
        await sleep(i / 3);
        await send(server.origin, '/rollout/cancel', { ids: [id] });
      }),
    );
    for (const id of ids) {
      const [completion, grade, ...more] = await controller.heard(id, 2);
      expect([completion?.kind, grade?.kind, more]).toEqual(['completion', 'grader', []]);
      if (completion?.body.status === 'failure') expect(grade?.body.status).toBe('failure');
      const { body } = await send(server.origin, `/rollout/${id}/status`);
      const rewards = Object.values(grade?.body.samples ?? {}).map(({ reward }) => reward);
      if (grade?.body.status === 'failure') expect(rewards.every((reward) => reward === null)).toBe(true);
      expect([id, (body as { status: string }).status]).toEqual([id, grade?.body.status === 'success' ? 'success' : 'cancelled']);
    }
  }, 30_000);
});
