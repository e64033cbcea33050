/** The policy in this process, as a model of frameworks whose other clients live in this folder: the same trajectory as over HTTP. */
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { type BaseMessage, HumanMessage } from '@langchain/core/messages';
import { ChatOpenAI } from '@langchain/openai';
import { Agent as MastraAgent } from '@mastra/core/agent';
import { createTool } from '@mastra/core/tools';
import { generateText, type LanguageModel, type ModelMessage, stepCountIs, streamText, tool } from 'ai';
import { createAgent, tool as langchainTool } from 'langchain';
import { describe, expect, it } from 'vitest';
import { z } from 'zod';
import type { ModelHandle } from '../../../src/core/contracts.ts';
import { policy } from '../../../src/integrations/ai-sdk.ts';
import { ChatPolicy } from '../../../src/integrations/langchain.ts';
import { thinkingRenderer, thoughtfulReplies } from '../../fixtures/gateway/client-thoughts.ts';
import { expectLinear, specFor } from '../../fixtures/gateway/served.ts';
import { ANSWERS, CALLS, QUESTIONS, Shop } from '../../fixtures/gateway/shop-agent.ts';
import { bothWays, inRollout, type Played, rollout } from '../../fixtures/integrations/both-ways.ts';

const ITEM = z.object({ item: z.string() });
const SUM = z.object({ expression: z.string() });

describe('the AI SDK', () => {
  const agent =
    (modelOf: (handle: ModelHandle) => LanguageModel, stream: boolean, questions = QUESTIONS): Played =>
    async (handle, shop) => {
      const tools = {
        lookup: tool({ description: shop.lookupText, inputSchema: ITEM, execute: async ({ item }) => shop.lookup(item) }),
        calculator: tool({
          description: shop.calculatorText,
          inputSchema: SUM,
          execute: async ({ expression }) => JSON.parse(shop.calculator(expression)) as object,
        }),
      };
      const messages: ModelMessage[] = [];
      const answers: string[] = [];
      for (const question of questions) {
        messages.push({ role: 'user', content: question });
        const settings = { temperature: 0.5, maxOutputTokens: 150, stopWhen: stepCountIs(8) };
        const asked = { model: modelOf(handle), system: shop.system, messages, tools, ...settings };
        const result = stream ? streamText(asked) : await generateText(asked);
        answers.push(await result.text);
        messages.push(...(await result.responseMessages));
      }
      return answers;
    };
  const overHttp = ({ baseURL, apiKey, name }: ModelHandle) => createOpenAICompatible({ name: 'policy', baseURL, apiKey })(name);

  it.each([false, true])('leaves the same trajectory in process as over HTTP (streamed: %s)', async (stream) => {
    expectLinear(await bothWays({ inProcess: agent(() => policy(), stream), overHttp: agent(overHttp, stream) }));
  });

  it('leaves the same trajectory in process as over HTTP where the policy thinks first', async () => {
    const first = QUESTIONS.slice(0, 1);
    const ways = { inProcess: agent(() => policy(), false, first), overHttp: agent(overHttp, false, first) };
    expectLinear(await bothWays(ways, thoughtfulReplies, thinkingRenderer));
  });

  it('leaves the same trajectory in process as over HTTP where a tool must be called', async () => {
    const extract =
      (modelOf: (handle: ModelHandle) => LanguageModel, toolChoice: 'required' | { type: 'tool'; toolName: 'report' }): Played =>
      async (handle) => {
        const tools = {
          report: tool({ description: 'reports', inputSchema: SUM, execute: async () => 'done' }),
          other: tool({ inputSchema: ITEM, execute: async () => 'done' }),
        };
        const { toolCalls } = await generateText({ model: modelOf(handle), prompt: 'q', tools, toolChoice });
        return toolCalls.map(({ toolName, input }) => ({ toolName, input }));
      };
    const report = { type: 'tool', toolName: 'report' } as const;
    const ways = { inProcess: extract(() => policy(), report), overHttp: extract(overHttp, report) };
    await bothWays(ways, ['{"expression":"1+1"}}</tool_call><|im_end|>']);
    const any = { inProcess: extract(() => policy(), 'required'), overHttp: extract(overHttp, 'required') };
    await bothWays(any, ['"report","arguments":{"expression":"1+1"}}</tool_call><|im_end|>']);
  });
});

describe('LangChain', () => {
  type Chat = ChatPolicy | ChatOpenAI;
  const toolsOf = (shop: Shop) => [
    langchainTool(({ item }) => shop.lookup(item), { name: 'lookup', description: shop.lookupText, schema: ITEM }),
    langchainTool(({ expression }) => shop.calculator(expression), {
      name: 'calculator',
      description: shop.calculatorText,
      schema: SUM,
    }),
  ];
  const agent =
    (modelOf: (handle: ModelHandle) => Chat): Played =>
    async (handle, shop) => {
      const assistant = createAgent({ model: modelOf(handle) as never, systemPrompt: shop.system, tools: toolsOf(shop) });
      let messages: BaseMessage[] = [];
      const answers: unknown[] = [];
      for (const question of QUESTIONS) {
        messages = (await assistant.invoke({ messages: [...messages, new HumanMessage(question)] as never })).messages as never;
        answers.push(messages.at(-1)?.text);
      }
      expect(new Set(messages.map(({ id }) => id)).size).toBe(messages.length);
      return answers;
    };
  const overHttp = ({ baseURL, apiKey, name: model }: ModelHandle) =>
    new ChatOpenAI({ model, apiKey, configuration: { baseURL } });

  it('leaves the same trajectory in process as over HTTP', async () => {
    expectLinear(await bothWays({ inProcess: agent(() => new ChatPolicy()), overHttp: agent(overHttp) }));
  });

  it('gives structured output by a tool that must be called', async () => {
    const { session } = rollout(['{"price": 81}}</tool_call><|im_end|>', '{"price": "much"}}</tool_call><|im_end|>']);
    const llm = new ChatPolicy(session.model()).withStructuredOutput(z.object({ price: z.number() }), { name: 'answer' });
    expect(await llm.invoke('How much?')).toEqual({ price: 81 });
    await expect(llm.invoke('How much then?')).rejects.toThrow();
    expect(session.seal()[0]?.response.tool_calls?.[0]?.function.name).toBe('answer');
  });

  it('goes on from thoughts and from calls that are no JSON, and counts', async () => {
    const broken = '<think>Hm.</think><tool_call>{"name":"lookup","arguments":"nonsense"}</tool_call><|im_end|>';
    const { session } = rollout([broken, '<think></think>Sorry.<|im_end|>'], thinkingRenderer);
    const llm = new ChatPolicy(session.model(), { temperature: 0.5 }).bindTools(toolsOf(new Shop()) as never);
    const asked = new HumanMessage('q');
    const said = await llm.invoke([asked]);
    expect(said.invalid_tool_calls).toHaveLength(1);
    expect((await llm.invoke([asked, said, new HumanMessage('What?')])).text).toBe('Sorry.');
    const turns = session.seal();
    expectLinear(turns);
    expect(turns[0]?.sampling.requested).toEqual({ temperature: 0.5 });
    expect(said.usage_metadata).toMatchObject({ output_tokens: turns[0]?.sampledIds.length });
  });

  it('refuses pictures by name', async () => {
    const { session } = rollout();
    const picture = new HumanMessage({ content: [{ type: 'image_url', image_url: 'data:image/png;base64,AA==' }] });
    await expect(new ChatPolicy(session.model()).invoke([picture])).rejects.toThrow(
      'messages[0]: a part of type "image_url" is not supported',
    );
  });
});

describe('Mastra', () => {
  const agentOf = (model: ReturnType<typeof policy>, shop: Shop) =>
    new MastraAgent({
      id: 'assistant',
      name: 'assistant',
      instructions: shop.system,
      model,
      tools: {
        lookup: createTool({
          id: 'lookup',
          description: shop.lookupText,
          inputSchema: ITEM,
          execute: async ({ item }) => shop.lookup(item),
        }),
      },
    });

  it.each([false, true])('takes the policy as it takes models of the AI SDK (streamed: %s)', async (stream) => {
    const { session } = rollout();
    const shop = new Shop();
    const agent = agentOf(policy(), shop);
    const text = await inRollout(session, async () => {
      const result = stream ? await agent.stream(QUESTIONS[0]!) : await agent.generate(QUESTIONS[0]!);
      return await result.text;
    });
    expect(text).toBe(ANSWERS[0]);
    expect(shop.calls.toSorted()).toEqual(CALLS.filter((call) => call.startsWith('lookup')));
    expectLinear(session.seal());
  });

  it('serves many rollouts with one agent', async () => {
    const { gateway } = rollout(Array(3).fill('Yes.<|im_end|>'));
    const agent = agentOf(policy(), new Shop());
    const sessions = ['a', 'b', 'c'].map((id) => gateway.open(specFor(id)));
    await Promise.all(sessions.map((session, i) => inRollout(session, () => agent.generate(`number ${i}`))));
    for (const [i, session] of sessions.entries()) {
      expect(session.seal().map(({ request }) => request.messages.at(-1)?.content)).toEqual([`number ${i}`]);
    }
  });
});
