/**
 * What a policy sampled, read into words and rendered again by its template, is what it sampled: wherever any words do that. The white
 * space that a template writes around calls is the template's, and in nobody's content.
 */
import { describe, expect, it } from 'vitest';
import type { Message } from '../../../src/core/types.ts';
import { drawConversation, SNIPPETS, seeded } from './conversations.ts';
import { MODELS, type Model, type ModelName } from './models.ts';

const CONVERSATIONS = 1500;
/** Without anything that reads like a tag: a template writes those as they are, so a reader cannot tell who did. */
const HARMLESS = [SNIPPETS[0], SNIPPETS[4]];
const NAMES = Object.keys(MODELS) as ModelName[];

/** A JSON text in a member, with white space around it. */
const SPACED_JSON = /:"(\s|\\[nt])*[\d[{](.*)"/;

const user: Message = { role: 'user', content: 'How much?' };

/** What was said, as a client gets it that is streamed to, one token at a time; never a text of white space alone. */
function streamed({ renderer }: Model, ids: Int32Array): Pick<Message, 'content' | 'reasoning'> & { readonly calls: number } {
  const stream = renderer.streamResponse();
  const pieces = [...ids].flatMap((id) => [...stream.push(Int32Array.of(id))]);
  pieces.push(...stream.end(ids, renderer.readResponse(ids)));
  let [content, reasoning, block, calls] = ['', '', '', 0];
  for (const piece of [...pieces, undefined]) {
    if (piece?.kind === 'text') block += piece.text;
    else {
      if (block !== '') expect(block.trim()).not.toBe('');
      content += block;
      block = '';
    }
    if (piece?.kind === 'reasoning') reasoning += piece.text;
    if (piece?.kind === 'call') calls++;
  }
  return { content, reasoning, calls };
}

/** The message that a client sends back, with the ids of calls that it was given. */
function readBack(model: Model, ids: Int32Array): Message {
  const { content, reasoning, toolCalls } = model.renderer.readResponse(ids);
  expect(streamed(model, ids)).toEqual({ content: content ?? '', reasoning: reasoning ?? '', calls: toolCalls.length });
  const tool_calls = toolCalls.map((call, i) => ({ id: `call0000${i}`, type: 'function' as const, function: call }));
  return { role: 'assistant', content, ...(tool_calls.length > 0 ? { tool_calls } : {}), ...(reasoning ? { reasoning } : {}) };
}

const resultsOf = ({ tool_calls = [] }: Message): readonly Message[] =>
  tool_calls.map(({ id }) => ({ role: 'tool', content: '3', tool_call_id: id }));

/** Ids of the turn behind `before`, as it stands in a prompt. */
function turnIn({ renderer }: Model, whole: Int32Array, before: Int32Array): Int32Array {
  return whole.slice(before.length, whole.indexOf(renderer.stopIds[0]!, before.length) + 1);
}

describe.each(NAMES)('calls in the words of %s', (name) => {
  it('are read such that the template writes them again, whatever text is before them', { timeout: 300_000 }, async () => {
    const model = await MODELS[name]();
    const traits = { thoughts: name === 'Qwen3', calls: name === 'Llama-3.1' ? 1 : 3, anyOrder: false };
    const different: string[] = [];
    let compared = 0;
    for (let seed = 0; seed < CONVERSATIONS; seed++) {
      const { opening, tools, turns } = drawConversation(seeded(seed), traits, HARMLESS);
      const said = turns[0]!.said;
      // Text of white space alone is nobody's words: see below.
      if (said.tool_calls === undefined || (said.content !== '' && said.content?.trim() === '')) continue;
      // Qwen3-Coder's template shows a text that reads `3` and the number alike; the spaces around it are lost.
      if (name === 'Qwen3-Coder' && said.tool_calls.some(({ function: made }) => SPACED_JSON.test(made.arguments))) continue;
      const before = model.renderer.open(opening, tools);
      const whole = model.renderer.open([...opening, said, ...resultsOf(said)], tools);
      // Mistral's writes a system message in another place once results follow.
      if (before.some((id, i) => id !== whole[i])) continue;
      const again = readBack(model, turnIn(model, whole, before));
      const rendered = model.renderer.open([...opening, again, ...resultsOf(again)], tools);
      compared++;
      if (whole.join() !== rendered.join()) different.push(JSON.stringify({ said, again }));
    }
    expect(different.slice(0, 3)).toEqual([]);
    expect(compared).toBeGreaterThan(CONVERSATIONS / 4);
  });

  it('are written again with any white space around them, if any text does that', async () => {
    const model = await MODELS[name]();
    const spaces = ['', ' ', '\n', ' \n', '\n\n', '\n\n\n', '\n \n\n'];
    const written = (message: Message): string => {
      const before = model.renderer.open([user], []);
      const whole = model.renderer.open([user, message, ...resultsOf(message)], []);
      return model.tokenizer.decode(turnIn(model, whole, before).subarray(0, -1));
    };
    const called = (count: number, content: string): Message => {
      const call = { type: 'function' as const, function: { name: 'f', arguments: '{"a":1}' } };
      return {
        role: 'assistant',
        content,
        tool_calls: Array.from({ length: count }, (_, i) => ({ ...call, id: `call0000${i}` })),
      };
    };
    const call = written(called(1, ''));
    const found = { again: 0, otherwise: 0 };
    for (const [lead, space] of spaces.flatMap((one) => spaces.map((other) => [one, other] as const))) {
      for (const between of [undefined, ...spaces]) {
        const text = `${lead}I look.${space}${call}${between === undefined ? '' : `${between}${call}`}`;
        const ids = Int32Array.of(...model.tokenizer.encodeRendered(text), model.renderer.stopIds[0]!);
        const message = readBack(model, ids);
        if (message.tool_calls === undefined) continue;
        const candidates = spaces.map((end) => called(message.tool_calls!.length, `${lead}I look.${end}`));
        const possible = (name !== 'Llama-3.1' || between === undefined) && candidates.some((one) => written(one) === text);
        found[possible ? 'again' : 'otherwise']++;
        if (possible) expect(written(message)).toBe(text);
        else expect(`${lead}I look.${space}`).toContain(message.content);
      }
    }
    const writesText = !['Llama-3.1', 'Mistral Nemo'].includes(name);
    expect(found.again > 0).toBe(writesText);
  });
});

describe('white space between a text and calls in the words of Qwen3', () => {
  const call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>';
  it.each([
    ['as the template writes it', `I look.\n${call}\n${call}`, 'I look.'],
    ['one line more', `I look.\n\n${call}`, 'I look.\n'],
    ['another than the template writes', `I look. ${call}`, 'I look. '],
    ['none', `I look.${call}`, 'I look.'],
    ['and behind them', `I look.\n${call}\n`, 'I look.'],
    ['and two lines between them', `I look.\n${call}\n\n${call}`, 'I look.'],
    ['and words behind them', `I look.\n${call}\nSo.\n`, 'I look.\n\nSo.\n'],
    ['and nothing else', `\n\n${call}\n`, null],
    ['but no call', 'I look.\n', 'I look.\n'],
  ])('%s', async (_, text, content) => {
    const model = await MODELS.Qwen3();
    const ids = Int32Array.of(...model.tokenizer.encodeRendered(text), model.renderer.stopIds[0]!);
    expect(readBack(model, ids).content).toBe(content);
  });
});
