import { setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { describe, expect, it } from 'vitest';
import { ASKERS } from '../../test/fixtures/gateway/askers.ts';
import {
  ANSWER,
  all,
  ask,
  clientOf,
  LOOKUP,
  open,
  post,
  type specOf,
  stitched,
  tools,
} from '../../test/fixtures/gateway/streams.ts';
import { localServer } from '../../test/fixtures/local-server.ts';
import { refusal } from '../../test/fixtures/refusal.ts';
import type { DefaultModelLike, DefaultModelRequest, Role, Session } from '../core/contracts.ts';
import type { Turn } from '../core/types.ts';
import { defaultModelOf } from './default-model.ts';
import { listen } from './gateway.ts';

const SAID = 'The house always wins.';
const EMPTY = { promptIds: new Int32Array(0), sampledIds: new Int32Array(0), logprobs: new Float32Array(0) };

/** A rollout whose default role this model plays, and what it was asked. */
function played(reply: (request: DefaultModelRequest) => unknown = () => SAID, spec: Parameters<typeof specOf>[1] = {}) {
  const requests: DefaultModelRequest[] = [];
  const house = (request: DefaultModelRequest) => {
    requests.push(request);
    return reply(request) as string;
  };
  const roles = { default: { trainable: false, default: house } };
  return { ...open({ replies: [ANSWER], spec: { roles, ...spec } }), requests };
}

/** A server on this machine that answers so. */
async function serve(reply: (request: Request) => Response) {
  let requests = 0;
  const server = await localServer(async ({ url, headers }, answer) => {
    requests++;
    const response = reply(new Request(`http://house${url}`, { headers: headers as Record<string, string> }));
    answer.writeHead(response.status, Object.fromEntries(response.headers)).end(await response.text());
  });
  return { ...server, requests: () => requests };
}

const anthropicOf = (session: Session) => new Anthropic(session.model().anthropic());

describe('a role that is not trained and has a default model', () => {
  it.each(Object.entries(ASKERS))('is played by it: %s', async (_, asker) => {
    const { session, engine, requests } = played();
    expect((await asker(session, false)).text).toBe(SAID);
    expect(engine.requests).toEqual([]);
    expect(requests[0]).toMatchObject({ messages: ask, tools: [] });
    const [turn, ...others] = session.seal() as [Turn];
    expect(others).toEqual([]);
    expect(turn).toMatchObject({ ...EMPTY, model: 'house', trainable: false, policyVersion: 0, stopReason: 'stop' });
    expect(turn).toMatchObject({ request: { messages: ask }, response: { role: 'assistant', content: SAID } });
    expect(turn).not.toHaveProperty('after');
    expect(turn).not.toHaveProperty('fork');
  });

  it('gives its tool calls ids of ours, whole and streamed alike', async () => {
    const toolCalls = [{ name: 'lookup', arguments: '{"item":1}' }];
    const { session, requests } = played(() => ({ content: null, toolCalls }));
    const client = clientOf(session, true);
    const asked = { model: 'policy', messages: ask, tools, tool_choice: 'required' as const };
    const whole = await client.chat.completions.create(asked);
    const chunks = await all(await client.chat.completions.create({ ...asked, stream: true }));
    const deltas = chunks.flatMap((chunk) => chunk.choices[0]?.delta.tool_calls ?? []);
    const calls = session.turns.map((turn) => turn.response.tool_calls![0]!);
    expect(whole.choices[0]!.message.tool_calls).toEqual([calls[0]]);
    expect(whole.choices[0]!.finish_reason).toBe('tool_calls');
    expect(deltas[0]).toMatchObject({ id: calls[1]!.id, function: { name: 'lookup' } });
    expect(new Set(calls.map(({ id }) => id)).size).toBe(2);
    expect(calls[0]!.function).toEqual(toolCalls[0]);
    expect(requests[0]).toMatchObject({ tool: 'lookup' });
  });

  it('is asked with what the agent asked for, recorded with the run’s settings for the rest', async () => {
    const { session, requests } = played(() => `${SAID} STOP And more.`);
    const { text } = await session.model().generate({ messages: ask, temperature: 0.25, stop: [' STOP'] });
    expect(text).toBe(SAID);
    expect(requests[0]).toMatchObject({ sampling: { temperature: 0.25 }, stop: [' STOP'] });
    expect(session.turns[0]!.sampling).toMatchObject({
      requested: { temperature: 0.25 },
      effective: { temperature: 0.25, topP: 1, topK: 0, maxTokens: 1_000_000 },
    });
  });

  it('counts turns, not tokens', async () => {
    const { session } = played(undefined, { limits: { turns: 2, tokens: 1, deadlineMs: 1000 } });
    await Promise.all([0, 1].map(() => session.model().generate({ messages: ask })));
    await expect(session.model().generate({ messages: ask })).rejects.toMatchObject({ code: 'LIMIT_REACHED' });
    expect(session.unanswered.at(-1)?.failure?.limit).toBe('turns');
  });

  it('answers once for as many choices as are asked for, and a retry gets the answer that was missed', async () => {
    let count = 0;
    const { session } = played(() => `answer ${count++}`);
    const send = async () =>
      (await post(session, JSON.stringify({ messages: ask, n: 2 }), { headers: { 'idempotency-key': 'a' } })).text();
    const texts = [await send(), await send()];
    expect(texts[0]).toBe(texts[1]);
    expect(session.turns.map((turn) => turn.response.content)).toEqual(['answer 0', 'answer 1']);
  });

  it('names its answers by what was asked, not by when', async () => {
    const questions = ['a', 'b'].map((content) => [{ role: 'user' as const, content }]);
    const idsOf = async (order: typeof questions) => {
      const { session } = played();
      const made: string[] = [];
      for (const messages of order) made.push((await session.model().generate({ messages })).id);
      return made;
    };
    const made = await idsOf(questions);
    expect(new Set(made).size).toBe(2);
    expect(await idsOf(questions.toReversed())).toEqual(made.toReversed());
  });

  it('is not waited for once the rollout has ended, or the caller has gone', async () => {
    const { session } = played(() => new Promise(() => undefined));
    const hangUp = new AbortController();
    const given = session.model().generate({ messages: ask, signal: hangUp.signal });
    hangUp.abort(new Error('gone'));
    await expect(given).rejects.toThrow('gone');
    const running = session.model().generate({ messages: ask });
    await sleep(1);
    session.seal();
    await expect(running).rejects.toMatchObject({ code: 'SESSION_SEALED' });
    expect(session.turns).toEqual([]);
  });

  it('reads words only', async () => {
    const { session, requests } = played();
    await expect(session.model().generate({ promptIds: [1] })).rejects.toMatchObject({
      code: 'REQUEST_INVALID',
      param: 'promptIds',
    });
    expect(requests).toEqual([]);
  });

  it('keeps words that come again once', async () => {
    const { session } = played();
    const { message } = await session.model().generate({ messages: ask });
    await session.model().generate({ messages: [...ask, message, { role: 'user', content: 'and?' }] });
    const [first, second] = session.turns as [Turn, Turn];
    expect(second.request.messages[0]).toBe(first.request.messages[0]);
  });

  it('cannot change what is recorded', async () => {
    const { session } = played(({ messages }) => {
      (messages[0] as { content: string }).content = 'another question';
      return SAID;
    });
    await session.model().generate({ messages: ask });
    expect(session.turns[0]!.request.messages).toEqual(ask);
  });
});

describe('a default model that fails', () => {
  const wrong: Readonly<Record<string, (request: DefaultModelRequest) => unknown>> = {
    throws: () => {
      throw new Error('out of credit');
    },
    rejects: async () => {
      throw new Error('out of credit');
    },
    'says nothing': () => undefined,
    'says a number': () => 3,
    'says null': () => null,
    'says an object without an answer': () => ({ text: 'x' }),
    'says content of another kind': () => ({ content: 3 }),
    'calls nothing': () => ({ content: null, toolCalls: [{}] }),
    'calls with arguments that are no text': () => ({ content: null, toolCalls: [{ name: 'f', arguments: {} }] }),
    'counts what is no number': () => ({ content: 'x', usage: { promptTokens: '3', completionTokens: 1 } }),
    'stops for no reason we know': () => ({ content: 'x', stopReason: 'tired' }),
  };

  it.each(Object.entries(wrong))('%s: the client is told, nothing is recorded', async (_, reply) => {
    const { session } = played(reply);
    await expect(session.model().generate({ messages: ask })).rejects.toMatchObject(refusal('DEFAULT_MODEL_FAILED', 'house'));
    for (const stream of [false, true]) {
      const asked = clientOf(session, true).chat.completions.create({ model: 'policy', messages: ask, stream });
      await expect(asked).rejects.toMatchObject({ status: 502, code: 'default_model_failed' });
    }
    const byMessages = anthropicOf(session).messages.create({ model: 'policy', max_tokens: 9, messages: ask });
    await expect(byMessages).rejects.toMatchObject({ status: 502 });
    expect(session.turns).toEqual([]);
  });
});

it('a default model at a server is asked over HTTP, and its failures are the role’s', async () => {
  const house = open({ replies: [LOOKUP] });
  await using _listener = await listen(house.gateway);
  const { baseURL, apiKey } = house.session.model();
  const server: DefaultModelLike = { name: 'house', baseURL, apiKey };
  const roles: Record<string, Role> = {
    default: { trainable: false, default: server },
    lost: { trainable: false, default: { ...server, apiKey: 'wrong' } },
  };
  const { session } = open({ spec: { roles } });
  const { toolCalls, turn } = await session.model().generate({ messages: ask, tools, temperature: 0.5, stop: ['never'] });
  expect(toolCalls).toMatchObject([{ function: { name: 'lookup', arguments: '{"item": "Binklex glove"}' } }]);
  expect(turn).toMatchObject({ model: 'house', ...EMPTY });
  expect(house.session.turns[0]).toMatchObject({ sampling: { requested: { temperature: 0.5 } }, request: { tools } });
  await expect(session.model('lost').generate({ messages: ask })).rejects.toMatchObject(refusal('DEFAULT_MODEL_FAILED', '401'));
});

describe('what a server answers', () => {
  const asked = async (body: object, sampling: object = {}) => {
    const sent: string[] = [];
    const fetch: typeof globalThis.fetch = async (_, init) => {
      sent.push(String(init?.body));
      return Response.json(body);
    };
    const { generate } = defaultModelOf({ name: 'house', baseURL: 'https://api.openai.com/v1', fetch });
    return { answer: generate({ messages: ask, tools: [], sampling, signal: new AbortController().signal }), sent };
  };

  it('is the choice with index 0, in whatever order they come', async () => {
    const choices = [1, 0].map((index) => ({ index, message: { content: `choice ${index}` } }));
    const { answer, sent } = await asked({ choices }, { topK: 5, temperature: 1 });
    expect(await answer).toMatchObject({ content: 'choice 0' });
    expect(JSON.parse(sent[0]!)).toEqual({ model: 'house', messages: ask, temperature: 1 });
  });

  it('is a failure where its content filter withheld it, and not an empty answer', async () => {
    const { answer, sent } = await asked({ choices: [{ finish_reason: 'content_filter', message: { content: null } }] });
    await expect(answer).rejects.toMatchObject(refusal('DEFAULT_MODEL_FAILED', /its content filter withheld/));
    expect(sent).toHaveLength(1);
  });
});

describe('the key of a default model at a server', () => {
  const KEY = 'sk-default-model-0123';

  /** What the agent is told where the server answers so, and what is recorded. */
  async function asked(reply: (request: Request) => Response, apiKey = KEY) {
    await using server = await serve(reply);
    const roles = { default: { trainable: false, default: { name: 'house', baseURL: `${server.origin}/v1`, apiKey } } };
    const { session } = open({ spec: { roles } });
    const error = await session
      .model()
      .generate({ messages: ask })
      .catch((thrown: unknown) => thrown);
    return { told: `${inspect(error, { depth: 9 })} ${JSON.stringify(session.turns)}`, error, turns: session.turns };
  }
  const completion = (content: string) => Response.json({ choices: [{ message: { content } }] });

  it.each([
    ['refuses', (key: string) => new Response(`no such key: ${key}`, { status: 401 })],
    ['refuses at length', (key: string) => new Response(`${'x'.repeat(490)}${key}`, { status: 401 })],
    ['answers what is no completion', (key: string) => new Response(`hello ${key}`)],
    ['answers', (key: string) => completion(`your key is ${key}`)],
  ])('is not in what comes back, whoever repeats it: it %s', async (_, reply) => {
    const { told } = await asked((request) => reply(request.headers.get('authorization')!.slice('Bearer '.length)));
    expect(told).toMatch(/house/);
    expect(told).not.toContain(KEY.slice(0, 8));
  });

  it('is not in the error where it cannot be sent', async () => {
    const { told } = await asked(() => completion(SAID), `${KEY}\n4567`);
    expect(told).toMatch(/default model house cannot be reached/);
    expect(told).not.toContain('sk-default');
  });

  it('that is no secret changes no answer', async () => {
    const { turns } = await asked(() => completion('none of them'), 'none');
    expect(turns[0]!.response.content).toBe('none of them');
  });

  it.each([301, 302, 303, 307, 308])('goes nowhere else, nor does the conversation: %d', async (status) => {
    await using other = await serve(() => completion(SAID));
    const headers = { location: `${other.origin}/v1/chat/completions` };
    const { error } = await asked(() => new Response(null, { status, headers }));
    expect(error).toMatchObject({
      code: 'DEFAULT_MODEL_FAILED',
      message: `default model house answered ${status}, a redirect to ${other.origin}: redirects are not followed`,
    });
    expect(other.requests()).toBe(0);
  });

  it('is not in the message about a default model that is none', () => {
    const { session } = open();
    const none = [
      { name: 'house', url: 'http://x', apiKey: KEY },
      { name: 'house', baseURL: `http://me:${KEY}@x/v1` },
      { name: 'house', baseURL: `http://x/v1?key=${KEY}` },
      { name: 'house', baseURL: KEY },
      ...[KEY, [KEY]],
    ];
    for (const given of none) {
      const naming = () => session.model('judge', { default: given as never });
      expect(naming).toThrowError(
        expect.objectContaining({ code: 'WORKFLOW_INVALID', message: expect.not.stringContaining(KEY) }),
      );
    }
  });
});

describe('a role that is trained at times', () => {
  const user = (content: string) => ({ role: 'user' as const, content });

  it('is asked at every call whether it is; the policy’s turns go on from each other, never from the other model’s', async () => {
    let trained = true;
    const { session } = open({ replies: [ANSWER, ANSWER] });
    const model = session.model('player', { default: () => SAID, trainable: () => trained });
    const first = await model.generate({ messages: ask });
    trained = false;
    const asked = [...ask, first.message, user('and?')];
    const second = await model.generate({ messages: asked });
    trained = true;
    await model.generate({ messages: [...asked, second.message, user('so?')] });
    const turns = session.seal();
    expect(turns.map(({ model: by, trainable, after, fork }) => [by, trainable, after, fork])).toEqual([
      [undefined, true, undefined, undefined],
      ['function', false, undefined, undefined],
      [undefined, true, 0, undefined],
    ]);
    const samples = stitched(turns);
    expect(samples).toHaveLength(1);
    expect(samples[0]!.mask.reduce((sum, one) => sum + one, 0)).toBe(turns[0]!.sampledIds.length + turns[2]!.sampledIds.length);
  });

  it('that was played first is rendered afresh for the policy, with nothing to fork from', async () => {
    let trained = false;
    const { session } = open({ replies: [ANSWER] });
    const model = session.model('player', { default: () => SAID, trainable: () => trained });
    const { message } = await model.generate({ messages: ask });
    trained = true;
    const { turn } = await model.generate({ messages: [...ask, message, user('so?')] });
    expect(turn).not.toHaveProperty('after');
    expect(turn).not.toHaveProperty('fork');
    expect(turn!.promptIds.length).toBeGreaterThan(0);
    const { turn: byIds } = await model.generate({ promptIds: [3, 4] });
    expect(byIds).not.toHaveProperty('after');
  });

  it('is what it was when it was asked, though that changes before it is answered', async () => {
    let trained = true;
    const reply = async () => {
      trained = false;
      return [7];
    };
    const { session } = open({ reply });
    const { turn } = await session
      .model('player', { default: () => SAID, trainable: () => trained })
      .generate({ messages: ask, temperature: 0.5, maxTokens: 1 });
    expect(turn).toMatchObject({ trainable: true, sampling: { effective: { temperature: 1 } } });
  });

  it('goes on from a response that the other model gave, by its name', async () => {
    let trained = false;
    const { session } = open({ replies: [ANSWER] });
    const client = new OpenAI(session.model('player', { default: () => SAID, trainable: () => trained }).openai());
    const { id } = await client.responses.create({ model: 'policy', input: 'Who wins?' });
    trained = true;
    await client.responses.create({ model: 'policy', input: 'Why?', previous_response_id: id });
    expect(session.turns[1]!.request.messages).toEqual([user('Who wins?'), { role: 'assistant', content: SAID }, user('Why?')]);
    expect(session.turns.map(({ model }) => model)).toEqual(['function', undefined]);
  });
});

it('turns of a default model elsewhere are not missed where their words came back', async () => {
  const { session } = played();
  const send = (messages: object, signal?: AbortSignal) =>
    post(session, JSON.stringify({ messages, stream: true }), signal ? { signal } : {});
  const lose = async (messages: object) => {
    const hangUp = new AbortController();
    await send(messages, hangUp.signal);
    await sleep(1);
    hangUp.abort();
    await sleep(1);
  };
  await lose(ask);
  await (await send([...ask, { role: 'assistant', content: SAID }, { role: 'user', content: 'and?' }])).text();
  await lose([{ role: 'user', content: 'another' }]);
  expect(session.seal().map(({ undelivered }) => undelivered)).toEqual([undefined, undefined, true]);
});
