import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { bearer, call } from '../../test/fixtures/gateway/callers.ts';
import {
  ask,
  clientOf,
  LOOKUP,
  open,
  post,
  rawPost,
  renderer,
  say,
  specOf,
  stitched,
  timeless,
  tokenizer,
  tools,
} from '../../test/fixtures/gateway/streams.ts';
import { runInRollout } from '../core/context.ts';
import type { GenerateRequest, Session, WorkflowContext } from '../core/contracts.ts';
import type { TrainyardError } from '../core/errors.ts';
import type { Message } from '../core/types.ts';
import { Gateway, listen } from './gateway.ts';

const RESULT = { role: 'tool' as const, content: '{"price":81}' };
const ANSWER = 'It costs $81.<|im_end|>';
const whole = JSON.stringify({ messages: ask });

describe('generate with messages', () => {
  it('records what chat completions would: prompt, seed, response', async () => {
    const settings = { temperature: 0.5, max_tokens: 60 };
    const byClient = open({ replies: [LOOKUP, ANSWER] });
    const client = clientOf(byClient.session, true);
    const first = await client.chat.completions.create({ model: 'policy', messages: ask, tools, ...settings });
    const { message } = first.choices[0]!;
    const result = { ...RESULT, tool_call_id: message.tool_calls![0]!.id };
    const last = await client.chat.completions.create({
      model: 'policy',
      messages: [...ask, message, result],
      tools,
      ...settings,
    });

    const byHand = open({ replies: [LOOKUP, ANSWER] });
    const model = byHand.session.model();
    const asked = { tools, temperature: 0.5, maxTokens: 60 };
    const called = await model.generate({ messages: ask, ...asked });
    const again = { ...RESULT, tool_call_id: called.toolCalls[0]!.id };
    const said = await model.generate({ messages: [...ask, called.message, again], ...asked });

    expect(timeless(byHand.session.seal())).toEqual(timeless(byClient.session.seal()));
    expect(`chatcmpl-${said.id}`).toBe(last.id);
    expect(said).toMatchObject({ text: 'It costs $81.', toolCalls: [], stopReason: 'stop' });
    expect(said.turn).toMatchObject({ index: 1, after: 0 });
  });

  it('gives identical questions seeds of their own, and counts against the limits of the rollout', async () => {
    const { session } = open({ spec: { limits: { turns: 2, tokens: 1000, deadlineMs: 1000 } } });
    const seeds = [];
    for (const _ of [0, 1]) seeds.push((await session.model().generate({ messages: ask })).turn!.sampling.seed);
    expect(new Set(seeds).size).toBe(2);
    await expect(session.model().generate({ messages: ask })).rejects.toMatchObject({ code: 'LIMIT_REACHED' });
    expect(session).toMatchObject({ unanswered: [{ turnsBefore: 2, failure: { limit: 'turns' } }] });
    expect(session.turns).toHaveLength(2);
  });

  it('ends with its signal, and with the session', async () => {
    const never = (_: unknown, __: number, signal: AbortSignal | undefined) =>
      new Promise<number[]>((_resolve, reject) => signal?.addEventListener('abort', () => reject(signal.reason)));
    const { session } = open({ reply: never });
    const hangUp = new AbortController();
    const given = session.model().generate({ messages: ask, signal: hangUp.signal });
    hangUp.abort();
    await expect(given).rejects.toThrow();
    expect(session.unanswered.map(({ failure }) => failure)).toEqual([undefined]);
    const running = session.model().generate({ messages: ask });
    session.seal();
    await expect(running).rejects.toMatchObject({ code: 'SESSION_SEALED' });
    await expect(session.model().generate({ messages: ask })).rejects.toMatchObject({ code: 'SESSION_SEALED' });
    expect(session.turns).toEqual([]);
  });

  it('keeps what was asked when it was asked, whatever the caller does to it later', async () => {
    const { session } = open();
    const messages: Message[] = [
      ...ask,
      { role: 'assistant', content: null, tool_calls: [{ id: 'a', type: 'function', function: { name: 'f', arguments: '{}' } }] },
      { ...RESULT, tool_call_id: 'a' },
    ];
    const own = structuredClone(tools);
    const before = structuredClone({ messages, tools: own });
    await session.model().generate({ messages, tools: own });
    (messages[1]!.tool_calls![0]!.function as { name: string }).name = 'g';
    (own[0]!.function.parameters as { type: string }).type = 'string';
    messages.length = 0;
    expect(session.turns[0]!.request).toEqual(before);
  });

  it('counts the size of what is asked, and waits for no engine that is not there yet', async () => {
    const { session } = open({ contextLength: 9 });
    const promptIds = new Int32Array(4 * 1024 * 1024);
    const codes: string[] = [];
    for (let i = 0; i < 65; i++) {
      await session
        .model()
        .generate({ promptIds })
        .catch(({ code }: TrainyardError) => codes.push(code));
    }
    expect([...new Set(codes)]).toEqual(['CONTEXT_OVERFLOW', 'LIMIT_REACHED']);
    const { engine } = open();
    const starting = new Gateway({ engine, renderer, modelName: 'policy', ready: new Promise(() => undefined) });
    const refused = starting.open(specOf('r1')).model().generate({ messages: ask });
    await expect(refused).rejects.toThrow('the engine is starting');
    expect(engine.requests).toEqual([]);
  });

  it('is asked in a conversation of its own by another thread, whose name is checked', async () => {
    const { session } = open({ spec: { roles: { judge: { trainable: false } } } });
    await session.model().thread('side').generate({ messages: ask });
    expect(session.turns[0]).toMatchObject({ role: 'default', thread: 'side' });
    for (const name of ['', 'a\nb', 'judge']) {
      expect(() => session.model().thread(name)).toThrow(expect.objectContaining({ code: 'REQUEST_INVALID' }));
    }
  });
});

describe('what generate refuses', () => {
  const cyclic: Record<string, unknown> = {};
  cyclic['self'] = cyclic;
  const bad: Readonly<Record<string, readonly [unknown, string | undefined]>> = {
    'no request': [undefined, 'request'],
    'a request that is a text': ['hello', 'request'],
    'neither messages nor ids': [{}, 'messages'],
    'no messages': [{ messages: [] }, 'messages'],
    'messages that are a text': [{ messages: 'hello' }, 'messages'],
    'a message that is none': [{ messages: [ask[0], null] }, 'messages.1'],
    'an unknown role': [{ messages: [{ role: 'robot', content: 'x' }] }, 'messages.0.role'],
    'content that is a number': [{ messages: [{ role: 'user', content: 3 }] }, 'messages.0.content'],
    'an image': [{ messages: [{ role: 'user', content: [{ type: 'image_url' }] }] }, 'messages.0.content.0.type'],
    'an assistant that says nothing': [{ messages: [{ role: 'assistant', content: null }] }, 'messages.0.content'],
    'a tool without a name': [{ messages: ask, tools: [{ type: 'function', function: {} }] }, 'tools.0.function.name'],
    'tools that are one tool': [{ messages: ask, tools: tools[0] }, 'tools'],
    'cyclic tools': [{ messages: ask, tools: [{ type: 'function', function: { name: 'f', parameters: cyclic } }] }, undefined],
    'a temperature below 0': [{ messages: ask, temperature: -1 }, 'temperature'],
    'a temperature that is no number': [{ messages: ask, temperature: Number.NaN }, 'temperature'],
    'topP 0': [{ messages: ask, topP: 0 }, 'topP'],
    'half a topK': [{ messages: ask, topK: 0.5 }, 'topK'],
    'no tokens': [{ messages: ask, maxTokens: 0 }, 'maxTokens'],
    'endless tokens': [{ messages: ask, maxTokens: Infinity }, 'maxTokens'],
    'an empty stop text': [{ messages: ask, stop: [''] }, 'stop.0'],
    'a signal that is none': [{ messages: ask, signal: {} }, 'signal'],
    'a name of a client': [{ messages: ask, max_tokens: 3 }, 'max_tokens'],
    'messages and ids': [{ messages: ask, promptIds: [1] }, 'promptIds'],
    'no ids': [{ promptIds: [] }, 'promptIds'],
    'ids that are a text': [{ promptIds: 'abc' }, 'promptIds'],
    'half an id': [{ promptIds: [1, 0.5] }, 'promptIds.1'],
    'an id that is a text': [{ promptIds: ['1'] }, 'promptIds.0'],
    'an id below 0': [{ promptIds: [3, 4, -1] }, 'promptIds.2'],
    'an id beyond the vocabulary': [{ promptIds: [renderer.vocabSize] }, 'promptIds.0'],
    'an id beyond 32 bits': [{ promptIds: [2 ** 32] }, 'promptIds.0'],
  };

  it.each(Object.entries(bad))('%s', async (_, [request, param]) => {
    const { session, engine } = open();
    const refused = session.model().generate(request as GenerateRequest);
    await expect(refused).rejects.toMatchObject({ code: 'REQUEST_INVALID', param });
    await refused.catch((error: Error) => expect(error.message).toContain(param ?? 'JSON'));
    expect([session.turns.length, engine.requests.length]).toEqual([0, 0]);
    expect(session.unanswered).toMatchObject([{ failure: { code: 'REQUEST_INVALID' } }]);
  });

  it('ids that leave no room in the context, which is a limit like any other', async () => {
    const { session } = open({ contextLength: 4 });
    await expect(session.model().generate({ promptIds: [1, 2, 3, 4] })).rejects.toMatchObject({ code: 'CONTEXT_OVERFLOW' });
    expect(session).toMatchObject({ unanswered: [{ failure: { limit: 'context' } }], turns: [] });
  });
});

describe('a model handle', () => {
  it('gives copies: what the caller changes is neither stored nor trained', async () => {
    const { session } = open();
    const { turn } = await session.model().generate({ messages: ask });
    const before = structuredClone(session.turns);
    Object.assign(turn!.sampling.effective, { temperature: 0.5 });
    Object.assign(turn!.request.messages[0]!, { content: 'something else' });
    turn!.logprobs.fill(-9);
    expect(session.seal()).toEqual(before);
  });

  it('of another rollout is refused to code that is known to run in this one, and records nothing', async () => {
    const { gateway, session: other } = open();
    gateway.open(specOf('r2'));
    const handle = other.model();
    const here = { rolloutId: 'r2' } as WorkflowContext;
    const message = expect.stringMatching(/code of rollout r2 called with the model handle of rollout r1/);
    await expect(runInRollout(here, () => handle.generate({ messages: ask }))).rejects.toMatchObject({ message });
    const reply = await runInRollout(here, () => post(other, whole));
    expect([reply.status, await reply.json()]).toMatchObject([403, { error: { message, code: 'identity_conflict' } }]);
    expect(other.seal()).toEqual([]);
  });
});

it('a client that was made with another rollout’s key is refused to code of this one over HTTP, whether it uses fetch or node:http; a rollout’s own is not', async () => {
  const { gateway, session: other } = open();
  const own = gateway.open(specOf('r2'));
  await using _listener = await listen(gateway);
  const byFetch = async (session: Session) => (await post(session, whole, {}, fetch)).status;
  const byHttp = async (session: Session) => (await rawPost(session, whole)).resume().statusCode;
  for (const call of [byFetch, byHttp]) {
    const statuses = await runInRollout({ rolloutId: 'r2' } as WorkflowContext, async () => [await call(other), await call(own)]);
    expect(statuses).toEqual([403, 200]);
    expect(await call(other)).toBe(200);
  }
  expect([other.seal().length, own.seal().length]).toEqual([2, 2]);
});

describe('generate with token ids', () => {
  it('samples after exactly these ids and records no messages', async () => {
    const { session, engine } = open({ replies: [LOOKUP] });
    const promptIds = renderer.open(ask, tools);
    const { message, turn } = await session.model().generate({ promptIds });
    expect(engine.requests[0]!.promptIds).toEqual(promptIds);
    expect(turn).toMatchObject({ promptIds, request: { messages: [], tools: [] }, trainable: true });
    expect(turn).not.toHaveProperty('after');
    expect(turn).not.toHaveProperty('fork');
    expect(message.tool_calls![0]!.function).toEqual({ name: 'lookup', arguments: '{"item": "Binklex glove"}' });
    promptIds.fill(0);
    expect(turn!.promptIds).not.toEqual(promptIds);
  });

  it('that extend each other are one sample', async () => {
    const { session } = open({ replies: [LOOKUP, ANSWER, ANSWER] });
    const model = session.model();
    const first = await model.generate({ promptIds: [...renderer.open(ask, tools)] });
    const soFar = [...first.turn!.promptIds, ...first.turn!.sampledIds];
    const second = await model.generate({ promptIds: [...soFar, ...say('\n<|im_start|>assistant\n')] });
    const other = await model.generate({ promptIds: say('<|im_start|>assistant\n') });
    expect([first, second, other].map(({ turn }) => turn!.after)).toEqual([undefined, 0, undefined]);
    const samples = stitched(session.seal());
    expect(samples.map(({ mask }) => mask.reduce((sum, one) => sum + one, 0))).toEqual([
      first.turn!.sampledIds.length + second.turn!.sampledIds.length,
      other.turn!.sampledIds.length,
    ]);
  });

  it('go on from what training takes them to continue, whatever the order of the calls', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(fc.nat({ max: 4 }), { maxLength: 5 }), async (picks) => {
        const { session } = open({ reply: () => [7, 8] });
        const model = session.model();
        for (const pick of picks) {
          const from = session.turns.at(-1 - pick);
          await model.generate({ promptIds: from ? [...from.promptIds, ...from.sampledIds, 9] : [3], maxTokens: 2 });
        }
        for (const { promptIds, after, index } of session.turns) {
          const before = session.turns[after ?? -1];
          const longest = session.turns.slice(0, index).filter((turn) => {
            const ids = [...turn.promptIds, ...turn.sampledIds];
            return ids.length <= promptIds.length && ids.every((id, i) => promptIds[i] === id);
          });
          const most = Math.max(-1, ...longest.map((turn) => turn.promptIds.length));
          expect(before?.promptIds.length ?? -1).toBe(most);
        }
      }),
      { numRuns: 50 },
    );
  });

  it('are no history for a conversation in words in the same thread', async () => {
    const { session } = open();
    const { message } = await session.model().generate({ promptIds: [5, 6] });
    const { turn } = await session.model().generate({ messages: [message, ...ask] });
    expect(turn).not.toHaveProperty('after');
    expect(turn).not.toHaveProperty('fork');
  });
});

describe('the gateway as a part of another protocol', () => {
  it('generates for a rollout by name, as any of its seats', async () => {
    const { gateway, session } = open();
    const { turn } = await gateway.generate('r1', { messages: ask, role: 'judge', thread: 'side' });
    expect(turn).toMatchObject({ role: 'judge', thread: 'side', index: 0 });
    await expect(gateway.generate('r2', { messages: ask })).rejects.toMatchObject({ code: 'SESSION_UNKNOWN' });
    session.seal();
    await expect(gateway.generate('r1', { messages: ask })).rejects.toMatchObject({ code: 'SESSION_SEALED' });
    expect(gateway.session('r1')).toBeUndefined();
  });

  it('asks mounted routes for paths it does not know, and answers what they hand back', async () => {
    const { gateway, session } = open();
    gateway.mount(async (call) => {
      const [, rollout, tail] = /^\/flow\/([^/]+)\/(.*)$/.exec(call.path) ?? [];
      if (rollout === undefined) return undefined;
      if (tail === 'who') return { status: 200, body: JSON.stringify(gateway.authorize(call, ['agent'])) };
      return await gateway.answer({ ...call, path: `/r/${rollout}/${tail}` });
    });
    const { apiKey } = session.model();
    const told = (path: string, key = apiKey) => call(gateway, 'POST', path, bearer(key), whole);
    const answered = (await told('/flow/r1/v1/chat/completions')).body as unknown as { choices: { message: Message }[] };
    expect(answered.choices[0]!.message.content).toBe(tokenizer.decode(session.turns[0]!.sampledIds).replace('<|im_end|>', ''));
    expect((await told('/flow/r1/who')).body).toMatchObject({ capability: 'agent', rollout: 'r1' });
    expect((await told('/flow/r1/who', 'wrong')).status).toBe(401);
    expect((await told('/flow/r2/v1/chat/completions')).status).toBe(404);
    expect((await told('/elsewhere')).status).toBe(404);
    gateway.open(specOf('r2'));
    expect((await told('/flow/r2/v1/chat/completions')).status).toBe(404);
  });
});
