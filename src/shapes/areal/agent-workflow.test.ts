import { setTimeout } from 'node:timers/promises';
import OpenAI from 'openai';
import { describe, expect, it } from 'vitest';
import { scriptedRollouts } from '../../../test/fixtures/scripted-rollouts.ts';
import { defineGrader } from '../../core/define.ts';
import type { Trajectory } from '../../core/types.ts';
import { listen } from '../../gateway/gateway.ts';
import { type AgentExtras, type AgentOptions, agentWorkflow } from './agent-workflow.ts';
import type { EpisodeData } from './episode.ts';

type Messages = OpenAI.ChatCompletionMessageParam[];

/** One call of the model, as the document's agents make it. */
function chat({ baseURL, apiKey, httpClient, model }: AgentExtras, messages: Messages): Promise<OpenAI.ChatCompletion> {
  const client = new OpenAI({ baseURL, apiKey, fetch: httpClient, maxRetries: 0 });
  return client.chat.completions.create({ model, messages });
}

/** Calls that each go on from the one before; gives their ids. */
async function converse(extras: AgentExtras, data: EpisodeData, calls: number): Promise<string[]> {
  const messages: Messages = [...data.messages];
  const ids: string[] = [];
  for (let call = 0; call < calls; call++) {
    const { id, choices } = await chat(extras, messages);
    ids.push(id);
    messages.push(choices[0]!.message, { role: 'user', content: `go on, ${call}` });
  }
  return ids;
}

async function rollout(
  run: (data: EpisodeData, extras: AgentExtras) => Promise<unknown>,
  options?: AgentOptions,
): Promise<Trajectory> {
  const agent = { run: async (data: EpisodeData, extras: AgentExtras) => (await run(data, extras)) as number };
  await using rollouts = await scriptedRollouts(agentWorkflow(agent, options));
  return await rollouts.run();
}

describe('an agent', () => {
  it('finds its policy in the environment, among other rollouts at the same time: new OpenAI()', async () => {
    const before = { ...process.env };
    const agent = agentWorkflow(async (data) => {
      await setTimeout(Math.random() * 20);
      const client = new OpenAI();
      await setTimeout(Math.random() * 20);
      await client.chat.completions.create({ model: 'policy', messages: [{ role: 'user', content: data.id }] });
      expect(Object.keys(process.env)).toContain('OPENAI_BASE_URL');
      process.env['OF_AN_EPISODE'] = data.id;
      return 1;
    });
    {
      await using rollouts = await scriptedRollouts(agent);
      await using _listener = await listen(rollouts.gateway);
      const ids = Array.from({ length: 8 }, (_, i) => `task ${i}`);
      const ended = await Promise.all(ids.map((id) => rollouts.run({ id })));
      expect(ended.map(({ turns }) => turns.map(({ request }) => request.messages.at(-1)?.content))).toEqual(
        ids.map((id) => [id]),
      );
    }
    expect(process.env['OF_AN_EPISODE']).toMatch(/^task/);
    delete process.env['OF_AN_EPISODE'];
    expect({ ...process.env }).toEqual(before);
  });

  it('may be a function, an object, an instance or a class, without a base', async () => {
    class Own {
      async run(data: EpisodeData, extras: AgentExtras): Promise<number> {
        await chat(extras, data.messages);
        return 1;
      }
    }
    async function named(data: EpisodeData, extras: AgentExtras): Promise<number> {
      return await new Own().run(data, extras);
    }
    for (const [agent, name] of [
      [Own, 'Own'],
      [new Own(), 'Own'],
      [{ run: named }, 'agent'],
      [named, 'named'],
    ] as const) {
      await using rollouts = await scriptedRollouts(agentWorkflow(agent));
      const { outcome, grade, turns } = await rollouts.run();
      expect({ outcome, grade, name: rollouts.workflow.name, dialect: turns[0]?.request.dialect }).toEqual({
        outcome: { kind: 'completed' },
        grade: { kind: 'graded', reward: { value: 1, source: 'workflow' } },
        name,
        dialect: 'chat',
      });
    }
  });

  class Blocking {
    run() {}
  }
  class Needy {
    // biome-ignore lint/complexity/noUselessConstructor: that it takes an argument is the point
    constructor(_needed: number) {}
    async run() {}
  }
  it.each<[string, unknown, RegExp]>([
    ['a sync run', Blocking, /run of the class Blocking is a Function/],
    ['a sync run of an instance', new Blocking(), /run of the class Blocking is a Function/],
    ['no run', class Idle {}, /the class Idle has no run/],
    ['a run that is no function', { run: 3 }, /run of the agent is a Number/],
    ['a sync function', function plain() {}, /the function plain is not async/],
    ['nothing', undefined, /the agent has no run/],
    ['constructor arguments', Needy, /constructor of Needy takes/],
  ])('with %s is refused by name, before anything runs', (_, agent, message) => {
    expect(() => agentWorkflow(agent as never)).toThrowError(message);
  });

  it.each<[AgentOptions, RegExp]>([
    [{ turnDiscount: 1.5 }, /turnDiscount is 1.5, expected a number from 0 to 1/],
    [{ turnDiscount: Number.NaN }, /turnDiscount is NaN/],
    [{ export: 'tree' as never }, /export is 'tree', expected "individual" or "concat"/],
  ])('is refused with options %j', (options, message) => {
    expect(() => agentWorkflow(async () => 1, options)).toThrowError(message);
  });
});

describe('what an agent returns', () => {
  const returning = (value: unknown) =>
    rollout(async (data, extras) => {
      await chat(extras, data.messages);
      return value;
    });

  it('may be null, which rejects the rollout, and must be a reward where there is no grader', async () => {
    expect((await returning(null)).outcome).toEqual({ kind: 'rejected', reason: 'returned_none' });
    await expect(returning(undefined)).rejects.toMatchObject({ code: 'REWARD_MISSING' });
  });

  it('left out, is the grader’s reward, discounted like any other; where there is one, the grader is not asked', async () => {
    let asked = 0;
    const grader = defineGrader(() => ++asked * 4);
    const agent = (returned: number | undefined) =>
      agentWorkflow(
        async (data, extras) => {
          await converse(extras, data, 2);
          return returned;
        },
        { turnDiscount: 0.5 },
      );
    await using graded = await scriptedRollouts(agent(undefined), 0, grader);
    expect((await graded.run()).grade).toMatchObject({ reward: { value: 4, byTurn: { 0: 2, 1: 4 } } });
    await using own = await scriptedRollouts(agent(1), 0, grader);
    expect((await own.run()).grade).toMatchObject({ reward: { value: 1, source: 'workflow' } });
    expect(asked).toBe(1);
  });

  it.each([
    [Number.NaN, /run returned NaN/],
    [Number.POSITIVE_INFINITY, /run returned Infinity/],
    ['1', /run returned '1'/],
    [true, /run returned true/],
    [[1], /run returned \[ 1 \]/],
    [new Date(0), /run returned 1970/],
    [{}, /an empty map/],
    [{ nobody: 1 }, /"nobody", which the rollout does not have/],
    [{ a: '1' }, /'1' for completion a/],
  ])('is a failure with a reason when it is %s', async (value, message) => {
    const { outcome } = await returning(value);
    expect(outcome).toEqual({ kind: 'failed', code: 'WORKFLOW_BAD_RESULT', message: expect.stringMatching(message) });
  });

  it('may be a map of completions to rewards, discounted along the conversation', async () => {
    const third = async (data: EpisodeData, extras: AgentExtras) => new Map([[(await converse(extras, data, 3))[2]!, 10]]);
    const { grade } = await rollout(third, { turnDiscount: 0.9 });
    const byTurn = { 0: expect.closeTo(8.1), 1: expect.closeTo(9), 2: 10 };
    expect(grade).toMatchObject({ reward: { value: 10, byTurn, credit: { turnDiscount: 0.9, per: 'turn' } } });
  });
});
