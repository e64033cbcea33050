import { describe, expect, it } from 'vitest';
import { files, rendererWith, tokenizer } from '../../test/fixtures/tokens/base.ts';
import {
  countingTemplate,
  forgetfulTemplate,
  lastThoughtTemplate,
  numberingTemplate,
} from '../../test/fixtures/tokens/templates.ts';
import type { Message } from '../core/types.ts';
import type { Renderer } from './renderer.ts';

const user: Message = { role: 'user', content: 'a' };
const result: Message = { role: 'tool', content: 'b' };
const thought: Message = { role: 'assistant', content: 'c', reasoning: 'd' };
const said: Message = { role: 'assistant', content: 'e' };

/** The turn that said `response` after these messages, followed by `next`: extended, and rendered afresh. */
function both(renderer: Renderer, messages: readonly Message[], text: string, response: Message, next: Message) {
  const promptIds = renderer.open(messages, []);
  const sampledIds = tokenizer.encodeRendered(`${text}<|im_end|>`);
  const previous = { promptIds, sampledIds, stopReason: 'stop' as const, request: { messages, tools: [] }, response };
  return { extended: renderer.extend(previous, [next]), afresh: renderer.open([...messages, response, next], []) };
}

describe('a turn is extended', () => {
  const renderer = rendererWith(lastThoughtTemplate);

  it('where its own thoughts stay, empty ones too', () => {
    const one = both(renderer, [user], '<think>d</think>c', thought, result);
    expect(one.extended).toEqual(one.afresh);
    const empty = both(renderer, [user], '<think></think>c', { ...thought, reasoning: '' }, result);
    expect(empty.extended).toEqual(empty.afresh);
  });

  it('not where an earlier turn’s thoughts went with it', () => {
    for (const between of [result, user]) {
      const { extended, afresh } = both(renderer, [user, thought, between], 'e', said, result);
      expect(extended).toBeUndefined();
      expect(tokenizer.decode(afresh)).not.toContain('<think>');
    }
  });

  it('not where a question takes away thoughts from before the last one', () => {
    const forgetful = rendererWith(forgetfulTemplate);
    const once = both(forgetful, [user], '<think>d</think>c', thought, user);
    expect(once.extended).toEqual(once.afresh);
    const twice = both(forgetful, [user, thought, user], 'e', said, user);
    expect(twice.extended).toBeUndefined();
    expect(tokenizer.decode(twice.afresh)).not.toContain('<think>');
  });

  it('by a result where the template wants a call before it', () => {
    const wanting = rendererWith(`{%- for m in messages %}{%- if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls %}
      {{- raise_exception('no call before a result') }}{%- endif %}{%- endfor %}${files.chatTemplate}`);
    const text = '<tool_call>{"name":"f","arguments":{}}</tool_call>';
    const call = { id: 'g', type: 'function' as const, function: { name: 'f', arguments: '{}' } };
    const { extended, afresh } = both(wanting, [user], text, { role: 'assistant', content: null, tool_calls: [call] }, result);
    expect(extended).toEqual(afresh);
  });

  it('not where the template counts messages, in front or one by one', () => {
    for (const source of [countingTemplate, numberingTemplate]) {
      expect(both(rendererWith(source), [user], 'e', said, user).extended).toBeUndefined();
      expect(rendererWith(source).extends).toBe(false);
    }
  });

  it('not by messages that the template refuses; a fresh rendering then says why', () => {
    const refusing = rendererWith(`{%- for m in messages %}{%- if m.role == 'system' and not loop.first %}
      {{- raise_exception('system messages come first') }}{%- endif %}{%- endfor %}${files.chatTemplate}`);
    expect(refusing.extends).toBe(true);
    const system: Message = { role: 'system', content: 'f' };
    const previous = { promptIds: refusing.open([user], []), sampledIds: Int32Array.of(1), stopReason: 'length' as const };
    expect(refusing.extend(previous, [system])).toBeUndefined();
    expect(() => refusing.open([user, said, system], [])).toThrow(/system messages come first/);
  });
});
