/** Recorded answers in the policy's place: through the real gateway and runner, without a program or a model. */
import OpenAI from 'openai';
import { describe, expect, it } from 'vitest';
import { renderer } from '../../test/fixtures/gateway/streams.ts';
import { rolloutsThrough, type Says, scriptedGateway } from '../../test/fixtures/scripted-gateway.ts';
import type { DefaultModelLike, WorkflowContext, WorkflowResult } from '../core/contracts.ts';
import { defineWorkflow } from '../core/define.ts';
import type { Message, Trajectory } from '../core/types.ts';
import { Gateway } from '../gateway/gateway.ts';
import { Recording } from './replay.ts';

type Run = (ctx: WorkflowContext) => Promise<WorkflowResult>;

const TASK = { id: 't', prompt: [{ role: 'user' as const, content: 'How much?' }] };
const engine = {
  vocabSize: renderer.vocabSize,
  contextLength: 8192,
  policyVersion: 0,
  sample: () => Promise.reject(new Error('asked')),
};
const tool = { type: 'function' as const, function: { name: 'lookup', parameters: { type: 'object' } } };

const made = (run: Run, critic?: DefaultModelLike) =>
  defineWorkflow({ run, roles: { default: {}, ...(critic && { critic: { default: critic } }) }, trainable: ['default'] });

const record = (run: Run, says?: Says, limits = {}, critic?: DefaultModelLike): Promise<Trajectory> =>
  rolloutsThrough(scriptedGateway(says).gateway)({ workflow: made(run, critic), limits }, TASK);

async function again(was: Trajectory, run: Run, limits = {}, critic?: DefaultModelLike) {
  const recorded = new Recording(was);
  const gateway = new Gateway({ engine, renderer, modelName: 'policy', recorded });
  const now = await rolloutsThrough(gateway)({ workflow: made(run, critic), limits }, TASK);
  const { first, different, notMade, extra } = recorded;
  return { now, first, different, notMade, extra };
}

/** Looks a price up with the OpenAI client, streamed, then answers with a note of its own. */
const agent =
  (price: number, question = 'Is that right?'): Run =>
  async (ctx) => {
    const client = new OpenAI(ctx.model().openai());
    const messages: Message[] = [...ctx.prompt];
    const stream = client.chat.completions.stream({ model: 'policy', messages: messages as never, tools: [tool] });
    const [reply] = (await stream.finalChatCompletion()).choices;
    const [call] = reply?.message.tool_calls ?? [];
    messages.push({ role: 'assistant', content: null, tool_calls: [call as never] });
    messages.push({ role: 'tool', tool_call_id: call!.id, content: `{"price":${price}}` });
    const said = await ctx.model().generate({ messages, tools: [tool] });
    await ctx.model('critic').generate({ messages: [{ role: 'user', content: question }] });
    return { output: said.text, reward: said.turn!.sampledIds.length };
  };
const says: Says = (call) =>
  call === 0 ? '<tool_call>\n{"name": "lookup", "arguments": {"item":"fan"}}\n</tool_call>' : 'It costs $3.';
const critic: DefaultModelLike = async () => 'Yes.';
const silent: DefaultModelLike = () => Promise.reject(new Error('asked'));

const timeless = ({ startedAt: _, endedAt: _ended, turns, ...rest }: Trajectory) => ({
  ...rest,
  turns: turns.map((turn) => ({ ...turn, startedAt: 0, endedAt: 0 })),
});

describe('a replay', () => {
  it('of the same workflow is the same rollout, tokens, ids and default models included, and nothing is sampled', async () => {
    const was = await record(agent(3), says, {}, critic);
    expect(was.turns.map(({ model }) => model)).toEqual([undefined, undefined, 'critic']);
    const { now, ...differences } = await again(was, agent(3), {}, silent);
    expect(differences).toEqual({ first: null, different: 0, notMade: [], extra: 0 });
    expect(timeless(now)).toEqual(timeless(was));
  });

  it('names the first message that differs, and goes on with the recorded answers', async () => {
    const was = await record(agent(3), says, {}, critic);
    const { now, first, different } = await again(was, agent(4, 'Sure?'), {}, silent);
    expect(first).toMatchObject({ turn: 1, thread: 'default', message: 2 });
    expect([first?.was, first?.is]).toMatchObject([{ content: '{"price":3}' }, { role: 'tool', content: '{"price":4}' }]);
    expect([different, now.output, now.outcome.kind]).toEqual([2, 'It costs $3.', 'completed']);
  });

  it('names calls that are not made, and calls that have no recorded answer', async () => {
    const asking =
      (...texts: readonly string[]): Run =>
      async (ctx) => {
        for (const content of texts) await ctx.model().generate({ messages: [{ role: 'user', content }] });
        return { reward: 1 };
      };
    const was = await record(asking('a', 'b', 'c'));
    expect(await again(was, asking('b', 'a'))).toMatchObject({ first: null, notMade: [2], extra: 0 });
    const more = await again(was, asking('a', 'b', 'c', 'd'));
    expect(more).toMatchObject({ notMade: [], extra: 1, first: { turn: null, is: { content: 'd' } } });
    expect(more.now.outcome).toMatchObject({ kind: 'failed', message: expect.stringContaining('made no such call') });
  });

  it('fails where the recorded rollout failed, also if it went on', async () => {
    const long = 'word '.repeat(9_000);
    const run: Run = async (ctx) => {
      const ask = (content: string) => ctx.model().generate({ messages: [{ role: 'user', content }] });
      await ask('first');
      await ask(long).catch(() => ask('short'));
      await ask(long);
      return { reward: 1 };
    };
    const was = await record(run);
    expect(was).toMatchObject({ turns: [{}, {}], outcome: { kind: 'truncated', limit: 'context' } });
    expect(await again(was, run)).toMatchObject({ different: 0, extra: 0, notMade: [], now: { outcome: was.outcome } });
  });
});
