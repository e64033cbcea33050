/** Agents written with the AI SDK, on the policy in this process. */
import { generateText, type LanguageModel, Output, stepCountIs, streamText, tool } from 'ai';
import { afterEach, describe, expect, it } from 'vitest';
import { z } from 'zod';
import { policy, redirectModelIds } from '../../src/ai-sdk.ts';
import { expectLinear, specFor } from '../fixtures/gateway/served.ts';
import { Shop } from '../fixtures/gateway/shop-agent.ts';
import { inRollout, rollout } from '../fixtures/integrations/both-ways.ts';

policy() satisfies LanguageModel;

const toolsOf = (shop: Shop) => ({
  lookup: tool({
    description: shop.lookupText,
    inputSchema: z.object({ item: z.string() }),
    execute: async ({ item }) => shop.lookup(item),
  }),
  calculator: tool({
    description: shop.calculatorText,
    inputSchema: z.object({ expression: z.string() }),
    execute: async ({ expression }) => JSON.parse(shop.calculator(expression)) as object,
  }),
});

describe('an agent of the AI SDK', () => {
  it('hears of arguments that are no JSON from its tool, and goes on', async () => {
    const broken = '<tool_call>{"name":"lookup","arguments":"nonsense"}</tool_call><|im_end|>';
    const { session } = rollout([broken, 'Sorry.<|im_end|>']);
    const model = policy(session.model());
    const { text } = await generateText({ model, tools: toolsOf(new Shop()), prompt: 'q', stopWhen: stepCountIs(3) });
    expect(text).toBe('Sorry.');
    expectLinear(session.seal());
  });
});

describe('the policy as a language model of the AI SDK', () => {
  it('passes on settings, and tells which turn it was and what it cost', async () => {
    const { session } = rollout(['One. Two.<|im_end|>']);
    const settings = { temperature: 0.5, topP: 0.9, topK: 7, maxOutputTokens: 99, stopSequences: ['Two'] };
    const result = await generateText({ model: policy(session.model()), prompt: 'q', ...settings });
    const [turn] = session.seal();
    expect(turn?.sampling.requested).toEqual({ temperature: 0.5, topP: 0.9, topK: 7, maxTokens: 99 });
    expect(result.text).toBe('One. ');
    expect(result.finishReason).toBe('stop');
    expect(result.usage).toMatchObject({ inputTokens: turn!.promptIds.length, outputTokens: turn!.sampledIds.length });
    expect(result.providerMetadata?.['trainyard']).toEqual({ turn: 0, completionId: result.response.id });
  });

  it('gives an object where one was asked for, and marks what is none', async () => {
    const { session } = rollout(['{"price": 81}<|im_end|>', 'much<|im_end|>']);
    const output = Output.object({ schema: z.object({ price: z.number() }) });
    const ask = () => generateText({ model: policy(session.model()), prompt: 'q', output });
    expect((await ask()).output).toEqual({ price: 81 });
    await expect(ask().then(({ output }) => output)).rejects.toThrow();
    expect(session.seal().map(({ formatError }) => formatError?.slice(0, 8))).toEqual([undefined, 'not JSON']);
  });

  it('shows no tools where none may be called', async () => {
    const { session } = rollout(['Yes.<|im_end|>']);
    await generateText({ model: policy(session.model()), prompt: 'q', tools: toolsOf(new Shop()), toolChoice: 'none' });
    expect(session.seal()[0]?.request.tools).toEqual([]);
  });

  it('refuses what it cannot read or would not record, naming it', async () => {
    const { session } = rollout();
    const model = policy(session.model());
    const picture = { role: 'user' as const, content: [{ type: 'image' as const, image: new Uint8Array([137, 80, 78, 71]) }] };
    await expect(generateText({ model, messages: [picture] })).rejects.toThrow(
      'prompt[0]: a part of type "file" is not supported',
    );
    await expect(generateText({ model, prompt: 'q', presencePenalty: 1 })).rejects.toThrow(
      'presencePenalty of 1 is not supported',
    );
    expect(session.seal()).toEqual([]);
  });

  it('does not ask again what could not be answered', async () => {
    const { session } = rollout();
    const model = policy(session.model());
    session.seal();
    await expect(generateText({ model, prompt: 'q' })).rejects.toMatchObject({ code: 'SESSION_SEALED' });
  });

  it('tells a stream’s reader of a failure', async () => {
    const { session } = rollout();
    const model = policy(session.model());
    session.seal();
    const errors: unknown[] = [];
    const { fullStream } = streamText({ model, prompt: 'q', onError: ({ error }) => void errors.push(error) });
    for await (const _part of fullStream);
    expect(errors).toMatchObject([{ code: 'SESSION_SEALED' }]);
  });
});

describe('plain model ids', () => {
  const globals = globalThis as { AI_SDK_DEFAULT_PROVIDER?: unknown };
  let undo: (() => void) | undefined;
  afterEach(() => {
    undo?.();
    undo = undefined;
    delete globals.AI_SDK_DEFAULT_PROVIDER;
  });
  const ask = async () => (await generateText({ model: 'openai/gpt-5', prompt: 'q' })).text;

  it('are the policy inside of rollouts, in the role that they stand for', async () => {
    undo = redirectModelIds((modelId) => `as ${modelId}`);
    const { gateway } = rollout(Array(2).fill('Yes.<|im_end|>'));
    const sessions = ['a', 'b'].map((id) => gateway.open(specFor(id)));
    expect(await Promise.all(sessions.map((session) => inRollout(session, ask)))).toEqual(['Yes.', 'Yes.']);
    expect(sessions.map((session) => session.seal().map(({ role }) => role))).toEqual([['as openai/gpt-5'], ['as openai/gpt-5']]);
  });

  it('go outside of rollouts where they went before', async () => {
    const { session } = rollout(['Before.<|im_end|>', 'Inside.<|im_end|>']);
    const other = policy(session.model());
    globals.AI_SDK_DEFAULT_PROVIDER = { specificationVersion: 'v4', languageModel: () => other };
    undo = redirectModelIds();
    expect(await ask()).toBe('Before.');
    expect(await inRollout(session, ask)).toBe('Inside.');
  });

  it('outside of rollouts, with nothing before, say so', async () => {
    undo = redirectModelIds();
    await expect(ask()).rejects.toMatchObject({ code: 'NO_ROLLOUT', message: expect.stringMatching('"openai/gpt-5"') });
  });

  it('are redirected once however often it is said, and put back once', () => {
    const before = { specificationVersion: 'v4' };
    globals.AI_SDK_DEFAULT_PROVIDER = before;
    const first = redirectModelIds();
    const provider = globals.AI_SDK_DEFAULT_PROVIDER;
    const second = redirectModelIds(() => 'x');
    expect(globals.AI_SDK_DEFAULT_PROVIDER).toBe(provider);
    second();
    expect(globals.AI_SDK_DEFAULT_PROVIDER).toBe(before);
    const other = {};
    undo = redirectModelIds();
    first();
    globals.AI_SDK_DEFAULT_PROVIDER = other;
    undo();
    expect(globals.AI_SDK_DEFAULT_PROVIDER).toBe(other);
  });
});
