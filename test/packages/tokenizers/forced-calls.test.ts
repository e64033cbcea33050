/** Calls that are begun for a policy, with real templates and tokenizers: what they begin with, and that they are read to their end. */
import { describe, expect, it } from 'vitest';
import type { Message, Tool } from '../../../src/core/types.ts';
import { createRenderer } from '../../../src/tokens/renderer.ts';
import { createTokenizer } from '../../../src/tokens/tokenizer.ts';
import { MODELS } from './models.ts';

const tools: readonly Tool[] = [
  { type: 'function', function: { name: 'get_price', description: 'd', parameters: { type: 'object', properties: {} } } },
];
const user: Message = { role: 'user', content: 'How much?' };

describe('a call that is begun', () => {
  it.each([
    ['models/base', '<tool_call>{"name":"get_price","arguments":', '<tool_call>{"name":', '{"a": 1}}</tool_call>'],
    ['Qwen2.5', '<tool_call>\n{"name": "get_price", "arguments":', '<tool_call>\n{"name":', ' {"a": 1}}\n</tool_call>'],
    ['Qwen3', '<tool_call>\n{"name": "get_price", "arguments":', '<tool_call>\n{"name":', ' {"a": 1}}\n</tool_call>'],
    [
      'Qwen3-Coder',
      '<tool_call>\n<function=get_price>',
      '<tool_call>\n<function=',
      '\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>',
    ],
    ['Llama-3.1', '{"name": "get_price", "parameters":', '{"name":', ' {"a": 1}}'],
    [
      'Mistral Nemo',
      '[TOOL_CALLS][{"name": "get_price", "arguments":',
      '[TOOL_CALLS][{"name":',
      ' {"a": 1}, "id": "123456789"}]',
    ],
  ] as const)('of %s is what its template writes, and is read whole and token by token', async (name, named, any, rest) => {
    const { renderer, tokenizer } = await MODELS[name]();
    expect(tokenizer.decode(renderer.callBeginning(undefined)!)).toBe(any);
    const begun = renderer.callBeginning('get_price')!;
    expect(tokenizer.decode(begun)).toBe(named);
    const prompt = tokenizer.decode(renderer.open([user], tools));
    // The very ids that the whole text has there.
    const whole = tokenizer.encodeRendered(prompt + named);
    expect([...whole.slice(-begun.length)]).toEqual([...begun]);
    const sampled = Int32Array.of(...tokenizer.encodeText(rest), renderer.stopIds[0]!);
    const said = renderer.readResponse(sampled, [], begun);
    expect(said).toMatchObject({ content: null, toolCalls: [{ name: 'get_price' }] });
    expect(JSON.parse(said.toolCalls[0]!.arguments)).toEqual({ a: 1 });
    const stream = renderer.streamResponse([], begun);
    const pieces = [...sampled].flatMap((id) => [...stream.push(Int32Array.of(id))]);
    expect([...pieces, ...stream.end(sampled, said)]).toEqual([{ kind: 'call', index: 0, call: said.toolCalls[0] }]);
  });

  it('cannot be where the generation prompt opens thoughts', async () => {
    const { files } = await MODELS.Qwen3();
    const prompt = "{{- '<|im_start|>assistant\\n' }}";
    const chatTemplate = files.chatTemplate.replace(prompt, "{{- '<|im_start|>assistant\\n<think>\\n' }}");
    expect(chatTemplate).not.toBe(files.chatTemplate);
    expect(createRenderer(createTokenizer({ ...files, chatTemplate })).callBeginning('get_price')).toBeUndefined();
  });
});
