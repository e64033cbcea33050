import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { ask } from '../../../test/fixtures/areal/ask.ts';
import { localServer } from '../../../test/fixtures/local-server.ts';
import { scriptedRollouts } from '../../../test/fixtures/scripted-rollouts.ts';
import { agentWorkflow } from './agent-workflow.ts';
import type { HttpClient } from './episode.ts';
import { workflowContext } from './episode.ts';

describe('the workflow context', () => {
  it('is each rollout’s own, however many run at once', async () => {
    const seen: object[] = [];
    const agent = agentWorkflow(async (data, extras) => {
      await ask(extras, data);
      await sleep(Number(data.metadata));
      seen.push({
        id: data.id,
        taskId: workflowContext.taskId,
        isEval: workflowContext.isEval,
        scope: workflowContext.statScope(),
      });
      workflowContext.stats.scalar('waited', Number(data.metadata));
      return 1;
    });
    await using rollouts = await scriptedRollouts(agent);
    const ended = await Promise.all(
      Array.from({ length: 40 }, (_, i) => rollouts.run({ id: `t${i}`, metadata: (i * 7) % 20 }, i % 2 === 0 ? 'train' : 'eval')),
    );
    expect(seen.length).toBe(40);
    for (const one of seen as { id: string; taskId: string; isEval: boolean; scope: string }[]) {
      const isEval = Number(one.id.slice(1)) % 2 === 1;
      expect(one).toEqual({ id: one.id, taskId: one.id, isEval, scope: isEval ? 'eval-rollout' : 'rollout' });
    }
    expect(ended.map(({ metrics }) => metrics)).toEqual(ended.map((_, i) => ({ waited: (i * 7) % 20 })));
  });

  it('outside of a rollout is neither evaluation nor task, and takes no numbers', () => {
    expect([workflowContext.isEval, workflowContext.taskId, workflowContext.statScope()]).toEqual([false, undefined, 'rollout']);
    expect(() => workflowContext.stats.scalar('x', 1)).toThrowError(expect.objectContaining({ code: 'NO_ROLLOUT' }));
  });

  it('keeps the mean of several numbers under one name, and refuses what is none', async () => {
    const agent = agentWorkflow(async (data, extras) => {
      await ask(extras, data);
      for (const value of [1, 2, 6]) workflowContext.stats.scalar('steps', value);
      expect(() => workflowContext.stats.scalar('steps', Number.NaN)).toThrowError(/"steps" is NaN/);
      return 1;
    });
    await using rollouts = await scriptedRollouts(agent);
    expect((await rollouts.run()).metrics).toEqual({ steps: 3 });
  });
});

describe('the shared HTTP client', () => {
  const collecting = (clients: Set<HttpClient>) =>
    agentWorkflow(async (data, extras) => {
      clients.add(extras.httpClient);
      clients.add(workflowContext.getHttpClient());
      await ask(extras, data);
      return 1;
    });

  it('is the same in every rollout, and is closed with the workflow', async () => {
    const clients = new Set<HttpClient>();
    const agent = collecting(clients);
    {
      await using rollouts = await scriptedRollouts(agent);
      const ended = await Promise.all([rollouts.run(), rollouts.run(), rollouts.run()]);
      expect(ended.map(({ turns }) => turns.length)).toEqual([1, 1, 1]);
      expect([...clients].map(({ closed }) => closed)).toEqual([false]);
    }
    const [client] = clients;
    expect(client?.closed).toBe(true);
    await expect(client?.('http://127.0.0.1:9')).rejects.toThrow(/was closed with its workflow/);
  });

  it('aborts what is under way when it is closed', async () => {
    await using server = await localServer(() => {});
    let pending: Promise<unknown> | undefined;
    const agent = agentWorkflow(async (data, extras) => {
      pending = extras.httpClient(server.origin).catch((thrown: unknown) => thrown);
      await ask(extras, data);
      return 1;
    });
    {
      await using rollouts = await scriptedRollouts(agent);
      await rollouts.run();
    }
    expect(await pending).toMatchObject({ code: 'USAGE' });
  });

  it('is a new one in the next run, and lives as long as one of several workflows does', async () => {
    const clients = new Set<HttpClient>();
    const [one, two] = [await scriptedRollouts(collecting(clients)), await scriptedRollouts(collecting(clients))];
    await Promise.all([one.run(), two.run()]);
    expect(clients.size).toBe(1);
    await one[Symbol.asyncDispose]();
    expect([...clients][0]?.closed).toBe(false);
    await two[Symbol.asyncDispose]();
    await using three = await scriptedRollouts(collecting(clients));
    await three.run();
    expect([...clients].map(({ closed }) => closed)).toEqual([true, false]);
  });
});
