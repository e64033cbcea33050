import { readFile } from 'node:fs/promises';
import { describe, expect, it } from 'vitest';
import { ASKERS } from '../../test/fixtures/gateway/askers.ts';
import { ANSWER, ask, clientOf, open, renderer, say, stitched, tokenizer, tools } from '../../test/fixtures/gateway/streams.ts';
import { refuses } from '../../test/fixtures/refusal.ts';
import { rendererWith } from '../../test/fixtures/tokens/base.ts';
import { strictTemplate } from '../../test/fixtures/tokens/templates.ts';
import type { Turn } from '../core/types.ts';

const OPENING = '<tool_call>{"name":"lookup","arguments":';
const REST = '{"item": "Binklex glove"}}</tool_call><|im_end|>';
const CALL = { name: 'lookup', arguments: '{"item": "Binklex glove"}' };
const OTHER = { type: 'function' as const, function: { name: 'order', description: 'buy', parameters: { type: 'object' } } };
describe('a forced tool', () => {
  it.each(Object.entries(ASKERS))('is called, and its beginning is context: %s', async (_, asker) => {
    const { session } = open({ replies: [REST] });
    const { text, call, end } = await asker(session, true);
    expect([text ?? '', call, end ?? 'tool_use']).toEqual(['', CALL, expect.stringMatching(/^tool_(use|calls)$/)]);
    const [turn] = session.seal() as [Turn];
    expect([...turn.sampledIds]).toEqual(say(REST));
    expect(tokenizer.decode(turn.promptIds).endsWith(`<|im_start|>assistant\n${OPENING}`)).toBe(true);
    expect(turn.response).toMatchObject({ content: null, tool_calls: [{ function: CALL }] });
  });

  it('leaves the name to the policy where any of several will do', async () => {
    const { session } = open({ replies: [`"order","arguments":{}}</tool_call><|im_end|>`] });
    const { choices } = await clientOf(session, true).chat.completions.create({
      model: 'policy',
      messages: ask,
      tools: [...tools, OTHER],
      tool_choice: 'required',
    });
    expect(choices[0]!.message.tool_calls).toMatchObject([{ function: { name: 'order', arguments: '{}' } }]);
    expect(tokenizer.decode(session.turns[0]!.promptIds).endsWith('<tool_call>{"name":')).toBe(true);
  });

  it('is trained on what was sampled alone, in one sample with the rest of the conversation', async () => {
    const { session } = open({ replies: [REST, ANSWER, REST] });
    const model = session.model();
    const first = await model.generate({ messages: ask, tools, tool: 'lookup' });
    const result = { role: 'tool' as const, content: '{"price":81}', tool_call_id: first.toolCalls[0]!.id };
    const second = await model.generate({ messages: [...ask, first.message, result], tools });
    const more = [...ask, first.message, result, second.message, { role: 'user' as const, content: 'and now?' }];
    await model.generate({ messages: more, tools, tool: 'lookup' });
    const turns = session.seal();
    expect(turns.map(({ after, fork }) => [after, fork])).toEqual([
      [undefined, undefined],
      [0, undefined],
      [1, undefined],
    ]);
    const [sample, ...others] = stitched(turns);
    expect(others).toEqual([]);
    const trained = [...sample!.tokens].filter((_, i) => sample!.mask[i] === 1);
    expect(trained).toEqual([...say(REST), ...say(ANSWER), ...say(REST)]);
    const begun = say(OPENING).length;
    for (const { promptIds } of [turns[0]!, turns[2]!]) {
      expect([...promptIds.subarray(-begun)]).toEqual(say(OPENING));
      expect([...sample!.mask.subarray(promptIds.length - begun, promptIds.length + 1)]).toEqual([...Array(begun).fill(0), 1]);
    }
  });

  it('that is cut off, or not called after all, is what was said', async () => {
    const { session } = open({ replies: [REST, 'no!<|im_end|>'] });
    const cut = await session.model().generate({ messages: ask, tools, tool: 'lookup', maxTokens: 3 });
    expect(cut).toMatchObject({ toolCalls: [], stopReason: 'length' });
    expect(cut.text).toBe(OPENING + tokenizer.decode(say(REST).slice(0, 3)));
    const refusing = await session.model().generate({ messages: ask, tools, tool: 'lookup' });
    expect(refusing.text).toBe(`${OPENING}no!`);
  });

  it('does not end at a stop text in its beginning', async () => {
    const { session } = open({ replies: [REST] });
    const { toolCalls } = await session.model().generate({ messages: ask, tools, tool: 'lookup', stop: ['name'] });
    expect(toolCalls).toMatchObject([{ function: CALL }]);
  });

  it('follows ids that were given as they are', async () => {
    const { session } = open({ replies: [REST] });
    const { turn, toolCalls } = await session.model().generate({ promptIds: [5, 6], tools, tool: 'lookup' });
    expect([...turn!.promptIds]).toEqual([5, 6, ...say(OPENING)]);
    expect(toolCalls).toMatchObject([{ function: CALL }]);
  });
});

describe('a tool that cannot be forced', () => {
  it('is refused by generate under its own name', async () => {
    const { session } = open();
    const odd = [{ type: 'function' as const, function: { name: 'a "b"' } }];
    for (const [given, tool] of [[tools, 'sing'] as const, [odd, 'a "b"'] as const]) {
      const refused = session.model().generate({ messages: ask, tools: given, tool });
      await expect(refused).rejects.toMatchObject({
        code: 'REQUEST_INVALID',
        param: 'tool',
        message: expect.stringMatching(/^tool: /),
      });
    }
  });

  it('is refused where the model’s template writes calls that cannot be read', async () => {
    const calls = "{%- for c in m.tool_calls or [] %}{{- '[' + c.function.name + ']' }}{%- endfor %}";
    const chatTemplate = `{%- for m in messages %}{{- m.content }}${calls}{{- '<|im_end|>' }}{%- endfor %}`;
    const { session } = open({ replies: [REST], renderer: rendererWith(chatTemplate) });
    await refuses(
      session.model().generate({ messages: ask, tools, tool: 'lookup' }),
      'REQUEST_INVALID',
      'cannot be forced on this model',
    );
    expect(session.turns).toEqual([]);
  });
});

describe('the beginning of a call', () => {
  const fixture = (name: string) => readFile(new URL(`../../test/fixtures/tokens/${name}.jinja`, import.meta.url), 'utf8');

  it('is what the template writes, in each format', async () => {
    const textsOf = (chatTemplate: string) => {
      const { callBeginning } = rendererWith(chatTemplate);
      return ['get_price', undefined].map((name) => {
        const ids = callBeginning(name);
        return ids && tokenizer.decode(ids);
      });
    };
    expect(textsOf(strictTemplate)).toEqual(['<tool_call>{"name": "get_price", "arguments":', '<tool_call>{"name":']);
    expect(textsOf(await fixture('llama-3.1'))).toEqual(['{"name": "get_price", "parameters":', '{"name":']);
    expect(textsOf(await fixture('qwen3-coder'))).toEqual(['<tool_call>\n<function=get_price>', '<tool_call>\n<function=']);
    expect(renderer.callBeginning('a<b')).toBeUndefined();
  });
});
