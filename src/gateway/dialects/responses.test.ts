import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { eventsIn } from '../../../test/fixtures/gateway/messages.ts';
import type { Message, Turn } from '../../core/types.ts';
import { type Piece, piecesOf } from '../../tokens/response-stream.ts';
import type { AnswerHead } from './dialect.ts';
import { responses } from './responses.ts';
import { conversationOf, type Item, memoryOf, ResponsesMemory } from './responses-writer.ts';

const headOf = (id: string): AnswerHead => ({
  id,
  model: 'policy',
  startedAt: 0,
  promptTokens: 1,
  toolCallId: (_, index) => `call_${id}_${index}`,
  tokenText: String,
  text: String,
});

const user = { role: 'user', content: 'a' };

/** What an answer is when all of it is known. */
function turnOf(pieces: readonly Piece[], head: AnswerHead): Turn {
  const textsOf = (kind: 'reasoning' | 'text') => pieces.flatMap((piece) => (piece.kind === kind ? [piece.text] : []));
  const made = pieces.flatMap((piece) => (piece.kind === 'call' ? [piece.call] : []));
  const calls = made.map((call, i) => ({ id: head.toolCallId(0, i), type: 'function' as const, function: call }));
  const reasoning = textsOf('reasoning').join('');
  const content = textsOf('text').join('');
  const response: Message = {
    role: 'assistant',
    content: calls.length > 0 && content === '' ? null : content,
    ...(calls.length > 0 ? { tool_calls: calls } : {}),
    ...(reasoning === '' ? {} : { reasoning }),
  };
  const ids = Int32Array.of(1, 2);
  return { response, promptIds: ids, sampledIds: ids, logprobs: Float32Array.of(0, 0), stopReason: 'stop', endedAt: 0 } as never;
}

const json = (memory: object, turn: Turn, head: AnswerHead): readonly Item[] => {
  const { writer } = responses.read({ input: [user] }, memory);
  return (writer.whole([turn], head) as { output: Item[] }).output;
};

function streamed(memory: object, pieces: readonly Piece[], turn: Turn, head: AnswerHead): readonly Item[] {
  const { writer } = responses.read({ input: [user], stream: true }, memory);
  const events = writer.events(head);
  const text = events.start() + pieces.map((piece) => events.pieces([{ choice: 0, piece }])).join('') + events.end([turn]);
  const last = eventsIn<{ type: string; response: { output: Item[] } }>(text).at(-1)!;
  return last.response.output;
}

const readBack = (memory: object, items: readonly unknown[]) =>
  responses.read({ input: [user, ...items, user] }, memory).request.messages;

const word = fc.string({ unit: 'binary', minLength: 1, maxLength: 5 });
const reasoned = word.map((text): Piece => ({ kind: 'reasoning', text }));
const texted = word.map((text): Piece => ({ kind: 'text', text }));
const called = fc.record({ name: word, arguments: fc.json() }).map((call): Piece => ({ kind: 'call', index: 0, call }));
const answers = fc
  .tuple(fc.array(reasoned, { maxLength: 3 }), fc.array(fc.oneof(texted, called), { maxLength: 6 }))
  .map(([thought, said]) => {
    let index = 0;
    return [...thought, ...said].map((piece) => (piece.kind === 'call' ? { ...piece, index: index++ } : piece));
  });

const asReferences = (items: readonly Item[]) => items.map(({ id }) => ({ type: 'item_reference', id }));
/** As clients do that keep of our reasoning only its name. */
const withoutThoughts = (items: readonly Item[], name: 'id' | 'encrypted_content') =>
  items.map((item) => (item['type'] === 'reasoning' ? { type: 'reasoning', summary: [], [name]: item[name] } : item));

describe('any answer in the Responses API', () => {
  it('reads back to the message that was recorded, however it was written and however it comes back', () => {
    fc.assert(
      fc.property(answers, (pieces) => {
        const head = headOf('r1-x');
        const turn = turnOf(pieces, head);
        const { content, reasoning, tool_calls: calls = [] } = turn.response;
        const whole = piecesOf({ content, toolCalls: calls.map((call) => call.function), ...(reasoning ? { reasoning } : {}) });
        const apart = {};
        const memory = {};
        const live = streamed(memory, pieces, turn, head);
        const replay = streamed(memory, whole, turn, head);
        const again = streamed(memory, whole, turn, head);
        expect(again).toEqual(replay);
        for (const [kept, items] of [
          [apart, json(apart, turn, head)],
          [memory, live],
          [memory, replay],
        ] as const) {
          const told = [items, asReferences(items), withoutThoughts(items, 'id'), withoutThoughts(items, 'encrypted_content')];
          for (const given of told) expect(readBack(kept, given)).toEqual([user, turn.response, user]);
          expect(conversationOf(memoryOf(kept).response('resp_r1-x')!)).toEqual([user, turn.response]);
          expect(new Set(items.map(({ id }) => id)).size).toBe(items.length);
        }
      }),
      { numRuns: 300 },
    );
  });

  it('has its reasoning before its words, as text', () => {
    const pieces: Piece[] = [
      { kind: 'reasoning', text: 'Hm, ' },
      { kind: 'reasoning', text: 'yes.' },
      { kind: 'text', text: 'Yes.' },
    ];
    const head = headOf('r1-x');
    const output = streamed({}, pieces, turnOf(pieces, head), head);
    expect(output).toMatchObject([
      { id: 'rs_r1-x_0', type: 'reasoning', summary: [], content: [{ type: 'reasoning_text', text: 'Hm, yes.' }] },
      { id: 'msg_r1-x_1', type: 'message', content: [{ text: 'Yes.' }] },
    ]);
    expect(json({}, turnOf(pieces, head), head)).toEqual(output);
    expect(JSON.stringify(output[0]!['encrypted_content'])).not.toContain('Hm');
  });
});

describe('reasoning that a client sends', () => {
  const read = (...items: object[]) => readBack({}, items);
  const said = { role: 'assistant', content: 'Yes.' };

  it('belongs to the message after it, from its content or its summary', () => {
    const expected = [user, { role: 'assistant', content: 'Yes.', reasoning: 'Hm.' }, user];
    expect(read({ type: 'reasoning', summary: [], content: [{ type: 'reasoning_text', text: 'Hm.' }] }, said)).toEqual(expected);
    expect(read({ type: 'reasoning', summary: [{ type: 'summary_text', text: 'Hm.' }] }, said)).toEqual(expected);
  });

  it('says nothing where its text is not known here', () => {
    expect(read({ type: 'reasoning', id: 'rs_else', summary: [], encrypted_content: 'abc' })).toEqual([user, user]);
  });
});

it('messages of a client join their parts; developers are the system; results of calls may be parts', () => {
  const parts = [
    { type: 'input_text', text: 'a' },
    { type: 'input_text', text: 'b' },
  ];
  const input = [
    { role: 'developer', content: parts },
    { role: 'user', content: parts },
    {
      type: 'message',
      role: 'assistant',
      content: [
        { type: 'output_text', text: 'a' },
        { type: 'refusal', refusal: 'b' },
      ],
    },
    { type: 'function_call', call_id: 'c', name: 'f', arguments: '{}' },
    { type: 'function_call_output', call_id: 'c', output: parts },
  ];
  expect(responses.read({ input }, {}).request.messages).toEqual([
    { role: 'system', content: 'a\nb' },
    { role: 'user', content: 'a\nb' },
    { role: 'assistant', content: 'ab', tool_calls: [{ id: 'c', type: 'function', function: { name: 'f', arguments: '{}' } }] },
    { role: 'tool', content: 'a\nb', tool_call_id: 'c' },
  ]);
});

it('the memory of responses shares what a long conversation has in common, and forgets the oldest', () => {
  const memory = new ResponsesMemory();
  const kept = (i: number) => memory.response(`resp_${i}`);
  memory.keep({ id: 'resp_0', previous: undefined, messages: [], items: [{ id: 'msg_first' }] });
  for (let i = 0; i < 10_001; i++) {
    memory.keep({
      id: `resp_${i}`,
      previous: kept(i - 1),
      messages: [{ role: 'user', content: `${i}` }],
      items: [{ id: `msg_${i}` }],
    });
  }
  expect(kept(10_000)!.previous).toBe(kept(9999));
  expect(kept(10_000)!.messages.length).toBe(1);
  const whole = conversationOf(kept(10_000)!);
  expect([whole.length, whole[0]!.content, whole.at(-1)!.content]).toEqual([10_001, '0', '10000']);
  expect([kept(0), memory.item('msg_0'), memory.item('msg_first')]).toEqual([undefined, undefined, undefined]);
  expect(memory.item('msg_1')).toBeDefined();
});
