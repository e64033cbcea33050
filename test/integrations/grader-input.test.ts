/** One conversation with tool calls, held through every dialect and framework: graders see the same of all of them. */
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import Anthropic from '@anthropic-ai/sdk';
import { MemorySession, Agent as OpenAIAgent, tool as openAITool, Runner } from '@openai/agents';
import { Agent as StrandsAgent, tool as strandsTool } from '@strands-agents/sdk';
import { tool as aiTool, ToolLoopAgent } from 'ai';
import OpenAI from 'openai';
import { describe, expect, it } from 'vitest';
import { z } from 'zod';
import { policy } from '../../src/ai-sdk.ts';
import type { GraderInput, WorkflowContext } from '../../src/core/contracts.ts';
import { defineGrader, defineWorkflow } from '../../src/core/define.ts';
import type { Message } from '../../src/core/types.ts';
import { toolCalls } from '../../src/graders/tool-call-match.ts';
import { policyProvider } from '../../src/openai-agents.ts';
import { PolicyModel } from '../../src/strands.ts';
import { sharedFolder } from '../fixtures/folder.ts';
import { ANSWERS, QUESTIONS, REPLIES, Shop } from '../fixtures/gateway/shop-agent.ts';
import { rewardOf } from '../fixtures/grader/rollout-input.ts';
import { rolloutsThrough, scriptedGateway } from '../fixtures/scripted-gateway.ts';

process.env['OPENAI_AGENTS_DISABLE_TRACING'] = '1';
const artifacts = sharedFolder();

type Agent = (ctx: WorkflowContext, shop: Shop) => Promise<unknown>;

const chat: Agent = async (ctx, shop) => {
  const client = new OpenAI(ctx.model().openai());
  const tools = shop.tools as OpenAI.ChatCompletionTool[];
  const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'system', content: shop.system }];
  for (const content of QUESTIONS) {
    messages.push({ role: 'user', content });
    for (;;) {
      const { message } = (await client.chat.completions.create({ model: 'policy', messages, tools })).choices[0]!;
      messages.push(message);
      if (!message.tool_calls?.length) break;
      for (const call of message.tool_calls) {
        if (call.type !== 'function') continue;
        messages.push({ role: 'tool', tool_call_id: call.id, content: shop.run(call.function.name, call.function.arguments) });
      }
    }
  }
};

const responses: Agent = async (ctx, shop) => {
  const client = new OpenAI(ctx.model().openai());
  const plain = shop.tools.map((one) => ({ type: 'function', strict: false, ...one.function }));
  const tools = plain as OpenAI.Responses.FunctionTool[];
  const input: OpenAI.Responses.ResponseInputItem[] = [];
  for (const content of QUESTIONS) {
    input.push({ role: 'user', content });
    for (let called = true; called; ) {
      const { output } = await client.responses.create({ model: 'policy', instructions: shop.system, tools, input });
      input.push(...(output as OpenAI.Responses.ResponseInputItem[]));
      const calls = output.filter((item) => item.type === 'function_call');
      for (const { call_id, name, arguments: given } of calls)
        input.push({ type: 'function_call_output', call_id, output: shop.run(name, given) });
      called = calls.length > 0;
    }
  }
};

const messages: Agent = async (ctx, shop) => {
  const client = new Anthropic(ctx.model().anthropic());
  const tools = shop.tools.map(({ function: { name, description = '', parameters } }) => ({
    ...{ name, description },
    input_schema: parameters as Anthropic.Tool.InputSchema,
  }));
  const conversation: Anthropic.MessageParam[] = [];
  for (const question of QUESTIONS) {
    conversation.push({ role: 'user', content: question });
    for (;;) {
      const asked = { model: 'policy', max_tokens: 100, system: shop.system, tools, messages: conversation };
      const { content } = await client.messages.create(asked);
      conversation.push({ role: 'assistant', content });
      const results = content.flatMap((block) =>
        block.type === 'tool_use'
          ? [{ type: 'tool_result' as const, tool_use_id: block.id, content: shop.run(block.name, block.input) }]
          : [],
      );
      if (results.length === 0) break;
      conversation.push({ role: 'user', content: results });
    }
  }
};

const ITEM = z.object({ item: z.string() });
const EXPRESSION = z.object({ expression: z.string() });

const aiSdk: Agent = async (_, shop) => {
  const lookup = aiTool({ description: shop.lookupText, inputSchema: ITEM, execute: ({ item }) => shop.lookup(item) });
  const calculator = aiTool({
    ...{ description: shop.calculatorText, inputSchema: EXPRESSION },
    execute: ({ expression }) => shop.calculator(expression),
  });
  const agent = new ToolLoopAgent({ model: policy(), instructions: shop.system, tools: { lookup, calculator } });
  const said: Parameters<typeof agent.generate>[0]['messages'] = [];
  for (const content of QUESTIONS) {
    said.push({ role: 'user', content });
    said.push(...(await agent.generate({ messages: said })).responseMessages);
  }
};

const openAIAgents: Agent = async (_, shop) => {
  const tools = [
    openAITool({ name: 'lookup', description: shop.lookupText, parameters: ITEM, execute: ({ item }) => shop.lookup(item) }),
    openAITool({
      ...{ name: 'calculator', description: shop.calculatorText, parameters: EXPRESSION },
      execute: ({ expression }) => shop.calculator(expression),
    }),
  ];
  const runner = new Runner({ modelProvider: policyProvider(), tracingDisabled: true });
  const agent = new OpenAIAgent({ name: 'assistant', model: 'policy', instructions: shop.system, tools });
  const session = new MemorySession();
  for (const question of QUESTIONS) await runner.run(agent, question, { session });
};

const strands: Agent = async (_, shop) => {
  const tools = [
    strandsTool({ name: 'lookup', description: shop.lookupText, inputSchema: ITEM, callback: ({ item }) => shop.lookup(item) }),
    strandsTool({
      ...{ name: 'calculator', description: shop.calculatorText, inputSchema: EXPRESSION },
      callback: ({ expression }) => shop.calculator(expression),
    }),
  ];
  const agent = new StrandsAgent({ model: new PolicyModel(), systemPrompt: shop.system, tools, printer: false });
  for (const question of QUESTIONS) await agent.invoke(question);
};

const AGENTS: Readonly<Record<string, Agent>> = { chat, responses, messages, aiSdk, openAIAgents, strands };

async function seenOf(agent: Agent) {
  const { gateway } = scriptedGateway((call) => REPLIES[call]!.replace('<|im_end|>', ''));
  let input: GraderInput | undefined;
  const grader = defineGrader(async (given) => {
    input = given;
    return (await readFile(join(given.artifactsDir ?? '', 'kept'), 'utf8')).length;
  });
  const workflow = defineWorkflow(async (ctx) => {
    await agent(ctx, new Shop());
    await writeFile(join(ctx.artifactsDir!, 'kept'), 'four');
    return { output: { said: ANSWERS.length }, metadata: { by: 'agent' } };
  });
  const task = { id: 't', prompt: [{ role: 'user' as const, content: QUESTIONS[0]! }], answer: 81, metadata: { hard: true } };
  const trajectory = await rolloutsThrough(gateway)({ workflow, grader, artifacts }, task);
  expect(trajectory).toMatchObject({ outcome: { kind: 'completed' }, grade: { kind: 'graded', reward: { value: 4 } } });
  return { input: input!, trajectory };
}

/** Calls are named by whoever makes them up: their order is what counts. */
function withoutNames(input: GraderInput): unknown {
  const ids: string[] = [];
  const numbered = (id: string): string => {
    if (!ids.includes(id)) ids.push(id);
    return `call ${ids.indexOf(id)}`;
  };
  const plain = (message: Message): Message => ({
    ...message,
    ...(message.tool_calls && { tool_calls: message.tool_calls.map((call) => ({ ...call, id: numbered(call.id) })) }),
    ...(message.tool_call_id !== undefined && { tool_call_id: numbered(message.tool_call_id) }),
  });
  return {
    ...input,
    messages: input.messages.map(plain),
    threads: Object.fromEntries(Object.entries(input.threads).map(([name, thread]) => [name, thread.map(plain)])),
    turns: input.turns.map((turn) => ({ ...turn, response: plain(turn.response), startedAt: 0, endedAt: 0 })),
  };
}

describe('what a grader sees', () => {
  it('is the same whatever dialect or framework the agent used, tool calls included', async () => {
    const expected = withoutNames((await seenOf(chat)).input);
    for (const [name, agent] of Object.entries(AGENTS)) {
      expect(withoutNames((await seenOf(agent)).input), name).toEqual(expected);
    }
  });

  it('has tool calls that toolCalls compares', async () => {
    const { input } = await seenOf(messages);
    const wanted = (expression: string) => [
      { name: 'lookup', arguments: { item: 'Binklex glove' } },
      { name: 'lookup', arguments: { item: 'Zorvex lamp' } },
      { name: 'calculator', arguments: { expression } },
    ];
    expect(await rewardOf(toolCalls({ expected: () => wanted('3*81') }), input)).toMatchObject({ value: 1, success: true });
    expect(await rewardOf(toolCalls({ expected: () => wanted('3*82') }), input)).toMatchObject({ metrics: { matched: 2 } });
  });

  it('is the whole conversation in the shape of Chat Completions', async () => {
    const { input } = await seenOf(messages);
    expect(input.messages.map(({ role, content, tool_calls }) => [role, tool_calls?.length ?? content])).toEqual([
      ['system', new Shop().system],
      ['user', QUESTIONS[0]],
      ['assistant', 2],
      ['tool', expect.stringContaining('81')],
      ['tool', expect.stringContaining('27')],
      ['assistant', ANSWERS[0]],
      ['user', QUESTIONS[1]],
      ['assistant', 1],
      ['tool', expect.stringContaining('243')],
      ['assistant', ANSWERS[1]],
    ]);
    expect(input).toMatchObject({
      task: { id: 't', answer: 81, metadata: { hard: true } },
      threads: { default: input.messages },
      output: { said: 2 },
      result: { metadata: { by: 'agent' } },
      truncated: undefined,
    });
    // Arguments are the policy's own text, spacing included.
    expect(input.turns[0]?.response.tool_calls?.[0]?.function.arguments).toBe('{"item":  "Binklex glove"}');
  });

  it('has text in parts as one text; parts that the policy cannot read never become half a message', async () => {
    let refusal: unknown;
    const { input } = await seenOf(async (ctx) => {
      const client = new OpenAI(ctx.model().openai());
      const ask = (...content: OpenAI.ChatCompletionContentPart[]) =>
        client.chat.completions.create({ model: 'policy', messages: [{ role: 'user', content }] });
      const image = { type: 'image_url' as const, image_url: { url: 'data:image/png;base64,AAAA' } };
      await ask({ type: 'text', text: 'What is this?' }, image).catch((thrown: unknown) => {
        refusal = thrown;
      });
      await ask({ type: 'text', text: 'How ' }, { type: 'text', text: 'much?' });
    });
    expect(refusal).toMatchObject({ status: 400, message: expect.stringMatching(/image/) });
    expect(input.turns).toHaveLength(1);
    expect(input.messages[0]).toEqual({ role: 'user', content: expect.stringMatching(/^How \n?much\?$/) });
  });

  it('has ids and log-probabilities as they are stored', async () => {
    const { input, trajectory } = await seenOf(messages);
    expect(input.turns).toHaveLength(4);
    for (const [i, { sampledIds, logprobs, policyVersion, index, promptTokens }] of input.turns.entries()) {
      const { promptIds, ...stored } = trajectory.turns[i]!;
      expect(stored).toMatchObject({ sampledIds, logprobs, policyVersion, index });
      expect(promptTokens).toBe(promptIds.length);
    }
  });
});
