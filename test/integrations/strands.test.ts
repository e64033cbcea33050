/** Agents written with Strands, on the policy in this process. */
import { Agent, type Model, tool } from '@strands-agents/sdk';
import { OpenAIModel } from '@strands-agents/sdk/models/openai';
import { describe, expect, it } from 'vitest';
import { z } from 'zod';
import type { ModelHandle, Session } from '../../src/core/contracts.ts';
import { PolicyModel } from '../../src/strands.ts';
import { thinkingRenderer, thoughtfulReplies } from '../fixtures/gateway/client-thoughts.ts';
import { expectLinear } from '../fixtures/gateway/served.ts';
import { ANSWERS, QUESTIONS, REPLIES, Shop } from '../fixtures/gateway/shop-agent.ts';
import { bothWays, type Played, rollout } from '../fixtures/integrations/both-ways.ts';

new PolicyModel() satisfies Model;

const toolsOf = (shop: Shop) => [
  tool({
    name: 'lookup',
    description: shop.lookupText,
    inputSchema: z.object({ item: z.string() }),
    callback: ({ item }) => shop.lookup(item),
  }),
  tool({
    name: 'calculator',
    description: shop.calculatorText,
    inputSchema: z.object({ expression: z.string() }),
    callback: ({ expression }) => JSON.parse(shop.calculator(expression)),
  }),
];

function shopAgent(modelOf: (handle: ModelHandle) => Model): Played {
  return async (handle, shop) => {
    const agent = new Agent({ model: modelOf(handle), systemPrompt: shop.system, tools: toolsOf(shop), printer: false });
    const answers: string[] = [];
    for (const question of QUESTIONS) answers.push((await agent.invoke(question)).toString());
    return answers;
  };
}

const overHttp =
  (api: 'chat' | 'responses', config: object = {}) =>
  ({ baseURL, apiKey, name }: ModelHandle): Model =>
    new OpenAIModel({ api, modelId: name, apiKey, clientConfig: { baseURL, maxRetries: 0 }, ...config });

function seller(session: Session) {
  const shop = new Shop();
  const model = new PolicyModel(session.model());
  return { shop, agent: new Agent({ model, systemPrompt: shop.system, tools: toolsOf(shop), printer: false }) };
}

const quietly = { systemPrompt: 'Answer.', printer: false } as const;

describe('an agent of Strands', () => {
  it('leaves the same trajectory in process as over Responses, parallel calls included', async () => {
    const turns = await bothWays({ inProcess: shopAgent(() => new PolicyModel()), overHttp: shopAgent(overHttp('responses')) });
    expectLinear(turns);
    expect(turns[0]?.response.tool_calls).toHaveLength(2);
    expect(turns[1]?.request.messages.filter(({ role }) => role === 'tool')).toHaveLength(2);
  });

  it('leaves the same trajectory in process as over Chat Completions, where its own client keeps one call of an answer', async () => {
    const settings = { temperature: 0.5, topP: 0.9, maxTokens: 100 };
    const ways = {
      inProcess: shopAgent((handle) => new PolicyModel(handle, settings)),
      overHttp: shopAgent(overHttp('chat', settings)),
    };
    const oneCall = REPLIES[0]!.replace(/<\/tool_call>.*<\|im_end\|>/, '</tool_call><|im_end|>');
    expectLinear(await bothWays(ways, [oneCall, ...REPLIES.slice(1)]));
  });

  it('goes on from what the policy thought', async () => {
    const { session } = rollout(thoughtfulReplies, thinkingRenderer);
    await seller(session).agent.invoke(QUESTIONS[0]!);
    const turns = session.seal();
    expect(turns).toHaveLength(2);
    expect(turns[0]?.response.reasoning).toBe('I look up both.');
    expectLinear(turns);
  });

  it('hears of arguments that are no JSON from its tool, and goes on', async () => {
    const broken = '<tool_call>{"name":"lookup","arguments":"nonsense"}</tool_call><|im_end|>';
    const { session } = rollout([broken, 'Sorry.<|im_end|>']);
    const { agent, shop } = seller(session);
    expect((await agent.invoke('q')).toString().trim()).toBe('Sorry.');
    const turns = session.seal();
    expect(turns[1]?.after).toBe(0);
    expect(turns[1]?.fork).toBeUndefined();
    expect(turns[1]?.request.messages.at(-1)?.content).toContain('[ERROR]');
    expect(shop.calls).toEqual([]);
  });
});

describe('the policy as a model of Strands', () => {
  it('counts what it read and said', async () => {
    const { session } = rollout(['Yes.<|im_end|>']);
    const agent = new Agent({ model: new PolicyModel(session.model()), ...quietly });
    const { metrics } = await agent.invoke('q');
    const [turn] = session.seal();
    expect(metrics?.accumulatedUsage).toMatchObject({
      inputTokens: turn!.promptIds.length,
      outputTokens: turn!.sampledIds.length,
    });
  });

  it('keeps its config', () => {
    const model = new PolicyModel('judge', { temperature: 0.5 });
    model.updateConfig({ maxTokens: 9 });
    expect(model.getConfig()).toEqual({ modelId: 'judge', temperature: 0.5, maxTokens: 9 });
  });

  it('reads JSON results, and refuses pictures by name', async () => {
    const { session } = rollout([...REPLIES.slice(2, 4)]);
    const { agent } = seller(session);
    expect((await agent.invoke(QUESTIONS[1]!)).toString().trim()).toBe(ANSWERS[1]);
    expect(session.turns[1]?.request.messages.at(-1)?.content).toContain('243');
    const picture = { image: { format: 'png' as const, source: { bytes: new Uint8Array(1) } } };
    await expect(agent.invoke([picture])).rejects.toThrow('a block of type "imageBlock" is not supported');
  });
});
