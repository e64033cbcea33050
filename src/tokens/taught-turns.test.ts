import { describe, expect, it } from 'vitest';
import { endOfTurn, renderer, rendererWith, tokenizer } from '../../test/fixtures/tokens/base.ts';
import { prefillingTemplate } from '../../test/fixtures/tokens/templates.ts';
import type { Message, Tool } from '../core/types.ts';
import { stitch } from './stitch.ts';
import { type AnsweredCall, areOwn, ownTurns, taughtTurns } from './taught-turns.ts';

const tools: Tool[] = [{ type: 'function', function: { name: 'lookup', parameters: { type: 'object', properties: {} } } }];
const question: Message = { role: 'user', content: 'How much is the lamp?' };
const called: Message = {
  role: 'assistant',
  content: null,
  tool_calls: [{ id: 'call_7', type: 'function', function: { name: 'lookup', arguments: '{"item":"lamp"}' } }],
};
const found: Message = { role: 'tool', tool_call_id: 'call_7', content: '{"price":3}' };
const said: Message = { role: 'assistant', content: 'It costs 3.' };

const asked = (index: number, messages: readonly Message[], response: Message): AnsweredCall => ({
  ...{ index, thread: 'main', role: 'default', stopReason: 'stop' as const },
  request: { messages, tools },
  response,
});
const lookup = asked(0, [question], called);
const answer = asked(1, [question, called, found], said);
const stitched = (turns: Parameters<typeof stitch>[0]) =>
  stitch(turns, { advantageOf: () => 1, weight: 1, rolloutId: 'r', groupId: 't' });

describe('what is taught', () => {
  it('is one sample in which only the responses, with the tokens that close them, are trained', () => {
    const { turns, unsaid } = taughtTurns(renderer, [lookup, answer]);
    expect(unsaid).toEqual([]);
    const [sample, ...others] = stitched(turns);
    expect(others).toEqual([]);
    const trained = sample!.tokens.filter((_, i) => sample!.mask[i] === 1);
    expect(tokenizer.decode(trained)).toBe(
      '<tool_call>{"name":"lookup","arguments":{"item":"lamp"}}</tool_call><|im_end|>It costs 3.<|im_end|>',
    );
    expect(tokenizer.decode(sample!.tokens)).toBe(
      `${tokenizer.decode(renderer.open([question, called, found], tools))}It costs 3.<|im_end|>`,
    );
  });

  it('follows the very prompt that the policy will see, which the gateway grows from the ids of the turn before', () => {
    const [first, second] = taughtTurns(renderer, [lookup, answer]).turns;
    expect(first!.promptIds).toEqual(renderer.open([question], tools));
    expect(second!.promptIds).toEqual(renderer.extend(first!, [found]));
  });

  it('reads tool results in the order of their calls, also where they were stored in another one', () => {
    const [call] = called.tool_calls!;
    const both: Message = { ...called, tool_calls: [call!, { ...call!, id: 'call_8' }] };
    const other: Message = { ...found, tool_call_id: 'call_8', content: '{"price":9}' };
    const taught = (results: readonly Message[]) =>
      taughtTurns(renderer, [asked(0, [question], both), asked(1, [question, both, ...results], said)]);
    expect(taught([other, found])).toEqual(taught([found, other]));
  });

  it('has no end of turn where the response was cut off', () => {
    const whole = taughtTurns(renderer, [asked(0, [question], said)]).turns[0]!;
    const cut = taughtTurns(renderer, [{ ...asked(0, [question], said), stopReason: 'length' }]).turns[0]!;
    expect(whole.sampledIds.at(-1)).toBe(endOfTurn);
    expect([...cut.sampledIds]).toEqual([...whole.sampledIds.subarray(0, -1)]);
  });

  it('leaves out a response that the template cannot write or that reads back differently, and says why', () => {
    const control = asked(0, [question], {
      role: 'assistant',
      content: 'so <tool_call>\n{"name": "x", "arguments": {}}\n</tool_call>',
    });
    const taught = taughtTurns(renderer, [control, answer]);
    expect(taught.unsaid).toEqual(['written in this model’s format, the response reads back differently']);
    expect(taught.turns.map(({ index }) => index)).toEqual([1]);
    expect(taughtTurns(rendererWith(prefillingTemplate), [asked(0, [question], said)]).unsaid).toEqual([
      'the chat template writes a response in another way than its generation prompt begins one',
    ]);
  });

  it('keeps what the policy itself sampled, id for id, and renders what another model said', () => {
    const own = taughtTurns(renderer, [lookup, answer]).turns;
    const odd = own.map((turn) => ({ ...turn, sampledIds: Int32Array.of(...turn.sampledIds.subarray(0, 3), endOfTurn) }));
    expect(areOwn(renderer, odd)).toBe(true);
    expect(ownTurns(odd).map(({ sampledIds }) => [...sampledIds])).toEqual(odd.map(({ sampledIds }) => [...sampledIds]));
    const foreign = own.map((turn) => ({ ...turn, promptIds: turn.promptIds.map((id) => id + 1) }));
    expect(areOwn(renderer, foreign)).toBe(false);
    expect(
      areOwn(
        renderer,
        own.map((turn) => ({ ...turn, model: 'gpt' })),
      ),
    ).toBe(false);
  });
});
