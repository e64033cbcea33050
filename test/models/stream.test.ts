/** The base policy through the gateway: a streamed answer has the tokens of one that is not. */
import OpenAI from 'openai';
import { describe, expect, it } from 'vitest';
import { SYSTEM_PROMPT, TOOLS } from '../../models/shop-domain.ts';
import type { Turn } from '../../src/core/types.ts';
import { Gateway, listen } from '../../src/gateway/gateway.ts';
import { EmbeddedModel } from '../../src/nn/embedded-model.ts';
import { loadRenderer } from '../../src/tokens/renderer.ts';

const dir = new URL('../../models/base', import.meta.url).pathname;

describe('the base policy', () => {
  it('says the same streamed as whole, token by token, and the stream is what it said', async () => {
    await using model = await EmbeddedModel.open({ dir, threads: 1 });
    const gateway = new Gateway({ engine: model, renderer: await loadRenderer(dir), modelName: 'policy' });
    await using _ = await listen(gateway);
    const messages = [
      { role: 'system' as const, content: SYSTEM_PROMPT },
      { role: 'user' as const, content: 'How much is the "Binklex glove"?' },
    ];
    const request = { model: 'policy', messages, tools: TOOLS as OpenAI.ChatCompletionTool[] };
    const play = async (ask: (client: OpenAI) => Promise<OpenAI.ChatCompletionMessage>) => {
      const session = gateway.open({
        identity: { rolloutId: 'r', groupId: 'g', taskId: 't', purpose: 'train' },
        roles: {},
        sampling: { temperature: 1, topP: 1, topK: 0, maxTokens: 64 },
        limits: { turns: 9, tokens: 1000, deadlineMs: 1000 },
        seed: 7,
        signal: new AbortController().signal,
      });
      const { baseURL, apiKey } = session.model();
      const said = await ask(new OpenAI({ baseURL, apiKey }));
      return { said, turn: session.seal()[0] as Turn };
    };
    const whole = await play(async (client) => (await client.chat.completions.create(request)).choices[0]!.message);
    const streamed = await play((client) => client.chat.completions.stream(request).finalMessage());
    expect([...streamed.turn.sampledIds]).toEqual([...whole.turn.sampledIds]);
    expect([...streamed.turn.logprobs]).toEqual([...whole.turn.logprobs]);
    expect(streamed.turn.response).toEqual(whole.turn.response);
    expect(streamed.said.content ?? '').toBe(whole.said.content ?? '');
    expect(streamed.said.tool_calls ?? []).toMatchObject(whole.said.tool_calls ?? []);
  });
});
