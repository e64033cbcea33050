import { describe, expect, it } from 'vitest';
import { ASKERS } from '../../test/fixtures/gateway/askers.ts';
import { postTo } from '../../test/fixtures/gateway/messages.ts';
import { ask, clientOf, specOf, tools } from '../../test/fixtures/gateway/streams.ts';
import type { DefaultModelAnswer, DefaultModelRequest, SessionSpec } from '../core/contracts.ts';
import type { Turn } from '../core/types.ts';
import { Gateway } from './gateway.ts';

const USAGE = { promptTokens: 21, completionTokens: 7 };

/** A rollout whose policy is this model behind an API, and what it was asked. */
function served(spec: Partial<SessionSpec> = {}, temperature?: number, answer: Partial<DefaultModelAnswer> = {}) {
  const requests: DefaultModelRequest[] = [];
  const generate = async (request: DefaultModelRequest): Promise<DefaultModelAnswer> => {
    requests.push(request);
    return { content: 'It costs $81.', usage: USAGE, ...answer };
  };
  const gateway = new Gateway({ model: { name: 'gpt', generate }, temperature, modelName: 'policy' });
  return { session: gateway.open({ ...specOf('r1'), ...spec }), requests };
}

const RUN = { temperature: 0, topP: 1, topK: 0, maxTokens: 1000 };
const LIMITS = { turns: 4, tokens: 1000, deadlineMs: 1000 };

describe('a policy behind an API', () => {
  it.each(Object.entries(ASKERS))('answers, and its turn keeps messages and usage, no tokens: %s', async (_, asker) => {
    const { session, requests } = served();
    expect((await asker(session, false)).text).toBe('It costs $81.');
    expect(requests[0]).toMatchObject({ messages: ask });
    const [turn] = session.seal() as [Turn];
    expect(turn).toMatchObject({ model: 'gpt', trainable: true, usage: USAGE, request: { messages: ask } });
    expect(turn.promptIds.length + turn.sampledIds.length).toBe(0);
  });

  it('tells clients the usage that it counted', async () => {
    const { session } = served();
    const { usage } = await clientOf(session, true).chat.completions.create({ model: 'policy', messages: ask });
    expect(usage).toMatchObject({ prompt_tokens: 21, completion_tokens: 7, total_tokens: 28 });
  });

  it('is asked for what the agent requests, then for the run’s temperature; one that was given for the run wins', async () => {
    const asked = async (
      temperature: number | undefined,
      request: { readonly temperature?: number; readonly maxTokens?: number },
    ) => {
      const { session, requests } = served({ sampling: RUN, limits: LIMITS }, temperature);
      await session.model().generate({ messages: ask, ...request });
      return { sent: requests[0]!.sampling, kept: session.turns[0]!.sampling.effective.temperature };
    };
    expect(await asked(undefined, {})).toEqual({ sent: { temperature: 0 }, kept: 0 });
    expect(await asked(undefined, { temperature: 0.7, maxTokens: 50 })).toEqual({
      sent: { temperature: 0.7, maxTokens: 50 },
      kept: 0.7,
    });
    expect(await asked(0.2, { temperature: 0.7 })).toEqual({ sent: { temperature: 0.2 }, kept: 0.2 });
  });

  it('is told the run’s limit for one call, and the format that the client asks for', async () => {
    const { session, requests } = served({ sampling: { ...RUN, maxTokens: 30 }, limits: LIMITS });
    const schema = { type: 'object', required: ['price'] };
    const { turn } = await session.model().generate({ messages: ask, format: { schema }, tools });
    expect(requests[0]).toMatchObject({ format: { schema }, sampling: { maxTokens: 30 } });
    expect(turn?.formatError).toMatch(/not JSON/);
  });

  it('spends the rollout’s tokens by the usage that it reports, and its turns', async () => {
    const { session } = served({ limits: { ...LIMITS, tokens: 14 } });
    const { generate } = session.model();
    await generate({ messages: ask });
    await generate({ messages: ask });
    await expect(generate({ messages: ask })).rejects.toMatchObject({ code: 'LIMIT_REACHED', cause: 'tokens' });
  });

  it('refuses by name what needs its tokens', async () => {
    const { session } = served();
    const model = session.model();
    const refusal = { code: 'REQUEST_INVALID', message: expect.stringContaining('gpt is behind an API') };
    await expect(model.generate({ promptIds: [1, 2] })).rejects.toMatchObject(refusal);
    expect(() => model.render(ask)).toThrow(expect.objectContaining(refusal));
    expect(() => model.decode([1])).toThrow(expect.objectContaining(refusal));
    const chat = clientOf(session, true).chat.completions.create({ model: 'policy', messages: ask, logprobs: true });
    await expect(chat).rejects.toMatchObject({ status: 400, message: expect.stringContaining('gpt is behind an API') });
    const counted = await postTo(session, 'messages/count_tokens', { messages: ask });
    expect([counted.status, await counted.text()]).toEqual([400, expect.stringContaining('gpt is behind an API')]);
  });
});
