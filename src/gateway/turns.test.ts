import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { scriptedLogprob } from '../../packages/testing/src/trajectories.ts';
import {
  ANSWER,
  all,
  answerTo,
  ask,
  clientOf,
  LOOKUP,
  open,
  post,
  renderer,
  say,
  slowly,
  stitched,
  tools,
  until,
} from '../../test/fixtures/gateway/streams.ts';
import type { Turn } from '../core/types.ts';
import { listen } from './gateway.ts';

const chain = (turns: readonly Turn[]) => turns.map(({ after, fork }) => [after, fork?.cause]);

describe('several answers to one question (n)', () => {
  const words = ['One.', 'Two, three.', 'Four.'];

  it('are choices of one reply and a turn each, from the same prompt and seeds of their own', async () => {
    const { session, engine } = open({ reply: (_, call) => say(`${words[call % 3]}<|im_end|>`) });
    const reply = await clientOf(session, true).chat.completions.create({ model: 'policy', messages: ask, n: 3 });
    expect(reply.choices.map(({ index, message }) => [index, message.content])).toEqual(words.map((text, i) => [i, text]));
    const turns = session.seal();
    expect(turns.map(({ response }) => response.content)).toEqual(words);
    expect(turns.map(({ fork, after }) => [fork, after])).toEqual([0, 1, 2].map(() => [undefined, undefined]));
    expect(new Set(engine.requests.map(({ seed }) => seed)).size).toBe(3);
    expect(reply.usage).toMatchObject({
      prompt_tokens: turns[0]!.promptIds.length,
      completion_tokens: turns.reduce((sum, turn) => sum + turn.sampledIds.length, 0),
    });
  });

  it('streamed, come as deltas of their own choice', async () => {
    const { session } = open({ reply: (_, call) => slowly(say(`${words[call % 3]}<|im_end|>`), 1) });
    const client = clientOf(session, true);
    const chunks = await all(await client.chat.completions.create({ model: 'policy', messages: ask, n: 3, stream: true }));
    for (const [i, text] of words.entries()) {
      const own = chunks.flatMap(({ choices }) => choices).filter(({ index }) => index === i);
      expect(own.map(({ delta }) => delta.content ?? '').join('')).toBe(text);
      expect(own.map(({ finish_reason }) => finish_reason).filter((reason) => reason !== null)).toEqual(['stop']);
      expect(own[0]!.delta.role).toBe('assistant');
    }
    expect(session.seal().length).toBe(3);
  });

  it('are all recorded or none: where one fails the others are cancelled', async () => {
    let cancelled = 0;
    const { session } = open({
      reply: async (_, call, signal) => {
        if (call === 1) throw new Error('the engine stumbled');
        await sleep(5000, undefined, signal ? { signal } : {}).catch(() => cancelled++);
        return say('late<|im_end|>');
      },
    });
    expect((await post(session, JSON.stringify({ messages: ask, n: 3 }))).status).toBe(502);
    expect(cancelled).toBe(2);
    expect(session.seal()).toEqual([]);
  });

  it('that are more than the rollout may still have are refused as a whole', async () => {
    const { session } = open({ spec: { limits: { turns: 2, tokens: 1000, deadlineMs: 1000 } } });
    const reply = await post(session, JSON.stringify({ messages: ask, n: 3 }));
    expect([reply.status, await reply.json()]).toMatchObject([400, { error: { code: 'rollout_limit_reached' } }]);
    expect(session.seal()).toEqual([]);
  });
});

it('logprobs are those of the sampled tokens, in a body and in a stream', async () => {
  const { session } = open();
  const client = clientOf(session, true);
  const whole = await client.chat.completions.create({ model: 'policy', messages: ask, logprobs: true });
  const content = whole.choices[0]!.logprobs!.content!;
  const [turn] = session.turns;
  expect(content.map(({ logprob }) => logprob)).toEqual([...turn!.sampledIds].map(scriptedLogprob));
  expect(content.map(({ token }) => token)).toEqual(Array.from(turn!.sampledIds, renderer.tokenText));
  const chunks = await all(
    await client.chat.completions.create({ model: 'policy', messages: ask, logprobs: true, stream: true }),
  );
  expect(chunks.flatMap(({ choices }) => choices[0]?.logprobs?.content ?? [])).toEqual(content);
});

describe('a turn says where its prompt comes from', () => {
  const goOn = async (session: Parameters<typeof post>[0], messages: object[], more: object = {}) =>
    ((await (await post(session, JSON.stringify({ messages, tools, ...more }))).json()) as { choices: { message: object }[] })
      .choices[0]!.message;

  it('calls side by side that go on from one turn are branches, and say so', async () => {
    const { session } = open();
    const said = await goOn(session, ask);
    await Promise.all(['Sure?', 'Why?'].map((content) => goOn(session, [...ask, said, { role: 'user', content }])));
    const turns = session.seal();
    expect(chain(turns).flat()).toEqual([undefined, undefined, 0, undefined, 0, 'edited_message']);
    expect(stitched(turns).length).toBe(2);
  });

  it('what the client changed is no fork where the template does not write it, whatever other threads do meanwhile', async () => {
    const { session } = open();
    const [asked] = ask;
    const said = await goOn(session, [{ ...asked, name: 'Ann' }]);
    const other = post(session, JSON.stringify({ messages: ask }), { headers: { 'x-sample-id': 'other' } });
    await goOn(session, [{ ...asked, name: 'Bob' }, said, { role: 'user', content: 'Sure?' }]);
    await other;
    const turns = session.seal();
    expect(turns.map(({ thread }) => thread)).toEqual(['default', 'other', 'default']);
    expect(chain(turns).flat()).toEqual([undefined, undefined, undefined, undefined, 0, undefined]);
    expect(stitched(turns).length).toBe(2);
  });

  it('asking again is that, also where hardly anything was sampled before', async () => {
    const { session } = open();
    for (const _ of [1, 2]) await goOn(session, ask, { stop: 'It' });
    expect(chain(session.seal()).flat()).toEqual([undefined, undefined, undefined, 'asked_again']);
  });

  it('other tools, asking again and another conversation are told apart', async () => {
    const { session } = open();
    const said = await goOn(session, ask);
    await goOn(session, ask);
    await goOn(session, [...ask, said, { role: 'user', content: 'Sure?' }], { tool_choice: 'none' });
    await goOn(session, [{ role: 'system', content: 'Write a title.' }, ...ask]);
    const causes = session.seal().map(({ fork }) => fork?.cause);
    expect(causes).toEqual([undefined, 'asked_again', 'changed_tools', 'new_conversation']);
  });
});

it('parameters without effect are recorded with the turn and reported to the client', async () => {
  const { session } = open();
  const reply = await post(session, JSON.stringify({ messages: ask, seed: 7, user: 'me', store: null, new_knob: true }));
  expect(reply.headers.get('x-trainyard-ignored')).toBe('seed,user,new_knob');
  expect(session.seal()[0]!.request.ignored).toEqual(['seed', 'user', 'new_knob']);
});

describe('response_format', () => {
  const format = (schema: object) => ({ type: 'json_schema', json_schema: { name: 'answer', schema } });
  const price = { type: 'object', properties: { price: { type: 'number' } }, required: ['price'] };

  it.each([
    ['{"price":81}', undefined],
    ['{"price":"81"}', /price/],
    ['It costs $81.', /not JSON/],
  ])('%s is returned as sampled, and what is wrong with it is on the turn', async (text, wrong) => {
    const { session } = open({ replies: [`${text}<|im_end|>`] });
    const reply = await post(session, JSON.stringify({ messages: ask, response_format: format(price) }));
    expect(((await reply.json()) as { choices: { message: { content: string } }[] }).choices[0]!.message.content).toBe(text);
    const [turn] = session.seal();
    if (wrong === undefined) expect(turn).not.toHaveProperty('formatError');
    else expect(turn!.formatError).toMatch(wrong);
  });
});

describe('a schema that an answer is to follow', () => {
  const listed = (count: number) => ({
    type: 'object',
    properties: { v: { enum: Array.from({ length: count }, (_, i) => `v${i}`) } },
  });
  const format = (schema: object) => ({ type: 'json_schema', json_schema: { name: 'answer', schema } });
  const tool = (parameters: object) => ({ type: 'function', function: { name: 'f', parameters } });

  it.each([
    ['of response_format', (count: number) => ({ response_format: format(listed(count)) })],
    ['of a call that is demanded', (count: number) => ({ tools: [tool(listed(count))], tool_choice: 'required' })],
  ])('%s is bounded: 100,000 values are refused before anything is sampled', async (_, asked) => {
    const { session } = open({ replies: ['{"v":"v1"}<|im_end|>', '{"v":"v1"}<|im_end|>'] });
    const refused = await post(session, JSON.stringify({ messages: ask, ...asked(100_000) }));
    expect(refused.status).toBe(400);
    expect(await refused.text()).toMatch(/1000\d\d values in the schema that the answer is to follow; at most 10000 are read/);
    expect((await post(session, JSON.stringify({ messages: ask, ...asked(5_000) }))).status).toBe(200);
    expect(session.seal()).toHaveLength(1);
  });
});

it('response_format with a tool call is not checked before there is an answer', async () => {
  const { session } = open({ replies: [LOOKUP] });
  await post(session, JSON.stringify({ messages: ask, tools, response_format: { type: 'json_object' } }));
  expect(session.seal()[0]).not.toHaveProperty('formatError');
});

it('a call whose client is gone before the answer is no turn; that it was given up, and how far it came, is kept', async () => {
  const { session, gateway } = open({ reply: (_, __, signal) => slowly(say('It costs $81.'.repeat(50)), 5, signal) });
  await using _ = await listen(gateway);
  const left = new AbortController();
  const reply = await post(session, undefined, { signal: left.signal }, fetch);
  await reply.body!.getReader().read();
  left.abort();
  await until(() => session.unanswered.length === 1);
  expect(session.unanswered[0]).toMatchObject({ thread: 'default', promptTokens: expect.any(Number) });
  expect(session.unanswered[0]!.sampledTokens).toBeGreaterThan(0);
  expect(session.seal()).toEqual([]);
});

describe('an answer that nobody got', () => {
  const lose = async ({ session, gateway }: ReturnType<typeof open>, text: string): Promise<void> =>
    (await answerTo(gateway, session.model(), text)).undelivered?.();
  const question = JSON.stringify({ messages: ask });

  it('nor asked for again is kept, marked, and not trained', async () => {
    const opened = open();
    await lose(opened, question);
    const [turn] = opened.session.seal();
    expect(turn).toMatchObject({ undelivered: true, trainable: false });
    expect(stitched([turn!])).toEqual([]);
  });

  it('but asked for again is an ordinary turn', async () => {
    const opened = open();
    await lose(opened, question);
    await post(opened.session, question);
    const turns = opened.session.seal();
    expect(turns.map(({ trainable, undelivered }) => [trainable, undelivered])).toEqual([[true, undefined]]);
  });

  it('as it seemed, but was continued, is one too', async () => {
    const opened = open();
    await lose(opened, question);
    const said = opened.session.turns[0]!.response;
    await post(opened.session, JSON.stringify({ messages: [...ask, said, { role: 'user', content: 'Sure?' }] }));
    expect(opened.session.seal().map(({ trainable, after }) => [trainable, after])).toEqual([
      [true, undefined],
      [true, 0],
    ]);
  });
});

it('an idempotency key given to another request is a conflict, and nothing is recorded', async () => {
  const { session } = open();
  const named = { headers: { 'idempotency-key': 'k1' } };
  await post(session, JSON.stringify({ messages: ask }), named);
  const reply = await post(session, JSON.stringify({ messages: [...ask, ...ask] }), named);
  expect(reply.status).toBe(409);
  expect(session.seal().length).toBe(1);
});

it.each([
  ['sealed', 'over HTTP', 1],
  ['sealed', 'over HTTP', 3],
  ['sealed', 'in process', 1],
  ['cancelled', 'over HTTP', 1],
  ['cancelled', 'in process', 3],
])(
  'a call in flight when its rollout ends hears that it has, whatever the engine says then (%s, %s, n: %i)',
  async (how, where, n) => {
    const rollout = new AbortController();
    const reply = (_: unknown, __: unknown, signal?: AbortSignal) => slowly(say(ANSWER.repeat(30)), 20, signal);
    const { gateway, session, engine } = open({ reply, spec: { signal: rollout.signal } });
    await using _ = await listen(gateway);
    const answer = post(session, JSON.stringify({ messages: ask, n }), {}, where === 'in process' ? undefined : fetch);
    await until(() => engine.requests.length === n);
    if (how === 'sealed') session.seal();
    else rollout.abort(new Error('too late'));
    expect((await answer).status).toBe(410);
    expect(await (await answer).json()).toMatchObject({ error: { code: 'rollout_ended' } });
    expect(session.turns).toEqual([]);
  },
);

it('the words of a conversation are kept once, however many turns repeat them, and as each request wrote them', async () => {
  const { session } = open({ replies: ['Hm.<|im_end|>', 'Well.<|im_end|>'] });
  const call = { id: 'c', type: 'function', function: { name: 'lookup', arguments: '{}' } };
  const called = (content: string | null) => ({ role: 'assistant', content, tool_calls: [call] });
  const result = { role: 'tool', content: '3' };
  const more = [
    { role: 'assistant', content: 'Hm.' },
    { role: 'user', content: 'And now?' },
  ];
  for (const messages of [
    [...ask, called(''), result],
    [...ask, called(null), result, ...more],
  ]) {
    await post(session, JSON.stringify({ messages, tools }));
  }
  const [first, second] = session.seal();
  expect(second!.after).toBe(0);
  expect(second!.request.messages[0]).toBe(first!.request.messages[0]);
  expect(second!.request.tools).toBe(first!.request.tools);
  expect(second!.request.messages).toEqual([...ask, called(null), result, ...more]);
});
