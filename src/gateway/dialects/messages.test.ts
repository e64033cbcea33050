import { describe, expect, it } from 'vitest';
import {
  type Block,
  converseInChat,
  create,
  messageTools,
  postTo,
  question,
  system,
} from '../../../test/fixtures/gateway/messages.ts';
import { expectLinear } from '../../../test/fixtures/gateway/served.ts';
import { ANSWER, open, renderer, say } from '../../../test/fixtures/gateway/streams.ts';
import type { Session } from '../../core/contracts.ts';
import type { Turn } from '../../core/types.ts';
import { messagesParameters } from './messages.ts';

const callOf = (item: string) => `<tool_call>{"name":"lookup","arguments":{"item": "${item}"}}</tool_call>`;
const TWO_CALLS = `Let me see.${callOf('glove')}${callOf('hat')}<|im_end|>`;
const usesOf = (content: readonly Block[]) => content.filter((block) => block.type === 'tool_use');
const resultsOf = (content: readonly Block[]) =>
  usesOf(content).map(({ id }, i) => ({ type: 'tool_result', tool_use_id: id, content: `{"price":${i}}` }));

/** Asks, answers both calls, asks on. */
async function converse(session: Session, stream: boolean): Promise<void> {
  const opening = [{ role: 'user', content: [{ type: 'text', text: question }] }];
  const common = { model: 'policy', max_tokens: 4096, system: [{ type: 'text', text: system }], tools: messageTools, stream };
  const first = await create(session, { ...common, messages: opening });
  const second = [...opening, { role: 'assistant', content: first.content }, { role: 'user', content: resultsOf(first.content) }];
  const last = await create(session, { ...common, messages: second });
  const third = [...second, { role: 'assistant', content: last.content }, { role: 'user', content: 'And with tax?' }];
  await create(session, { ...common, messages: third });
}

const inChat = {
  system,
  question,
  more: 'And with tax?',
  tools: messageTools.map(({ name, description, input_schema }) => {
    return { type: 'function', function: { name, description, parameters: input_schema } };
  }),
};

describe('a conversation in Messages', () => {
  it.each([false, true])('records the same tokens as in Chat Completions, one after the other (stream: %s)', async (stream) => {
    const replies = [TWO_CALLS, ANSWER, ANSWER];
    const inMessages = open({ replies });
    await converse(inMessages.session, stream);
    const other = open({ replies });
    await converseInChat(other.session, inChat);
    const tokens = (turns: readonly Turn[]) =>
      turns.map(({ promptIds, sampledIds, logprobs, stopReason, response, sampling }) => {
        return { promptIds, sampledIds, logprobs, stopReason, response, seed: sampling.seed };
      });
    const turns = inMessages.session.seal();
    expect(turns.map((turn) => [...turn.sampledIds])).toEqual(replies.map(say));
    expect(turns.map((turn) => turn.request.dialect)).toEqual(['messages', 'messages', 'messages']);
    expectLinear(turns);
    expect(tokens(turns)).toEqual(tokens(other.session.seal()));
  });

  it('gives blocks of text and tool use with the ids of the recorded calls', async () => {
    const { session } = open({ replies: [TWO_CALLS] });
    const answer = await create(session, { messages: [{ role: 'user', content: question }], tools: messageTools });
    const [turn] = session.seal() as [Turn];
    const [glove, hat] = turn.response.tool_calls!;
    expect(answer).toEqual({
      id: expect.stringMatching(/^msg_r1-/),
      type: 'message',
      role: 'assistant',
      model: 'policy',
      content: [
        { type: 'text', text: 'Let me see.' },
        { type: 'tool_use', id: glove!.id, name: 'lookup', input: { item: 'glove' } },
        { type: 'tool_use', id: hat!.id, name: 'lookup', input: { item: 'hat' } },
      ],
      stop_reason: 'tool_use',
      stop_sequence: null,
      usage: {
        input_tokens: turn.promptIds.length,
        output_tokens: turn.sampledIds.length,
        cache_creation_input_tokens: 0,
        cache_read_input_tokens: 0,
      },
    });
  });

  it('does not fork where cache markers move and strings become blocks', async () => {
    const { session } = open({ replies: [TWO_CALLS, ANSWER, ANSWER] });
    const marked = (text: string) => [{ type: 'text', text, cache_control: { type: 'ephemeral' } }];
    const first = await create(session, { system, messages: [{ role: 'user', content: question }], tools: messageTools });
    const results = resultsOf(first.content);
    const one = await create(session, {
      system: marked(system),
      tools: messageTools.map((tool) => ({ ...tool, cache_control: { type: 'ephemeral' } })),
      messages: [
        { role: 'user', content: marked(question) },
        { role: 'assistant', content: first.content.map((block) => ({ ...block, cache_control: { type: 'ephemeral' } })) },
        { role: 'user', content: [results[0], { ...results[1], content: marked('{"price":1}'), is_error: false }] },
      ],
    });
    await create(session, {
      system,
      tools: messageTools,
      messages: [
        { role: 'user', content: question },
        { role: 'assistant', content: first.content },
        { role: 'user', content: results.map((result) => ({ ...result, content: [{ type: 'text', text: result.content }] })) },
        { role: 'assistant', content: one.content[0]!.text },
        { role: 'user', content: marked('And?') },
      ],
    });
    expectLinear(session.seal());
  });

  it('keeps the order of tool results, texts and system messages', async () => {
    const { session } = open();
    await create(session, {
      system: [
        { type: 'text', text: 'a' },
        { type: 'text', text: 'b' },
      ],
      messages: [
        { role: 'user', content: 'q' },
        {
          role: 'assistant',
          content: [
            { type: 'thinking', thinking: 'hm', signature: 's' },
            { type: 'text', text: 'x' },
            { type: 'tool_use', id: 'c1', name: 'f', input: { n: 1 } },
            { type: 'text', text: 'y' },
          ],
        },
        {
          role: 'user',
          content: [
            { type: 'text', text: 'first' },
            { type: 'tool_result', tool_use_id: 'c1', content: [{ type: 'text', text: 'r' }], is_error: true },
            { type: 'tool_result', tool_use_id: 'c2' },
            { type: 'text', text: 'one' },
            { type: 'text', text: 'two' },
          ],
        },
        { role: 'system', content: 'be brief' },
      ],
    });
    const f = { name: 'f', arguments: '{"n":1}' };
    expect((session.seal() as [Turn])[0].request.messages).toEqual([
      { role: 'system', content: 'a\nb' },
      { role: 'user', content: 'q' },
      { role: 'assistant', content: 'xy', reasoning: 'hm', tool_calls: [{ id: 'c1', type: 'function', function: f }] },
      { role: 'user', content: 'first' },
      { role: 'tool', content: 'r', tool_call_id: 'c1' },
      { role: 'tool', content: '', tool_call_id: 'c2' },
      { role: 'user', content: 'one\ntwo' },
      { role: 'system', content: 'be brief' },
    ]);
  });

  it.each(['{"n": 1.0, "m": -0, "k": 1e400, "z": 10000000000000000001}', '0', '[1]', '"{}"', 'null'])(
    'goes on after a call with the arguments %s, spelled as they were sampled in the turn',
    async (given) => {
      for (const stream of [false, true]) {
        const { session } = open({ replies: [`<tool_call>{"name":"f","arguments":${given}}</tool_call><|im_end|>`, ANSWER] });
        const messages = [{ role: 'user', content: 'q' }];
        const { content, stop_reason } = await create(session, { messages, stream });
        expect(stop_reason).toBe('tool_use');
        const results = { role: 'user', content: resultsOf(content) };
        await create(session, { messages: [...messages, { role: 'assistant', content }, results], stream });
        const turns = session.seal();
        expect(turns[0]!.response.tool_calls![0]!.function.arguments).toBe(given);
        expectLinear(turns);
      }
    },
  );
});

describe('what a Messages request may ask', () => {
  const messages = [{ role: 'user', content: question }];

  it('is sampled as asked, in the run’s bounds, and the reason for its end is given', async () => {
    const { session, engine } = open({ spec: { roles: { default: { trainable: false } } }, replies: [ANSWER, ANSWER] });
    const settings = { temperature: 0.5, top_p: 0.9, top_k: 7 };
    expect(await create(session, { messages, max_tokens: 64_000, ...settings })).toMatchObject({ stop_reason: 'end_turn' });
    expect(engine.requests[0]!.sampling).toEqual({ temperature: 0.5, topP: 0.9, topK: 7, maxTokens: 64_000 });
    expect(await create(session, { messages, max_tokens: 3 })).toMatchObject({
      stop_reason: 'max_tokens',
      usage: { output_tokens: 3 },
    });
    const [, cut] = session.seal() as [Turn, Turn];
    expect(cut.sampledIds.length).toBe(3);
  });

  it('names the stop sequence that was said first, and none where none was', async () => {
    const { session } = open({ replies: [ANSWER, ANSWER] });
    const asked = { messages, stop_sequences: ['$9', '🙂', '81', '$81'] };
    expect(await create(session, asked)).toMatchObject({ stop_reason: 'stop_sequence', stop_sequence: '81' });
    expect(await create(session, { messages, stop_sequences: ['$9'] })).toMatchObject({
      stop_reason: 'end_turn',
      stop_sequence: null,
    });
  });

  it('shows the policy its own tools only, and says what it left out and ignored', async () => {
    const { session } = open();
    const response = await postTo(session, 'messages', {
      messages,
      tools: [
        { type: 'web_search_20250305', name: 'web_search' },
        { type: 'custom', ...messageTools[0] },
        { name: 'decoy', input_schema: {}, defer_loading: true },
        { type: 'mcp_toolset', mcp_server_name: 'x' },
      ],
      tool_choice: { type: 'auto', disable_parallel_tool_use: true },
      thinking: { type: 'adaptive' },
      output_config: { effort: 'high' },
      metadata: { user_id: 'u' },
      'naïve\n名': 1,
    });
    expect(response.status).toBe(200);
    const [turn] = session.seal() as [Turn];
    const left = ['tools:web_search', 'tools:decoy', 'tools:mcp_toolset', 'tool_choice.disable_parallel_tool_use'];
    const ignored = ['thinking', 'metadata', 'naïve\n名', ...left, 'output_config.effort'];
    expect(turn.request.ignored).toEqual(ignored);
    expect(response.headers.get('x-trainyard-ignored')).toBe(ignored.join(',').replaceAll(/[ï\n名]/g, '?'));
    const lookup = { type: 'function', function: { name: 'lookup', description: 'price', parameters: { type: 'object' } } };
    expect(turn.request.tools).toEqual([lookup]);
    expect([...turn.promptIds]).toEqual([...renderer.open(turn.request.messages, turn.request.tools)]);
  });

  it('reports no more names than a header holds', async () => {
    const { session } = open();
    const tools = Array.from({ length: 200 }, (_, i) => ({ name: `decoy_of_many_${i}`, input_schema: {}, defer_loading: true }));
    const response = await postTo(session, 'messages', { messages, tools });
    expect(response.headers.get('x-trainyard-ignored')).toHaveLength(2000);
    expect((session.seal() as [Turn])[0].request.ignored).toHaveLength(200);
  });

  it('shows no tools where the choice is none', async () => {
    const { session } = open();
    await create(session, { messages, tools: messageTools, tool_choice: { type: 'none' } });
    expect((session.seal() as [Turn])[0].request.tools).toEqual([]);
  });

  it.each(['output_format', 'output_config'])('marks an answer that is not of the format in %s', async (name) => {
    const format = {
      type: 'json_schema',
      schema: { type: 'object', properties: { price: { type: 'number' } }, required: ['price'] },
    };
    const { session } = open({ replies: ['{"price":81}<|im_end|>', '{"price":"x"}<|im_end|>'] });
    const asked = { messages, [name]: name === 'output_config' ? { format } : format };
    await create(session, asked);
    expect((await create(session, asked)).content).toEqual([{ type: 'text', text: '{"price":"x"}' }]);
    const [good, bad] = session.seal() as [Turn, Turn];
    expect(good.formatError).toBeUndefined();
    expect(bad.formatError).toMatch(/price/);
    expect(good.request.ignored).toBeUndefined();
  });

  it('is in one of three lists, and in no two', () => {
    const names = [...messagesParameters.honoured, ...messagesParameters.ignored, ...Object.keys(messagesParameters.refused)];
    expect(new Set(names).size).toBe(names.length);
  });
});

describe('counting tokens', () => {
  it('gives the length of the prompt that the same question then has, and records nothing', async () => {
    const { session, engine } = open({
      replies: [TWO_CALLS, ANSWER],
      spec: { limits: { turns: 2, tokens: 1e6, deadlineMs: 1000 } },
    });
    const messages: object[] = [{ role: 'user', content: question }];
    for (const turn of [0, 1]) {
      const asked = { system, messages, tools: messageTools };
      const counted = await (await postTo(session, 'messages/count_tokens?beta=true', asked)).json();
      expect(session.turns.length).toBe(turn);
      const { content } = await create(session, asked);
      expect(counted).toEqual({ input_tokens: session.turns[turn]!.promptIds.length });
      messages.push({ role: 'assistant', content }, { role: 'user', content: resultsOf(content) });
    }
    expect(engine.requests.length).toBe(2);
    expectLinear(session.turns);
  });

  it('refuses what asking would refuse', async () => {
    const { session } = open();
    const response = await postTo(session, 'messages/count_tokens', { messages: [] });
    expect(response.status).toBe(400);
    expect(await response.json()).toMatchObject({ type: 'error', error: { type: 'invalid_request_error', param: 'messages' } });
  });
});

it('the models are listed as Anthropic’s clients read them', async () => {
  const { session } = open();
  const { baseURL, apiKey, fetch } = session.model();
  const headers = { 'x-api-key': apiKey, 'anthropic-version': '2023-06-01' };
  const model = { type: 'model', id: 'policy', display_name: 'policy', created_at: expect.stringMatching(/^\d{4}-.*Z$/) };
  const told = await (await fetch(`${baseURL}/models`, { headers })).json();
  expect(told).toEqual({ data: [model], has_more: false, first_id: 'policy', last_id: 'policy' });
});
