import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { assembled, type Block, create, eventsIn, postTo, question } from '../../../test/fixtures/gateway/messages.ts';
import { ANSWER, failsAfter, LOOKUP, open, renderer, say } from '../../../test/fixtures/gateway/streams.ts';
import type { Message, Turn } from '../../core/types.ts';
import type { Piece } from '../../tokens/response-stream.ts';
import type { AnswerHead } from './dialect.ts';
import { messages as dialect, messageBody, messageEvents } from './messages.ts';

const messages = [{ role: 'user', content: question }];
const asked = { messages, stream: true };

/** What an answer is when it comes back in the history. */
function readBack(content: readonly unknown[]): Message {
  const body = { messages: [...messages, { role: 'assistant', content }, ...messages] };
  return dialect.read(body, {}).request.messages[1]!;
}

describe('a streamed message', () => {
  it('comes as named events in Anthropic’s order, a new block for text after a call', async () => {
    const { session } = open({ replies: [`Well${LOOKUP.replace('<|im_end|>', '')}, then.<|im_end|>`] });
    const response = await postTo(session, 'messages', asked);
    expect(response.headers.get('content-type')).toMatch(/^text\/event-stream/);
    const events = eventsIn(await response.text());
    const [turn] = session.seal() as [Turn];
    const start = events[0]!.message!;
    expect(start).toMatchObject({ type: 'message', role: 'assistant', content: [], stop_reason: null, model: 'policy' });
    expect(start.usage).toMatchObject({ input_tokens: turn.promptIds.length, output_tokens: 0 });
    const kinds = events.filter(({ type }, i) => type !== 'content_block_delta' || events[i - 1]!.type !== type);
    const block = ['content_block_start', 'content_block_delta', 'content_block_stop'];
    const order = ['message_start', ...block, ...block, ...block, 'message_delta', 'message_stop'];
    expect(kinds.map(({ type }) => type)).toEqual(order);
    const started = events.filter(({ type }) => type === 'content_block_start').map((event) => event.content_block);
    const id = turn.response.tool_calls![0]!.id;
    expect(started).toEqual([
      { type: 'text', text: '' },
      { type: 'tool_use', id, name: 'lookup', input: {} },
      { type: 'text', text: '' },
    ]);
    expect(events.at(-2)).toMatchObject({
      delta: { stop_reason: 'tool_use', stop_sequence: null },
      usage: { output_tokens: turn.sampledIds.length },
    });
  });

  it('without a word has no block, streamed or not', async () => {
    const { session } = open({ replies: ['<|im_end|>', '<|im_end|>'] });
    for (const stream of [true, false]) {
      expect(await create(session, { messages, stream })).toMatchObject({ content: [], stop_reason: 'end_turn' });
    }
  });

  it('that fails after its start ends with an error event and leaves no turn', async () => {
    const { session } = open({ reply: failsAfter('It costs') });
    const events = eventsIn(await (await postTo(session, 'messages', asked)).text());
    expect(events[0]!.type).toBe('message_start');
    expect(events.at(-1)).toMatchObject({ type: 'error', error: { type: 'api_error', message: 'the engine is gone' } });
    expect(session.seal()).toEqual([]);
  });

  it('retried is the same message', async () => {
    const { session } = open({ replies: [LOOKUP, ANSWER] });
    const headers = { 'idempotency-key': 'k' };
    const texts: string[] = [];
    for (const _ of [0, 1]) texts.push(await (await postTo(session, 'messages', asked, headers)).text());
    expect(assembled(eventsIn(texts[1]!))).toEqual(assembled(eventsIn(texts[0]!)));
    expect(session.seal().length).toBe(1);
  });
});

const call = fc.record({ name: fc.constantFrom('f', 'lookup'), arguments: fc.json() });
const callText = ({ name, arguments: given }: { name: string; arguments: string }) =>
  `<tool_call>{"name":${JSON.stringify(name)},"arguments":${given}}</tool_call>`;

describe('a message streamed and in one body', () => {
  it('reads back to what the turn says, and says the same', async () => {
    const part = fc.oneof(
      fc.string({ unit: 'grapheme' }),
      fc.constantFrom(' ', '<tool_call>', '\n', '\u2028', '\u0085'),
      call.map(callText),
    );
    await fc.assert(
      fc.asyncProperty(fc.array(part, { maxLength: 5 }), async (parts) => {
        const text = `${parts.join('')}<|im_end|>`;
        const { session } = open({
          reply: async function* () {
            for (const id of say(text)) yield [id];
          } as never,
        });
        const streamed = await create(session, asked);
        const whole = await create(session, { messages });
        const turns = session.seal();
        expect(sameWords(readBack(streamed.content))).toEqual(sameWords(turns[0]!.response));
        expect(sameWords(readBack(whole.content))).toEqual(sameWords(turns[1]!.response));
        // Anthropic refuses such blocks, so clients drop them.
        const texts = streamed.content.flatMap((block) => (block.type === 'text' ? [block.text] : []));
        if (turns[0]!.response.tool_calls) expect(texts.filter((one) => one?.trim() === '')).toEqual([]);
        expect([streamed.stop_reason, streamed.usage]).toEqual([whole.stop_reason, whole.usage]);
      }),
      { numRuns: 60 },
    );
  });

  it('keeps thinking apart, and signs it, since clients drop what is not signed', () => {
    const text = fc.string({ minLength: 1 });
    fc.assert(
      fc.property(fc.option(text, { nil: undefined }), fc.array(fc.oneof(text, call), { maxLength: 5 }), (reasoning, parts) => {
        const calls = parts.filter((part) => typeof part !== 'string');
        const words = parts.filter((part) => typeof part === 'string').join('');
        const pieces: Piece[] = reasoning === undefined ? [] : [{ kind: 'reasoning', text: reasoning }];
        let index = 0;
        for (const one of parts) {
          pieces.push(typeof one === 'string' ? { kind: 'text', text: one } : { kind: 'call', index: index++, call: one });
        }
        const response: Message = {
          role: 'assistant',
          content: words === '' && calls.length > 0 ? null : words,
          ...(calls.length > 0
            ? { tool_calls: calls.map((one, i) => ({ id: head.toolCallId(0, i), type: 'function' as const, function: one })) }
            : {}),
          ...(reasoning === undefined ? {} : { reasoning }),
        };
        const turn = {
          response,
          stopReason: 'stop',
          promptIds: new Int32Array(2),
          sampledIds: new Int32Array(3),
        } as unknown as Turn;
        const encoder = messageEvents(head, []);
        const told = pieces.map((piece) => encoder.pieces([{ choice: 0, piece }])).join('');
        const streamed = assembled(eventsIn(encoder.start() + told + encoder.end([turn])));
        const whole = JSON.parse(JSON.stringify(messageBody(turn, head, []))) as typeof streamed;
        for (const { content } of [streamed, whole]) {
          expect(sameWords(readBack(content))).toEqual(sameWords(response));
          for (const { type, signature } of content) if (type === 'thinking') expect(signature).not.toBe('');
        }
        expect(notText(streamed.content)).toEqual(notText(whole.content));
        expect({ ...streamed, content: [] }).toEqual({ ...whole, content: [] });
      }),
    );
  });
});

const head: AnswerHead = {
  id: 'x',
  model: 'policy',
  startedAt: 0,
  promptTokens: 5,
  toolCallId: (_, index) => `call_${index}`,
  tokenText: renderer.tokenText,
  text: renderer.text,
};

const notText = (content: readonly Block[]) =>
  content.filter(({ type }) => type !== 'text').map((block) => JSON.parse(JSON.stringify(block)));

/** The spelling of arguments aside. Ids count. */
function sameWords({ tool_calls: calls = [], content, ...rest }: Message): object {
  const parsed = calls.map((one) => ({ ...one, function: [one.function.name, JSON.parse(one.function.arguments)] }));
  return JSON.parse(JSON.stringify({ ...rest, content: content ?? '', parsed }));
}
