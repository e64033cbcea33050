import type OpenAI from 'openai';
import { describe, expect, it } from 'vitest';
import { converseInChat, eventsIn, postTo } from '../../test/fixtures/gateway/messages.ts';
import { expectLinear } from '../../test/fixtures/gateway/served.ts';
import { clientOf, failsAfter, open, renderer, say, timeless } from '../../test/fixtures/gateway/streams.ts';
import type { Session } from '../core/contracts.ts';
import type { Turn } from '../core/types.ts';

type Input = OpenAI.Responses.ResponseInput;
type Response = OpenAI.Responses.Response;
type Events = OpenAI.Responses.ResponseStreamEvent;

const call = (item: string) => `<tool_call>{"name":"lookup","arguments":{"item": "${item}"}}</tool_call>`;
const BOTH = `Let me see.${call('glove')}${call('hat')}<|im_end|>`;
const BARE = `${call('glove')}\n${call('hat')}<|im_end|>`;
const ANSWER = 'The glove. 🙂<|im_end|>';
const parameters = { type: 'object', properties: { item: { type: 'string' } } };
const tools = [{ type: 'function' as const, name: 'lookup', description: 'price', parameters, strict: null }];
const instructions = 'You are a shop assistant.';
const question = 'Glove or hat?';
const FORMS = [
  ['streamed', true],
  ['as JSON', false],
] as const;
const basics = { model: 'policy', instructions, tools };

const callsIn = (response: Response) => response.output.filter((item) => item.type === 'function_call');
const resultsOf = (response: Response): Input =>
  callsIn(response).map(({ call_id }, i) => ({ type: 'function_call_output', call_id, output: `{"price":${i}}` }));

async function create(client: OpenAI, body: object, stream: boolean): Promise<Response> {
  if (!stream) return await client.responses.create(body as OpenAI.Responses.ResponseCreateParamsNonStreaming);
  // The helper puts the events together and checks that each fits what came before it.
  return await client.responses.stream(body as never).finalResponse();
}

const followUps: Record<string, (first: Response) => object> = {
  'the full input': (first) => ({ input: [{ role: 'user', content: question }, ...first.output, ...resultsOf(first)] }),
  'references to items': (first) => ({
    input: [
      { role: 'user', content: [{ type: 'input_text', text: question }] },
      ...first.output.map(({ id }) => ({ type: 'item_reference', id })),
      ...resultsOf(first),
    ],
  }),
  'references to text, calls without item ids': (first) => ({
    input: [
      { type: 'message', role: 'user', content: question },
      ...first.output.map((item) => {
        if (item.type !== 'function_call') return { id: item.id };
        return { type: 'function_call', call_id: item.call_id, name: item.name, arguments: item.arguments };
      }),
      ...resultsOf(first),
    ],
  }),
  'each call, without its item id, followed by its result': (first) => {
    const results = resultsOf(first);
    const said = first.output.filter((item) => item.type !== 'function_call');
    return {
      input: [
        { role: 'user', content: question },
        ...said,
        ...callsIn(first).flatMap(({ id: _, ...item }, i) => [item, results[i]]),
      ],
    };
  },
  'the name of the response': (first) => ({ previous_response_id: first.id, input: resultsOf(first) }),
};

/** The same in Chat Completions: what all of them must record. */
async function chatTurns(replies: readonly string[]): Promise<readonly Turn[]> {
  const { session } = open({ replies });
  const chatTools = tools.map(({ type, strict: _, ...given }) => ({ type, function: given }));
  await converseInChat(session, { system: instructions, question, tools: chatTools });
  return session.seal();
}

describe('a conversation in the Responses API', () => {
  for (const [how, next] of Object.entries(followUps)) {
    for (const replies of [BOTH, BARE].map((calls) => [calls, ANSWER])) {
      it.each(FORMS)(
        `with two calls at once goes on by ${how}, %s, and records what Chat Completions does (${replies[0]!.slice(0, 6)}…)`,
        async (_, stream) => {
          const { session } = open({ replies });
          const client = clientOf(session, true);
          const first = await create(client, { ...basics, input: question }, stream);
          expect(callsIn(first).map((item) => item.arguments)).toEqual(['{"item": "glove"}', '{"item": "hat"}']);
          const last = await create(client, { ...basics, ...next(first) }, stream);
          expect(last.output_text).toBe('The glove. 🙂');
          const turns = session.seal() as [Turn, Turn];
          expectLinear(turns);
          expect(turns.map((turn) => turn.request.dialect)).toEqual(['responses', 'responses']);
          expect(timeless(turns)).toEqual(timeless(await chatTurns(replies)));
        },
      );
    }
  }

  it('by the names of responses does not take the instructions of earlier ones along', async () => {
    const { session } = open({});
    const client = clientOf(session, true);
    const first = await create(client, { ...basics, input: 'one' }, false);
    const goingOn = { ...basics, instructions: 'Be brief.', previous_response_id: first.id, input: 'two' };
    const second = await create(client, goingOn, false);
    await create(client, { model: 'policy', previous_response_id: second.id, input: 'three' }, true);
    const said = session.seal().map(({ request }) => request.messages.map(({ role, content }) => `${role}: ${content}`));
    const answered = 'assistant: It costs $81. 🙂';
    expect(said[1]).toEqual(['system: Be brief.', 'user: one', answered, 'user: two']);
    expect(said[2]).toEqual(['user: one', answered, 'user: two', answered, 'user: three']);
  });

  it('keeps two answers in a row apart', async () => {
    const { session } = open({ replies: ['One,<|im_end|>', 'two.<|im_end|>', 'three<|im_end|>'] });
    const client = clientOf(session, true);
    const user = { role: 'user' as const, content: 'Count.' };
    const first = await create(client, { model: 'policy', input: [user] }, true);
    const second = await create(client, { model: 'policy', input: [user, ...first.output] }, false);
    await create(client, { model: 'policy', input: [user, ...first.output, ...second.output, user] }, false);
    const turns = session.seal();
    expect(turns.map((turn) => turn.after)).toEqual([undefined, 0, 1]);
    expect(turns[2]!.request.messages.map((message) => message.content)).toEqual(['Count.', 'One,', 'two.', 'Count.']);
  });

  it('is kept although the client says not to store it', async () => {
    const { session } = open({});
    const client = clientOf(session, true);
    const first = await create(client, { model: 'policy', input: 'one', store: false }, false);
    await create(client, { model: 'policy', input: 'two', previous_response_id: first.id }, false);
    expect(session.seal().map((turn) => [turn.after, turn.request.ignored])).toEqual([
      [undefined, ['store']],
      [0, undefined],
    ]);
  });

  it('that a retry asks for again has the same ids, and the same items', async () => {
    const { session } = open({ replies: [BOTH] });
    const headers = { 'idempotency-key': 'k' };
    const body = { ...basics, input: question };
    const client = clientOf(session, true);
    const first = await client.responses.create(body, { headers });
    expect(await client.responses.create(body, { headers })).toEqual(first);
    expect(session.seal().length).toBe(1);
  });
});

describe('the tools of a namespace', () => {
  // As Codex gives the tools of an MCP server.
  const secret = {
    type: 'function',
    name: 'get_secret',
    description: 'Tells it.',
    strict: false,
    parameters: { type: 'object' },
  };
  const space = { type: 'namespace', name: 'mcp__w', description: 'Tools in the mcp__w namespace.', tools: [secret] };
  const CALLED = 'So.<tool_call>{"name":"mcp__w__get_secret","arguments":{}}</tool_call><|im_end|>';
  const user = { role: 'user', content: question };

  it.each(FORMS)('are shown as functions, called by their own names, and the conversation goes on, %s', async (_, stream) => {
    const { session } = open({ replies: [CALLED, ANSWER, CALLED] });
    const client = clientOf(session, true);
    const given = { model: 'policy', tools: [...tools, space] };
    const first = await create(client, { ...given, input: [user] }, stream);
    const [called] = callsIn(first);
    expect(called).toMatchObject({ name: 'get_secret', namespace: 'mcp__w', arguments: '{}' });
    const result = { type: 'function_call_output', call_id: called!.call_id, output: '4711' };
    // Some clients give items back without what only we know them by.
    const own = { type: 'function_call', call_id: 'own', name: 'get_secret', namespace: 'mcp__w', arguments: '{}' };
    const input = [user, first.output[0], { ...own, call_id: called!.call_id }, result];
    const second = await create(client, { ...given, input }, stream);
    await create(client, { ...given, previous_response_id: second.id, input: [user] }, stream);
    const turns = session.seal();
    expectLinear(turns);
    expect(turns[0]!.request.tools.map((tool) => tool.function.name)).toEqual(['lookup', 'mcp__w__get_secret']);
    expect(turns[0]!.request.ignored).toBeUndefined();
    expect(turns[0]!.response.tool_calls![0]!.function.name).toBe('mcp__w__get_secret');
  });

  it('of the same name in two of them are two tools; two that the policy could not tell apart are refused by name', async () => {
    const { session } = open({});
    const asked = (...given: object[]) => post(session, { input: 'a', tools: given });
    expect((await asked(secret, space, { ...space, name: 'mcp__v' })).status).toBe(200);
    const names = session.turns[0]!.request.tools.map((tool) => tool.function.name);
    expect(names).toEqual(['get_secret', 'mcp__w__get_secret', 'mcp__v__get_secret']);
    const refused = await asked({ ...secret, name: 'mcp__w__get_secret' }, space);
    expect(refused.status).toBe(400);
    expect(await refused.json()).toMatchObject({
      error: {
        param: 'tools.1.tools.0.name',
        message: expect.stringContaining('two tools are called mcp__w__get_secret'),
      },
    });
  });

  it('can be demanded by name and namespace, or by a name that only one tool has', async () => {
    const { session } = open({ reply: () => say(CALLED) });
    const demand = (given: object, ...more: object[]) =>
      post(session, { input: 'a', tools: [...tools, space, ...more], tool_choice: { type: 'function', ...given } });
    const name = 'get_secret';
    const accepted = [
      await demand({ name, namespace: 'mcp__w' }),
      await demand({ name }),
      await demand({ name, namespace: 'mcp__w' }, { ...space, name: 'mcp__v' }),
    ];
    for (const response of accepted) {
      expect(response.status).toBe(200);
      expect(await response.json()).toMatchObject({ output: expect.arrayContaining([expect.objectContaining({ name })]) });
    }
    expect((await demand({ name }, { ...space, name: 'mcp__v' })).status).toBe(400);
    expect((await demand({ name, namespace: 'mcp__x' })).status).toBe(400);
  });

  it('that are no functions are named, with their namespace, as without effect', async () => {
    const { session } = open({});
    await post(session, { input: 'a', tools: [{ ...space, tools: [{ type: 'custom', name: 'patch' }, secret] }] });
    expect(session.turns[0]!.request).toMatchObject({
      ignored: ['tools[0]:custom:mcp__w__patch'],
      tools: [{ function: { name: 'mcp__w__get_secret' } }],
    });
  });
});

describe('a response', () => {
  it('has the fields that OpenAI gives it', async () => {
    const { session } = open({ replies: [BOTH] });
    const response = await create(clientOf(session, true), { ...basics, input: question, metadata: { a: 'b' } }, false);
    const [turn] = session.seal() as [Turn];
    const part = { type: 'output_text', text: 'Let me see.', annotations: [], logprobs: [] };
    const made = (index: number, item: string) => ({
      id: expect.stringMatching(/^fc_r1-/),
      type: 'function_call',
      call_id: turn.response.tool_calls![index]!.id,
      name: 'lookup',
      arguments: `{"item": "${item}"}`,
      status: 'completed',
    });
    expect(response).toMatchObject({
      id: expect.stringMatching(/^resp_r1-/),
      object: 'response',
      created_at: Math.floor(turn.startedAt / 1000),
      status: 'completed',
      error: null,
      incomplete_details: null,
      instructions,
      metadata: { a: 'b' },
      model: 'policy',
      tools,
      tool_choice: 'auto',
      parallel_tool_calls: true,
      text: { format: { type: 'text' } },
      usage: {
        input_tokens: turn.promptIds.length,
        output_tokens: turn.sampledIds.length,
        total_tokens: turn.promptIds.length + turn.sampledIds.length,
        input_tokens_details: { cached_tokens: 0 },
        output_tokens_details: { reasoning_tokens: 0 },
      },
    });
    expect(response.output).toEqual([
      { id: expect.stringMatching(/^msg_r1-/), type: 'message', role: 'assistant', status: 'completed', content: [part] },
      made(0, 'glove'),
      made(1, 'hat'),
    ]);
    expect(new Set(response.output.map(({ id }) => id)).size).toBe(3);
  });

  it.each(FORMS)('that was cut by its length is incomplete, %s', async (_, stream) => {
    const { session } = open({});
    const cut = await create(clientOf(session, true), { model: 'policy', input: 'a', max_output_tokens: 3 }, stream);
    expect(cut).toMatchObject({ status: 'incomplete', incomplete_details: { reason: 'max_output_tokens' } });
    expect(cut.output[0]).toMatchObject({ type: 'message', status: 'incomplete' });
    const [turn] = session.seal() as [Turn];
    expect(turn).toMatchObject({ stopReason: 'length', sampling: { requested: { maxTokens: 3 } } });
    expect(turn.sampledIds.length).toBe(3);
  });

  it.each(FORMS)('without words has an empty text, %s', async (_, stream) => {
    const { session } = open({ replies: ['<|im_end|>'] });
    const { output } = await create(clientOf(session, true), { model: 'policy', input: 'a' }, stream);
    expect(output).toMatchObject([{ type: 'message', content: [{ type: 'output_text', text: '' }] }]);
    session.seal();
  });

  it.each(FORMS)('has the log-probability of each token where that was asked for, %s', async (_, stream) => {
    const { session } = open({});
    const include = ['message.output_text.logprobs'];
    const { output } = await create(clientOf(session, true), { model: 'policy', input: 'a', include }, stream);
    const [turn] = session.seal() as [Turn];
    const [message] = output as [OpenAI.Responses.ResponseOutputMessage];
    const [{ logprobs }] = message.content as [OpenAI.Responses.ResponseOutputText];
    expect(logprobs!.map(({ logprob }) => logprob)).toEqual([...turn.logprobs]);
    expect(logprobs!.map(({ token }) => token)).toEqual(Array.from(turn.sampledIds, renderer.tokenText));
  });

  it('is marked on its turn where it is not in the format that was asked for', async () => {
    const { session } = open({ replies: ['{"price":"81"}<|im_end|>'] });
    const schema = { type: 'object', properties: { price: { type: 'number' } } };
    const text = { format: { type: 'json_schema', name: 'price', schema } };
    const { output_text } = await create(clientOf(session, true), { model: 'policy', input: 'a', text }, false);
    expect(output_text).toBe('{"price":"81"}');
    expect(session.seal()[0]!.formatError).toBe('price: expected number, found string');
  });

  it('says what had no effect, also in a header; tools that are not functions are not shown', async () => {
    const { session } = open({});
    const response = await post(session, {
      input: 'a',
      tools: [{ type: 'web_search' }, ...tools, { type: 'custom', name: 'x' }],
      include: ['web_search_call.results'],
      text: { verbosity: 'low' },
      reasoning: { effort: 'low' },
      store: true,
    });
    const tooled = 'tools[0]:web_search,tools[2]:custom:x';
    const ignored = `reasoning,store,${tooled},include:web_search_call.results,text.verbosity`;
    expect(response.headers.get('x-trainyard-ignored')).toBe(ignored);
    const [turn] = session.seal() as [Turn];
    expect(turn.request.ignored).toEqual(ignored.split(','));
    expect(turn.request.tools.map((tool) => tool.function.name)).toEqual(['lookup']);
  });

  it('shows the policy no tools where none may be used', async () => {
    const { session } = open({});
    await post(session, { input: 'a', tools, tool_choice: 'none' });
    expect(session.seal()[0]!.request.tools).toEqual([]);
  });
});

describe('events of a response', () => {
  const eventsOf = async (session: Session, body: object) =>
    eventsIn<Events>(await (await post(session, { stream: true, ...body })).text());

  it('come in OpenAI’s order, numbered, and end with the items that were streamed', async () => {
    const { session } = open({ replies: [`Let me see.${call('glove')} Or${call('hat')}<|im_end|>`] });
    const events = await eventsOf(session, { input: 'a' });
    expect(events.map((event) => ('sequence_number' in event ? event.sequence_number : -1))).toEqual(events.map((_, i) => i));
    const types = events.map(({ type }) => type.replace('response.', ''));
    const once = types.filter((type, i) => type !== 'output_text.delta' || types[i - 1] !== type);
    const part = ['content_part.added', 'output_text.delta', 'output_text.done', 'content_part.done'];
    const text = ['output_item.added', ...part, 'output_item.done'];
    const made = ['output_item.added', 'function_call_arguments.delta', 'function_call_arguments.done', 'output_item.done'];
    expect(once).toEqual(['created', 'in_progress', ...text, ...made, ...text, ...made, 'completed']);
    const last = events.at(-1)!;
    if (last.type !== 'response.completed') throw new Error(last.type);
    const done = events.flatMap((event) => (event.type === 'response.output_item.done' ? [event.item] : []));
    expect(last.response.output).toEqual(done);
    const deltas = events.map((event) => (event.type === 'response.output_text.delta' ? event.delta : '')).join('');
    const [turn] = session.seal() as [Turn];
    expect(deltas).toBe(turn.response.content);
    expect(deltas).toBe('Let me see. Or');
    expect(last.response.usage?.output_tokens).toBe(turn.sampledIds.length);
  });

  it('end with a failure that the stock client throws, and nothing is kept', async () => {
    const failing = () => open({ reply: failsAfter('One ') });
    const { session } = failing();
    const stream = await clientOf(session, true).responses.create({ model: 'policy', input: 'a', stream: true });
    const seen: Events[] = [];
    const reading = async () => {
      for await (const event of stream) seen.push(event);
    };
    await expect(reading()).rejects.toThrow('the engine is gone');
    const failed = seen.at(-1)!;
    if (failed.type !== 'response.failed') throw new Error(failed.type);
    expect(failed.response).toMatchObject({ status: 'failed', error: { code: 'engine_failed', message: 'the engine is gone' } });
    const again = await post(session, { input: 'b', previous_response_id: failed.response.id });
    expect(again.status).toBe(400);
    expect(session.seal()).toEqual([]);
    await expect(
      clientOf(failing().session, true).responses.stream({ model: 'policy', input: 'a' }).finalResponse(),
    ).rejects.toThrow('the engine is gone');
  });
});

const post = (session: Session, body: object) => postTo(session, 'responses', body, { 'anthropic-version': '' });
