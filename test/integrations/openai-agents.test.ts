/** Agents written with `@openai/agents`, on the policy in this process. */
import {
  Agent,
  type AgentInputItem,
  handoff,
  MemorySession,
  type Model,
  type ModelProvider,
  OpenAIProvider,
  Runner,
  type Session,
  tool,
} from '@openai/agents';
import OpenAI from 'openai';
import { describe, expect, it } from 'vitest';
import { z } from 'zod';
import type { ModelHandle } from '../../src/core/contracts.ts';
import { policy, policyProvider, RecordingSession } from '../../src/openai-agents.ts';
import { thinkingRenderer, thoughtfulReplies } from '../fixtures/gateway/client-thoughts.ts';
import { expectLinear, specFor } from '../fixtures/gateway/served.ts';
import { QUESTIONS, type Shop } from '../fixtures/gateway/shop-agent.ts';
import { bothWays, inRollout, type Played, rollout } from '../fixtures/integrations/both-ways.ts';

process.env['OPENAI_AGENTS_DISABLE_TRACING'] = '1';

// The SDK's own types take ours.
policy() satisfies Model;
policyProvider() satisfies ModelProvider;
new RecordingSession<AgentInputItem>('main') satisfies Session;

const toolsOf = (shop: Shop) => [
  tool({
    name: 'lookup',
    description: shop.lookupText,
    parameters: z.object({ item: z.string() }),
    execute: ({ item }) => shop.lookup(item),
  }),
  tool({
    name: 'calculator',
    description: shop.calculatorText,
    parameters: z.object({ expression: z.string() }),
    execute: ({ expression }) => shop.calculator(expression),
  }),
];

type ProviderOf = (model: ModelHandle) => ModelProvider;

const overHttp =
  (useResponses: boolean): ProviderOf =>
  ({ baseURL, apiKey }) =>
    new OpenAIProvider({ openAIClient: new OpenAI({ baseURL, apiKey }), useResponses });
const inProcess: ProviderOf = () => policyProvider();

function shopAgent(providerOf: ProviderOf, stream: boolean, questions = QUESTIONS): Played {
  return async (model, shop) => {
    const runner = new Runner({ modelProvider: providerOf(model), tracingDisabled: true });
    const agent = new Agent({ name: 'assistant', model: 'policy', instructions: shop.system, tools: toolsOf(shop) });
    const session = new MemorySession();
    const answers: unknown[] = [];
    for (const question of questions) {
      if (stream) {
        const result = await runner.run(agent, question, { session, stream: true });
        await result.completed;
        answers.push(result.finalOutput);
      } else answers.push((await runner.run(agent, question, { session })).finalOutput);
    }
    return answers;
  };
}

/** One agent hands over to another, which answers in a given form. */
function triage(providerOf: ProviderOf): Played {
  return async (model) => {
    const runner = new Runner({ modelProvider: providerOf(model), tracingDisabled: true });
    const modelSettings = { temperature: 0.5, topP: 0.9, maxTokens: 100 };
    const seller = new Agent({
      name: 'Seller',
      model: 'policy',
      instructions: 'Sell.',
      modelSettings,
      outputType: z.object({ price: z.number() }),
    });
    const desk = Agent.create({ name: 'Desk', model: 'policy', instructions: 'Hand over.', handoffs: [handoff(seller)] });
    const { finalOutput, lastAgent } = await runner.run(desk, 'How much is it?');
    return { finalOutput, by: lastAgent?.name };
  };
}

describe('an agent of the OpenAI Agents SDK', () => {
  for (const stream of [false, true]) {
    for (const useResponses of [false, true]) {
      const how = `${useResponses ? 'Responses' : 'Chat Completions'}${stream ? ', streamed' : ''}`;
      it(`leaves the same trajectory in process as over ${how}`, async () => {
        const ways = { inProcess: shopAgent(inProcess, stream), overHttp: shopAgent(overHttp(useResponses), stream) };
        expectLinear(await bothWays(ways));
      });
    }
  }

  it('leaves the same trajectory in process as over Responses where the policy thinks first', async () => {
    const ask = (providerOf: ProviderOf): Played => shopAgent(providerOf, false, QUESTIONS.slice(0, 1));
    const ways = { inProcess: ask(inProcess), overHttp: ask(overHttp(true)) };
    const turns = await bothWays(ways, thoughtfulReplies, thinkingRenderer);
    expect(turns[0]?.response.reasoning).toBe('I look up both.');
    expectLinear(turns);
  });

  it('marks an answer that is not of the form that was asked for, as over HTTP', async () => {
    const asking =
      (providerOf: ProviderOf): Played =>
      async (model) => {
        const runner = new Runner({ modelProvider: providerOf(model), tracingDisabled: true });
        const outputType = z.object({ price: z.number() });
        const agent = new Agent({ name: 'Seller', model: 'policy', instructions: 'Sell.', outputType });
        return await runner.run(agent, 'How much?').catch((thrown: Error) => thrown.name);
      };
    const ways = { inProcess: asking(inProcess), overHttp: asking(overHttp(false)) };
    const [turn] = await bothWays(ways, ['{"price": "much"}<|im_end|>']);
    expect(turn?.formatError).toContain('price');
  });

  it('hands over and answers in a form as over HTTP', async () => {
    const call = '<tool_call>{"name":"transfer_to_Seller","arguments":{}}</tool_call><|im_end|>';
    const turns = await bothWays({ inProcess: triage(inProcess), overHttp: triage(overHttp(false)) }, [
      call,
      '{"price": 81}<|im_end|>',
    ]);
    expect(turns[1]?.request.messages.map(({ role }) => role)).toEqual(['system', 'user', 'assistant', 'tool']);
  });
});

describe('sessions of the OpenAI Agents SDK', () => {
  const agent = new Agent({ name: 'assistant', model: policy(), instructions: 'Answer.' });
  const runner = new Runner({ tracingDisabled: true });

  it('are threads: two conversations at once stay two, each going on from itself', async () => {
    const { session } = rollout(Array(4).fill('Yes.<|im_end|>'));
    await inRollout(session, async () => {
      const sides = ['buyer', 'seller'].map((name) => new RecordingSession<AgentInputItem>(name));
      for (const round of [1, 2])
        await Promise.all(sides.map((side) => runner.run(agent, `${side.name} ${round}`, { session: side })));
      expect(await sides[0]!.getItems()).toHaveLength(4);
    });
    const turns = session.seal();
    for (const thread of ['buyer', 'seller']) {
      const own = turns.filter((turn) => turn.thread === thread);
      expect(own.map(({ fork }) => fork)).toEqual([undefined, undefined]);
      expect(own[1]?.after).toBe(own[0]?.index);
      expect(own[1]?.request.messages.map(({ content }) => content)).toEqual(['Answer.', `${thread} 1`, 'Yes.', `${thread} 2`]);
    }
  });

  it('say nothing in a rollout that was started from another one', async () => {
    const { gateway, session } = rollout(Array(2).fill('Yes.<|im_end|>'));
    const other = gateway.open(specFor('r2'));
    await inRollout(session, async () => {
      await runner.run(agent, 'one', { session: new RecordingSession<AgentInputItem>('mine') });
      await inRollout(other, () => runner.run(agent, 'two'));
    });
    expect(session.seal().map(({ thread }) => thread)).toEqual(['mine']);
    expect(other.seal().map(({ thread, role }) => thread === role)).toEqual([true]);
  });

  it('can be told outright, and are left again', async () => {
    const { session } = rollout(Array(2).fill('Yes.<|im_end|>'));
    const own = new RecordingSession<AgentInputItem>('mine');
    await inRollout(session, async () => {
      await own.run(() => runner.run(agent, 'one', { session: own }));
      await runner.run(agent, 'two');
    });
    expect(session.seal().map(({ thread, role }) => (thread === role ? 'none' : thread))).toEqual(['mine', 'none']);
  });

  it('keep, give, take back and clear their items', async () => {
    const item = (content: string): AgentInputItem => ({ role: 'user', content });
    const own = new RecordingSession<AgentInputItem>('mine', [item('a')]);
    await own.addItems([item('b'), item('c')]);
    expect(await own.getItems(2)).toEqual([item('b'), item('c')]);
    expect(await own.getItems(0)).toEqual([]);
    expect(await own.popItem()).toEqual(item('c'));
    Object.assign((await own.getItems())[0]!, { content: 'changed' });
    expect(await own.getItems()).toEqual([item('a'), item('b')]);
    await own.clearSession();
    expect(await own.getItems()).toEqual([]);
    expect(await own.getSessionId()).toBe('mine');
  });
});

describe('the policy as a model of the OpenAI Agents SDK', () => {
  const runner = new Runner({ tracingDisabled: true });
  const agent = new Agent({ name: 'assistant', model: policy(), instructions: 'Answer.' });

  it('is asked in the role that its provider names', async () => {
    const { session } = rollout(['Yes.<|im_end|>']);
    const provided = new Runner({ modelProvider: policyProvider((name) => `role of ${name}`), tracingDisabled: true });
    await inRollout(session, () => provided.run(new Agent({ name: 'a', model: 'gpt-x', instructions: 'Answer.' }), 'q'));
    expect(session.seal().map(({ role }) => role)).toEqual(['role of gpt-x']);
  });

  it('counts what it read and said', async () => {
    const { session } = rollout(['Yes.<|im_end|>']);
    const { state } = await inRollout(session, () => runner.run(agent, 'q'));
    const [turn] = session.seal();
    expect(state.usage).toMatchObject({
      requests: 1,
      inputTokens: turn!.promptIds.length,
      outputTokens: turn!.sampledIds.length,
    });
  });

  it('says outside of a rollout what to do', async () => {
    await expect(runner.run(agent, 'q')).rejects.toMatchObject({
      code: 'NO_ROLLOUT',
      message: expect.stringMatching('the policy was called outside of a rollout'),
      hint: expect.stringMatching('policy\\(ctx.model\\(\\)\\)'),
    });
  });

  it('refuses what it cannot read or would not record, naming it', async () => {
    const { session } = rollout();
    const ask = (input: unknown, settings: object = {}) =>
      inRollout(session, () =>
        runner.run(agent.clone({ modelSettings: settings }), input as AgentInputItem[]).then(
          () => 'answered',
          (thrown: Error) => thrown.message,
        ),
      );
    const picture = [{ role: 'user', content: [{ type: 'input_image', image: 'data:image/png;base64,AA==' }] }];
    expect(await ask(picture)).toBe('input[0]: a part of type "input_image" is not supported');
    expect(await ask([{ type: 'compaction', encrypted_content: 'x' }])).toContain(
      'an item of type "compaction" is not supported',
    );
    expect(await ask('q', { frequencyPenalty: 0.5 })).toBe('frequencyPenalty of 0.5 is not supported');
    expect(await ask('q', { toolChoice: 'lookup' })).toBe('tool: a call is demanded, but there are no tools');
    expect(session.seal()).toEqual([]);
  });

  it('ends with the signal that the agent was given', async () => {
    const { session } = rollout();
    const signal = AbortSignal.abort(new Error('enough'));
    await expect(inRollout(session, () => runner.run(agent, 'q', { signal }))).rejects.toThrow();
    expect(session.seal()).toEqual([]);
  });
});
