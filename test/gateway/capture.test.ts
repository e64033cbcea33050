/**
 * From the agent's calls to training rows, through the real gateway: what was sampled is what is stored and trained, once, after the
 * very tokens it was sampled after, however the agent goes about it.
 */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { scriptedLogprob } from '../../packages/testing/src/trajectories.ts';
import { TrainyardError } from '../../src/core/errors.ts';
import type { Message, Sample, Turn } from '../../src/core/types.ts';
import { stitch } from '../../src/tokens/stitch.ts';
import { open, post, renderer, say, tokenizer } from '../fixtures/gateway/streams.ts';

type Opened = ReturnType<typeof open>;
const roomy = { limits: { turns: 100, tokens: 1e9, deadlineMs: 1000 } };

const user = (content: string): Message => ({ role: 'user', content });

async function asked({ session }: Opened, messages: readonly Message[], headers: Record<string, string> = {}, more: object = {}) {
  const reply = await post(session, JSON.stringify({ messages, ...more }), { headers });
  const body = (await reply.json()) as { choices: { message: Message; finish_reason: string }[]; usage: object; error?: object };
  return { status: reply.status, body, message: body.choices?.[0]?.message as Message };
}

const stitched = (turns: readonly Turn[]): readonly Sample[] =>
  stitch(turns, { advantageOf: () => 1, weight: 1, rolloutId: 'r1', groupId: 'g1' });

/** Id, log-probability and the tokens before it, of every trained token. */
const trained = (samples: readonly Sample[]): string[] =>
  samples
    .flatMap(({ tokens, mask, logprobs }) =>
      [...tokens.keys()]
        .filter((at) => mask[at] === 1)
        .map((at) => `${tokens[at]} ${logprobs[at]} ${tokens.slice(0, at).join()}`),
    )
    .toSorted();

const sampled = (turns: readonly Turn[]): string[] =>
  turns
    .flatMap(({ promptIds, sampledIds, logprobs }) =>
      [...sampledIds].map((id, i) => `${id} ${logprobs[i]} ${[...promptIds, ...sampledIds.slice(0, i)].join()}`),
    )
    .toSorted();

describe('turns', () => {
  it('keep ids that no tokenisation of their text would give, each with its log-probability', async () => {
    const spelled = [...['I', 't', ' ', 'c'].flatMap((letter) => [...tokenizer.encodeText(letter)]), ...say('<|im_end|>')];
    expect([...tokenizer.encodeRendered(tokenizer.decode(spelled))]).not.toEqual(spelled);
    const opened = open({ reply: () => spelled });
    const first = await asked(opened, [user('a')]);
    await asked(opened, [user('a'), first.message, user('b')]);
    const turns = opened.session.seal();
    expect([...turns[0]!.sampledIds]).toEqual(spelled);
    expect([...turns[0]!.logprobs]).toEqual(spelled.map(scriptedLogprob));
    expect(turns[1]!.after).toBe(0);
    expect(trained(stitched(turns))).toEqual(sampled(turns));
  });

  it('that were cut off are told so, and no end token is added to what was sampled', async () => {
    const opened = open({ reply: () => say('It costs $81.<|im_end|>') });
    const { body } = await asked(opened, [user('a')], {}, { max_tokens: 3 });
    expect(body.choices[0]!.finish_reason).toBe('length');
    const [turn] = opened.session.seal();
    expect([...turn!.sampledIds]).toEqual(say('It costs $81.').slice(0, 3));
    expect(body.usage).toMatchObject({ prompt_tokens: turn!.promptIds.length, completion_tokens: 3 });
  });
});

describe('an engine that does not answer', () => {
  it.each([
    ['is down', new TrainyardError('ENGINE_FAILED', 'connection refused'), 502, null],
    ['has too much to do', new TrainyardError('ENGINE_BUSY', 'queue full'), 429, '1'],
  ])('because it %s: an error that clients retry, and nothing recorded', async (_, thrown, status, retryAfter) => {
    const { session } = open({
      reply: () => {
        throw thrown;
      },
    });
    const reply = await post(session, JSON.stringify({ messages: [user('a')] }));
    expect([reply.status, reply.headers.get('retry-after')]).toEqual([status, retryAfter]);
    expect(session.seal()).toEqual([]);
  });
});

describe('a linear conversation', () => {
  it('of three calls is one sample with three trained spans and nothing else trained', async () => {
    const opened = open({ spec: roomy, reply: (_, call) => say(`answer ${call}<|im_end|>`) });
    const messages: Message[] = [user('a')];
    for (let i = 0; i < 3; i++) messages.push((await asked(opened, messages)).message, user(`more ${i}`));
    const turns = opened.session.seal();
    const [sample, ...more] = stitched(turns);
    expect(more).toEqual([]);
    const spans = [...sample!.mask]
      .join('')
      .match(/1+/g)!
      .map(({ length }) => length);
    expect(spans).toEqual(turns.map(({ sampledIds }) => sampledIds.length));
    expect(tokenizer.decode(sample!.tokens)).toMatch(
      /^<\|im_start\|>user\na<\|im_end\|>\n<\|im_start\|>assistant\nanswer 0<\|im_end\|>\n/,
    );
  });

  it('of twenty calls trains at most a tenth of the tokens that one row per call would', async () => {
    const opened = open({ spec: roomy, reply: () => say('It is in stock and costs $81.<|im_end|>') });
    const messages: Message[] = [user('How much is it?')];
    for (let i = 0; i < 20; i++) messages.push((await asked(opened, messages)).message, user('And the next one?'));
    const turns = opened.session.seal();
    const samples = stitched(turns);
    const apart = turns.reduce((sum, turn) => sum + turn.promptIds.length + turn.sampledIds.length, 0);
    const together = samples.reduce((sum, { tokens }) => sum + tokens.length, 0);
    expect(together / apart).toBeLessThanOrEqual(0.1);
    expect(trained(samples)).toEqual(sampled(turns));
  });

  it('with a turn in the middle that was cut off does not train the end token its template adds', async () => {
    const opened = open({ spec: roomy, reply: () => say('It costs $81.<|im_end|>') });
    const first = await asked(opened, [user('a')], {}, { max_tokens: 3 });
    await asked(opened, [user('a'), first.message, user('b')]);
    const turns = opened.session.seal();
    const [sample, ...more] = stitched(turns);
    expect(more).toEqual([]);
    const end = turns[0]!.promptIds.length + 3;
    expect([sample!.tokens[end], sample!.mask[end - 1], sample!.mask[end]]).toEqual([renderer.stopIds[0], 1, 0]);
  });
});

describe('what looks alike and is not', () => {
  it('the same words with other tool calls are not merged', async () => {
    const call = (name: string) => `<tool_call>{"name":"${name}","arguments":{}}</tool_call><|im_end|>`;
    const opened = open({ replies: [call('read_file'), call('delete_all')] });
    await asked(opened, [user('a')]);
    const second = await asked(opened, [user('a')]);
    await asked(opened, [user('a'), second.message, { role: 'tool', content: 'done' }]);
    const turns = opened.session.seal();
    expect(turns.map(({ after }) => after)).toEqual([undefined, undefined, 1]);
    expect(trained(stitched(turns))).toEqual(sampled(turns));
  });

  it('the same words of another speaker are not merged', async () => {
    const opened = open({ replies: ['hi<|im_end|>'] });
    await asked(opened, [user('a')]);
    await asked(opened, [user('a'), user('hi'), user('b')]);
    expect(opened.session.seal()[1]).not.toHaveProperty('after');
  });

  it('another agent of the rollout, named by x-sample-id, has turns and samples of its own', async () => {
    const opened = open({ spec: roomy });
    const first = await asked(opened, [user('a')], { 'x-sample-id': 'planner' });
    await asked(opened, [user('a'), first.message, user('b')], { 'x-sample-id': 'critic' });
    await asked(opened, [user('a'), first.message, user('b')], { 'x-sample-id': 'planner' });
    const turns = opened.session.seal();
    expect(turns.map(({ thread, after, fork }) => [thread, after, fork?.cause])).toEqual([
      ['planner', undefined, undefined],
      ['critic', undefined, 'role_change'],
      ['planner', 0, undefined],
    ]);
    expect(stitched(turns).length).toBe(2);
    expect(trained(stitched(turns))).toEqual(sampled(turns));
  });
});

describe('an agent that continues, restarts, rewrites and compacts as it likes', () => {
  it('has every sampled token trained exactly once, after the tokens it was sampled after', async () => {
    const move = fc.record({
      kind: fc.constantFrom('go on', 'ask again', 'rewrite', 'start over', 'compact'),
      at: fc.nat(9),
      thread: fc.constantFrom('default', 'other'),
      cut: fc.boolean(),
    });
    await fc.assert(
      fc.asyncProperty(fc.array(move, { minLength: 1, maxLength: 8 }), async (moves) => {
        const opened = open({ spec: roomy, reply: (_, call) => say(`${call % 3} is it<|im_end|>`) });
        let talk: Message[] = [user('q')];
        for (const { kind, at, thread, cut } of moves) {
          if (kind === 'start over') talk = [user(`q${at}`)];
          if (kind === 'compact') talk = [user('q'), ...talk.slice(-1)];
          if (kind === 'rewrite')
            talk = talk.map((message, i) => (i === at % talk.length ? { ...message, content: 'edited' } : message));
          const { message } = await asked(opened, talk, { 'x-sample-id': thread }, cut ? { max_tokens: 2 } : {});
          if (kind !== 'ask again') talk = [...talk, message, user('next')];
        }
        const turns = opened.session.seal();
        expect(turns.map(({ index }) => index)).toEqual(moves.map((_, i) => i));
        expect(opened.engine.requests.map(({ promptIds }) => promptIds)).toEqual(turns.map(({ promptIds }) => promptIds));
        expect(trained(stitched(turns))).toEqual(sampled(turns));
        for (const { index, after, promptIds } of turns) {
          if (after === undefined) continue;
          const earlier = turns[after]!;
          expect(after).toBeLessThan(index);
          const before = [...earlier.promptIds, ...earlier.sampledIds];
          expect([...promptIds.subarray(0, before.length)]).toEqual(before);
        }
      }),
      { numRuns: 150 },
    );
  });
});
