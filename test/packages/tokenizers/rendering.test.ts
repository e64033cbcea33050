/**
 * A conversation that grows by appending has the ids of the whole conversation rendered afresh: for each template that lets it grow,
 * on thousands of conversations. Where a turn cannot be extended, the template really writes something differently.
 */
import { describe, expect, it } from 'vitest';
import type { Message, Tool } from '../../../src/core/types.ts';
import { type Conversation, drawConversation, seeded, type Traits } from './conversations.ts';
import { MODELS, type Model, type ModelName } from './models.ts';

const CONVERSATIONS = 5000;

const TRAITS: Partial<Record<ModelName, Traits>> = {
  'models/base': { thoughts: false, calls: 2, anyOrder: true },
  'Qwen2.5': { thoughts: false, calls: 2, anyOrder: true },
  Qwen3: { thoughts: true, calls: 2, anyOrder: true },
  'Qwen3-Coder': { thoughts: false, calls: 2, anyOrder: true },
  // It refuses several calls in one message, and tools that no user message can show.
  'Llama-3.1': { thoughts: false, calls: 1, anyOrder: false },
};

interface Count {
  extended: number;
  rewritten: number;
  turns: number;
  readonly mismatches: string[];
}

/** Plays a conversation whose policy says, token by token, what the template would write. */
function play(model: Model, { tools, opening, turns }: Conversation, count: Count): void {
  const { renderer } = model;
  const messages = [...opening];
  let promptIds = renderer.open(messages, tools);
  for (const { said, next } of turns) {
    const sampledIds = canonicalTurn(model, messages, said, tools);
    const previous = {
      promptIds,
      sampledIds,
      stopReason: 'stop' as const,
      request: { messages: [...messages], tools },
      response: said,
    };
    const extended = renderer.extend(previous, next);
    messages.push(said, ...next);
    const afresh = renderer.open(messages, tools);
    const grew = startsWith(afresh, promptIds, sampledIds);
    count.turns++;
    if (extended) count.extended++;
    else count.rewritten++;
    if (extended ? !same(extended, afresh) : grew)
      count.mismatches.push(JSON.stringify({ tools, opening, turns, at: messages.length }));
    promptIds = afresh;
  }
}

const same = (a: Int32Array, b: Int32Array): boolean => a.length === b.length && a.every((id, i) => id === b[i]);

/** What the template writes for a turn, as a policy would sample it. */
function canonicalTurn(
  { renderer, template }: Model,
  messages: readonly Message[],
  said: Message,
  tools: readonly Tool[],
): Int32Array {
  // With a result after it, no template leaves out a thought.
  const whole = template.encode([...messages, said, { role: 'tool', content: 'x' }], tools, true);
  const before = template.encode(messages, tools, true);
  return whole.slice(before.length, whole.indexOf(renderer.stopIds[0]!, before.length) + 1);
}

function startsWith(ids: Int32Array, first: Int32Array, second: Int32Array): boolean {
  return first.every((id, i) => id === ids[i]) && second.every((id, i) => id === ids[first.length + i]);
}

describe.each(Object.entries(TRAITS))('a conversation in the words of %s', (name, traits) => {
  it('has, grown turn by turn, the ids of rendering it as a whole', { timeout: 300_000 }, async () => {
    const model = await MODELS[name as ModelName]();
    const count: Count = { extended: 0, rewritten: 0, turns: 0, mismatches: [] };
    for (let seed = 0; seed < CONVERSATIONS; seed++) play(model, drawConversation(seeded(seed), traits), count);
    expect(count.mismatches.slice(0, 3)).toEqual([]);
    expect(count.extended).toBeGreaterThan(count.turns / 2);
    expect(count.turns).toBeGreaterThan(CONVERSATIONS);
    if (model.renderer.extends) expect(count.rewritten).toBe(0);
    else expect(count.rewritten).toBeGreaterThan(count.turns / 10);
  });
});

describe('a turn whose first space is one token with what the template writes before it', () => {
  it('keeps its tokens and the text of a fresh rendering, whatever the tokens of that are', async () => {
    const { renderer, tokenizer } = await MODELS['Qwen2.5']();
    const messages: Message[] = [{ role: 'user', content: 'a' }];
    const next: Message[] = [{ role: 'user', content: 'b' }];
    const promptIds = renderer.open(messages, []);
    const sampledIds = tokenizer.encodeRendered('\n\nHello<|im_end|>');
    const extended = renderer.extend({ promptIds, sampledIds, stopReason: 'stop' }, next)!;
    const afresh = renderer.open([...messages, { role: 'assistant', content: '\n\nHello' }, ...next], []);
    expect(startsWith(extended, promptIds, sampledIds)).toBe(true);
    expect(same(extended, afresh)).toBe(false);
    expect(tokenizer.decode(extended)).toBe(tokenizer.decode(afresh));
  });
});

describe('a conversation in the words of Mistral Nemo', () => {
  it('forks where there are tools, a system message or calls, and the template does write it differently there', async () => {
    const model = await MODELS['Mistral Nemo']();
    const { renderer } = model;
    const user: Message = { role: 'user', content: 'a' };
    const said: Message = { role: 'assistant', content: 'b' };
    const system: Message = { role: 'system', content: 'c' };
    const tools: Tool[] = [{ type: 'function', function: { name: 'f', description: 'd', parameters: { type: 'object' } } }];
    for (const [messages, offered] of [
      [[user], tools],
      [[system, user], []],
      [[system, user], tools],
    ] as const) {
      const promptIds = renderer.open(messages, offered);
      const previous = { promptIds, sampledIds: Int32Array.of(renderer.stopIds[0]!), stopReason: 'stop' as const };
      const recorded = { ...previous, request: { messages, tools: offered }, response: said };
      expect(renderer.extend(recorded, [{ ...user, content: 'e' }])).toBeUndefined();
      expect(
        startsWith(renderer.open([...messages, said, { ...user, content: 'e' }], offered), promptIds, new Int32Array()),
      ).toBe(false);
      expect(renderer.extend(previous, [user])).toBeUndefined();
    }
    // The policy's own id is in the sampled text, the client has another.
    const call = { id: 'abcdefghi', type: 'function' as const, function: { name: 'f', arguments: '{}' } };
    const sampledIds = model.tokenizer.encodeRendered('[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "123456789"}]</s>');
    const called: Message = { role: 'assistant', content: null, tool_calls: [call] };
    const previous = { promptIds: renderer.open([user], []), sampledIds, stopReason: 'stop' as const };
    const result: Message = { role: 'tool', content: '3', tool_call_id: call.id };
    expect(
      renderer.extend({ ...previous, request: { messages: [user], tools: [] }, response: called }, [result]),
    ).toBeUndefined();
    expect(startsWith(renderer.open([user, called, result], []), previous.promptIds, sampledIds)).toBe(false);
  });

  it('grows turn by turn where there is nothing of that', async () => {
    const model = await MODELS['Mistral Nemo']();
    const messages: Message[] = [{ role: 'user', content: 'a' }];
    for (const word of ['🙂', '[INST]', '</s>', 'x ']) {
      const said: Message = { role: 'assistant', content: word };
      const promptIds = model.renderer.open(messages, []);
      const sampledIds = Int32Array.of(...model.tokenizer.encodeText(word), model.renderer.stopIds[0]!);
      const previous = {
        promptIds,
        sampledIds,
        stopReason: 'stop' as const,
        request: { messages: [...messages], tools: [] },
        response: said,
      };
      const next: Message = { role: 'user', content: word };
      messages.push(said, next);
      expect(model.renderer.extend(previous, [next])).toEqual(model.renderer.open(messages, []));
    }
  });

  it('takes results that do not say whose they are, and demands ids of nine characters', async () => {
    const { renderer, tokenizer } = await MODELS['Mistral Nemo']();
    const tool_calls = ['aaaaaaaaa', 'bbbbbbbbb', 'ccccccccc'].map((id) => ({
      id,
      type: 'function' as const,
      function: { name: 'f', arguments: '{}' },
    }));
    const opening: Message[] = [
      { role: 'user', content: 'a' },
      { role: 'assistant', content: null, tool_calls },
    ];
    const results: Message[] = [
      { role: 'tool', content: '1' },
      { role: 'tool', content: '2', tool_call_id: 'aaaaaaaaa' },
      { role: 'tool', content: '3' },
    ];
    const text = tokenizer.decode(renderer.open([...opening, ...results], []));
    expect([...text.matchAll(/"content": (\d), "call_id": "(\w)/g)].map((match) => match.slice(1).join(''))).toEqual([
      '1b',
      '2a',
      '3c',
    ]);
    expect(renderer.toolCallIdLength).toBe(9);
    const badId = opening.map((message) => ({
      ...message,
      ...(message.tool_calls ? { tool_calls: [{ ...tool_calls[0]!, id: 'short' }] } : {}),
    }));
    expect(() => renderer.open(badId, [])).toThrow(expect.objectContaining({ code: 'REQUEST_INVALID' }));
  });
});
