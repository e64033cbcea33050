/** Clients send the results of parallel calls as they come in. The policy reads them in the order of its calls, in every dialect. */
import { describe, expect, it } from 'vitest';
import { postTo } from '../../test/fixtures/gateway/messages.ts';
import { expectLinear } from '../../test/fixtures/gateway/served.ts';
import { open, tokenizer } from '../../test/fixtures/gateway/streams.ts';
import type { Session } from '../core/contracts.ts';
import type { Message } from '../core/types.ts';

const call = (item: string): string => `<tool_call>{"name":"lookup","arguments":{"item":"${item}"}}</tool_call>`;
const REPLIES = [`Let me see.${call('glove')}${call('hat')}<|im_end|>`, `${call('coat')}<|im_end|>`, 'The hat.<|im_end|>'];
const parameters = { type: 'object', properties: { item: { type: 'string' } } };
const tool = { name: 'lookup', description: 'price', parameters };

/** Puts a client's results in another order than the calls'. */
type Mixed = <T>(results: readonly T[]) => readonly T[];

/** The conversation as this dialect holds it; `idsOf` gives the calls' ids of the latest turn. */
interface Form {
  readonly path: string;
  readonly tools: readonly object[];
  ask(conversation: readonly object[]): object;
  said(turn: Message): readonly object[];
  results(given: readonly (readonly [id: string, text: string])[]): readonly object[];
}

const idsOf = (session: Session): readonly string[] => session.turns.at(-1)!.response.tool_calls!.map(({ id }) => id);

const FORMS: Readonly<Record<string, Form>> = {
  'Chat Completions': {
    path: 'chat/completions',
    tools: [{ type: 'function', function: tool }],
    ask: (messages) => ({ messages }),
    said: ({ content, tool_calls }) => [{ role: 'assistant', content, tool_calls }],
    results: (given) => given.map(([tool_call_id, content]) => ({ role: 'tool', tool_call_id, content })),
  },
  Responses: {
    path: 'responses',
    tools: [{ type: 'function', ...tool }],
    ask: (input) => ({ input }),
    said: ({ content, tool_calls = [] }) => [
      ...(content ? [{ type: 'message', role: 'assistant', content }] : []),
      ...tool_calls.map(({ id, function: made }) => ({ type: 'function_call', call_id: id, ...made })),
    ],
    results: (given) => given.map(([call_id, output]) => ({ type: 'function_call_output', call_id, output })),
  },
  Messages: {
    path: 'messages',
    tools: [{ name: 'lookup', description: 'price', input_schema: parameters }],
    ask: (messages) => ({ messages, max_tokens: 100 }),
    said: ({ content, tool_calls = [] }) => {
      const uses = tool_calls.map(({ id, function: { name, arguments: given } }) => {
        return { type: 'tool_use', id, name, input: JSON.parse(given) as object };
      });
      return [{ role: 'assistant', content: [...(content ? [{ type: 'text', text: content }] : []), ...uses] }];
    },
    // One user message for each: clients differ.
    results: (given) =>
      given.map(([tool_use_id, text]) => ({ role: 'user', content: [{ type: 'tool_result', tool_use_id, content: text }] })),
  },
};

/** Two parallel calls, one more, and the answer. The client repeats what it has in another order each time. */
async function converse({ path, tools, ask, said, results }: Form, session: Session, stream: boolean, mixed: readonly Mixed[]) {
  const question = { role: 'user', content: 'Glove or hat?' };
  const post = async (conversation: readonly object[]): Promise<void> => {
    const response = await postTo(session, path, { ...ask(conversation), model: 'policy', tools, stream });
    await response.text();
    expect(response.status).toBe(200);
  };
  await post([question]);
  const [first, second] = idsOf(session);
  const prices = [[first!, '10 for the glove'] as const, [second!, '20 for the hat'] as const];
  const begun = [question, ...said(session.turns[0]!.response)];
  await post([...begun, ...results(mixed[0]!(prices))]);
  const third = [[idsOf(session)[0]!, '30 for the coat'] as const];
  await post([...begun, ...results(mixed[1]!(prices)), ...said(session.turns[1]!.response), ...results(third)]);
}

const asIs: Mixed = (results) => results;
const reversed: Mixed = (results) => results.toReversed();

describe.each(Object.entries(FORMS))('results of parallel calls in %s', (_, form) => {
  it.each([
    ['streamed', true],
    ['whole', false],
  ])(
    'are read in the order of the calls, and the conversation goes on if they come in another one (%s)',
    async (_how, stream) => {
      const ordered = open({ replies: REPLIES }).session;
      await converse(form, ordered, stream, [asIs, asIs]);
      const { session } = open({ replies: REPLIES });
      await converse(form, session, stream, [reversed, asIs]);
      expectLinear(session.turns);
      const promptOf = (one: Session): string => tokenizer.decode(one.turns[1]!.promptIds);
      expect(promptOf(session)).toBe(promptOf(ordered));
      expect(promptOf(session)).toMatch(/10 for the glove.*20 for the hat/s);
      expect(session.turns.map(({ request }) => request.messages)).toEqual(ordered.turns.map(({ request }) => request.messages));
      const another = open({ replies: REPLIES }).session;
      await converse(form, another, stream, [asIs, reversed]);
      expectLinear(another.turns);
    },
  );
});

it('results behind a previous response are read in the order of its calls', async () => {
  const { session } = open({ replies: REPLIES });
  const { tools } = FORMS['Responses']!;
  const first = (await (await postTo(session, 'responses', { input: 'Glove or hat?', tools })).json()) as { id: string };
  const [glove, hat] = idsOf(session);
  const input = FORMS['Responses']!.results([
    [hat!, '20 for the hat'],
    [glove!, '10 for the glove'],
  ]);
  await postTo(session, 'responses', { previous_response_id: first.id, input, tools });
  expectLinear(session.turns);
  expect(tokenizer.decode(session.turns[1]!.promptIds)).toMatch(/10 for the glove.*20 for the hat/s);
});

it('results of `generate`, and those that `render` puts behind a turn, are read in the order of the calls', async () => {
  const { session } = open({ replies: REPLIES });
  const model = session.model();
  const tools = [{ type: 'function' as const, function: tool }];
  const question = { role: 'user' as const, content: 'Glove or hat?' };
  const { message, turn } = await model.generate({ messages: [question], tools });
  const [glove, hat] = message.tool_calls!.map(({ id }) => id);
  const results: Message[] = [
    { role: 'tool', tool_call_id: hat!, content: '20 for the hat' },
    { role: 'tool', tool_call_id: glove!, content: '10 for the glove' },
  ];
  const rendered = model.render(results, { after: turn! });
  await model.generate({ messages: [question, message, ...results], tools });
  expectLinear(session.turns);
  expect([...session.turns[1]!.promptIds]).toEqual([...rendered]);
  expect(tokenizer.decode(rendered)).toMatch(/10 for the glove.*20 for the hat/s);
});
