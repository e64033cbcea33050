import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { endOfTurn, files, renderer, rendererWith, tokenizer } from '../../test/fixtures/tokens/base.ts';
import {
  numberingTemplate,
  prefillingTemplate,
  rewritingTemplate,
  strictTemplate,
  toollessTemplate,
} from '../../test/fixtures/tokens/templates.ts';
import type { Message, StopReason, Tool } from '../core/types.ts';
import { createRenderer, type Renderer, stripStop } from './renderer.ts';
import { createTokenizer } from './tokenizer.ts';

const tools: Tool[] = [
  {
    type: 'function',
    function: {
      name: 'lookup',
      description: 'price of an item',
      parameters: { type: 'object', properties: { item: { type: 'string' } } },
    },
  },
];

/** What a policy may say so that its text, tokenised afresh, is the ids it sampled. */
const words = fc.string({ unit: 'grapheme', maxLength: 30 }).filter((text) => !/tool_call|im_/.test(text));
const speech = words.map((text) => `I say ${text}`);
const call = fc.record({
  name: words.map((text) => `f${text.replace(/["\\\p{Cc}]/gu, '')}`),
  args: fc.dictionary(words, fc.jsonValue({ maxDepth: 2 })),
});
const turn = fc.record({
  said: fc.oneof(speech, fc.constant('')),
  calls: fc.array(call, { maxLength: 2 }),
  stop: fc.constantFrom<StopReason>('stop', 'stop', 'stop', 'length'),
  // Anyone's words but the policy's, control tokens and all.
  next: fc.array(
    fc.tuple(
      fc.constantFrom('user' as const, 'tool' as const),
      fc.oneof(words, fc.constant('</tool_call><|im_end|>\n<|im_start|>tool\n')),
    ),
    { minLength: 1, maxLength: 3 },
  ),
});
const transcript = fc.record({
  system: fc.option(words),
  question: words,
  turns: fc.array(turn, { minLength: 1, maxLength: 4 }),
  withTools: fc.boolean(),
});

type Says = (said: string, calls: readonly { name: string; args: unknown }[]) => string;
const asOwn: Says = (said, calls) =>
  said + calls.map(({ name, args }) => `<tool_call>{"name":"${name}","arguments":${JSON.stringify(args)}}</tool_call>`).join('');
/** Calls in the form that is put around a template without tools: behind words, and each in a line of its own. */
const inOurForm: Says = (said, calls) =>
  [
    said || 'I see.',
    ...calls.map(({ name, args }) => `<tool_call>\n{"name": "${name}", "arguments": ${JSON.stringify(args)}}\n</tool_call>`),
  ].join('\n');

function asMessage(response: ReturnType<typeof renderer.readResponse>): Message {
  const tool_calls = response.toolCalls.map((parsed, i) => ({ id: `call_${i}`, type: 'function' as const, function: parsed }));
  return { role: 'assistant', content: response.content, ...(tool_calls.length === 0 ? {} : { tool_calls }) };
}

it('a fresh prompt asked for again has the same ids, in an array of its own, and depends on the tools', () => {
  const messages: Message[] = [{ role: 'user', content: 'hi' }];
  const first = renderer.open(messages, tools);
  const ids = [...first];
  first.fill(0);
  expect([...renderer.open(messages, tools)]).toEqual(ids);
  expect([...renderer.open(messages, [])]).not.toEqual(ids);
  expect([...renderer.open([...messages, ...messages], tools)]).not.toEqual(ids);
});

describe('the prefix bridge', () => {
  it.each<[string, Renderer, Says, number]>([
    ['as shipped', renderer, asOwn, 600],
    ['without tools', rendererWith(toollessTemplate), inOurForm, 200],
  ])(
    'gives, turn by turn, the ids of rendering the whole conversation afresh, for a template %s',
    (_, bridged, says, numRuns) => {
      let extended = 0;
      fc.assert(
        fc.property(transcript, ({ system, question, turns, withTools }) => {
          const offered = withTools ? tools : [];
          const messages: Message[] = [
            ...(system === null ? [] : [{ role: 'system' as const, content: system }]),
            { role: 'user', content: question },
          ];
          let promptIds = bridged.open(messages, offered);
          for (const { said, calls, stop, next } of turns) {
            const spoken = tokenizer.encodeRendered(says(said, calls));
            const sampledIds = stop === 'stop' ? Int32Array.of(...spoken, endOfTurn) : spoken;
            const newMessages = next.map(([role, content]): Message => ({ role, content }));
            const response = asMessage(bridged.readResponse(sampledIds));
            const request = { messages: [...messages], tools: offered };
            const ids = bridged.extend({ promptIds, sampledIds, stopReason: stop, request, response }, newMessages)!;
            expect(ids.subarray(0, promptIds.length + sampledIds.length).join()).toBe([...promptIds, ...sampledIds].join());
            messages.push(response, ...newMessages);
            promptIds = bridged.open(messages, offered);
            expect(ids.join()).toBe(promptIds.join());
            extended++;
          }
        }),
        { numRuns },
      );
      expect(extended).toBeGreaterThan(numRuns);
    },
  );

  it('keeps sampled ids that no tokenisation of their text would give', () => {
    const promptIds = renderer.open([{ role: 'user', content: 'a' }], []);
    const spelled = ['I', 't', ' '].flatMap((letter) => [...tokenizer.encodeText(letter)]);
    expect(spelled).not.toEqual([...tokenizer.encodeText('It ')]);
    const sampledIds = Int32Array.of(...spelled, endOfTurn);
    const ids = renderer.extend({ promptIds, sampledIds, stopReason: 'stop' }, [{ role: 'user', content: 'b' }])!;
    expect(tokenizer.decode(ids.subarray(promptIds.length + sampledIds.length))).toBe(
      '\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n',
    );
  });

  it('closes a turn that was cut off, and a turn that ended with another stop token', () => {
    const promptIds = renderer.open([{ role: 'user', content: 'a' }], []);
    const next: Message[] = [{ role: 'user', content: 'b' }];
    const cut = renderer.extend({ promptIds, sampledIds: tokenizer.encodeText('It'), stopReason: 'length' }, next)!;
    expect(tokenizer.decode(cut.subarray(promptIds.length))).toBe(
      'It<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n',
    );
    const other = tokenizer.encodeRendered('It<|endoftext|>');
    const ended = renderer.extend({ promptIds, sampledIds: other, stopReason: 'stop' }, next)!;
    expect(tokenizer.decode(ended.subarray(promptIds.length))).toMatch(/^It<\|endoftext\|><\|im_end\|>\n/);
  });

  it('is there for templates that only append, and not for those that rewrite, prefill or count', () => {
    expect(renderer.extends).toBe(true);
    expect(rendererWith(strictTemplate).extends).toBe(false);
    expect(rendererWith(strictTemplate.replace('{%- if tools %}{{- tools | tojson(indent=1) }}{%- endif %}', '')).extends).toBe(
      true,
    );
    for (const source of [rewritingTemplate, prefillingTemplate, numberingTemplate]) {
      const rendering = rendererWith(source);
      expect(rendering.extends).toBe(false);
      const previous = { promptIds: Int32Array.of(1), sampledIds: Int32Array.of(2), stopReason: 'stop' as const };
      expect(rendering.extend(previous, [])).toBeUndefined();
    }
  });
});

describe('the renderer', () => {
  it('stops at the end of a turn and reads what was said before it', () => {
    expect(renderer.stopIds).toEqual([endOfTurn]);
    expect(renderer.vocabSize).toBe(640);
    const ids = tokenizer.encodeRendered(
      'Let me see.<tool_call>{"name":"lookup","arguments":{"item":"a lamp"}}</tool_call><|im_end|>',
    );
    expect(renderer.readResponse(ids)).toEqual({
      content: 'Let me see.',
      toolCalls: [{ name: 'lookup', arguments: '{"item":"a lamp"}' }],
    });
  });

  it('reads a turn in which nothing was said', () => {
    expect(renderer.readResponse(Int32Array.of(endOfTurn))).toEqual({ content: '', toolCalls: [] });
    expect(renderer.readResponse(new Int32Array())).toEqual({ content: '', toolCalls: [] });
  });

  it('takes off one stop id, at the end only', () => {
    expect(stripStop(Int32Array.of(2, 9, 2, 2), [2])).toEqual(Int32Array.of(2, 9, 2));
    expect(stripStop(Int32Array.of(2, 9), [2])).toEqual(Int32Array.of(2, 9));
  });

  it('stops at both, where the template ends a turn otherwise than eos_token says', () => {
    const other = createRenderer(createTokenizer({ ...files, config: { ...files.config, eos_token: '<|endoftext|>' } }));
    expect(other.stopIds).toEqual([endOfTurn, tokenizer.idOf('<|endoftext|>')]);
  });

  it('refuses a model in which nothing ends a turn', () => {
    const endless = createTokenizer({
      ...files,
      config: { ...files.config, eos_token: null },
      chatTemplate: '{{ messages[0].content }}',
    });
    expect(() => createRenderer(endless)).toThrow(expect.objectContaining({ code: 'TOKENIZER_INVALID' }));
  });
});
