/** Agents of the OpenAI Agents SDK in an `AgentWorkflow`, with the real SDK. */
import { Agent, handoff, run as runAgent, setTracingDisabled, tool } from '@openai/agents';
import { beforeAll, describe, expect, it } from 'vitest';
import { z } from 'zod';
import { type AgentWorkflowContext, RolloutContext } from '../../src/osmosis.ts';
import { inputItems, OsmosisAgent, OsmosisMemorySession, OsmosisRolloutModel } from '../../src/osmosis-openai-agents.ts';
import { AlwaysRight, bench, doing, TASK } from './rollouts.ts';

beforeAll(() => setTracingDisabled(true));

/** Made once for all rollouts: its model is looked up at every call. */
const agent = new OsmosisAgent({
  name: 'simple-openai-agent',
  instructions: 'Answer clearly.',
  model: new OsmosisRolloutModel(),
  modelSettings: { temperature: 0.5, maxTokens: 40 },
});

async function outcomeOf(run: (ctx: AgentWorkflowContext) => Promise<void>) {
  const { run: rollout } = await bench({ W: doing(run), AlwaysRight });
  return (await rollout()).outcome;
}

describe('an agent with a session', () => {
  it('is a sample by the name of the session', async () => {
    const W = doing(async ({ prompt }) => {
      const session = new OsmosisMemorySession({ name: 'simple' });
      const { finalOutput } = await runAgent(agent, inputItems(prompt), { session });
      expect(finalOutput).toBe('answer 0');
    });
    const { run } = await bench({ W, AlwaysRight });
    const { outcome, turns, grade } = await run();
    expect({ outcome, grade }).toMatchObject({ outcome: { kind: 'completed' }, grade: { reward: { byThread: { simple: 1 } } } });
    expect(turns.map(({ thread }) => thread)).toEqual(['simple']);
    expect(turns[0]?.request.messages).toEqual([{ role: 'system', content: 'Answer clearly.' }, ...TASK.prompt]);
    expect(turns[0]?.sampling.requested).toEqual({ temperature: 0.5, maxTokens: 40 });
  });

  it('remembers what was said before, and streams', async () => {
    const W = doing(async ({ prompt }) => {
      const session = new OsmosisMemorySession();
      await runAgent(agent, inputItems(prompt), { session });
      const streamed = await runAgent(agent, 'And then?', { session, stream: true });
      await streamed.completed;
    });
    const { run } = await bench({ W, AlwaysRight });
    const { turns, outcome } = await run();
    expect(outcome).toEqual({ kind: 'completed' });
    expect(turns.map(({ thread, after }) => [thread, after])).toEqual([
      ['agent-1', undefined],
      ['agent-1', 0],
    ]);
  });

  it('takes an assistant’s message of the prompt as it is', async () => {
    const prompt = [...TASK.prompt, { role: 'assistant' as const, content: 'hi' }, { role: 'user' as const, content: 'go on' }];
    const W = doing(async (ctx) => {
      await runAgent(agent, inputItems(ctx.prompt), { session: new OsmosisMemorySession({ name: 's' }) });
    });
    const { run } = await bench({ W, AlwaysRight });
    expect((await run({ ...TASK, prompt })).turns[0]?.request.messages.slice(1)).toEqual(prompt);
  });

  it('hands over to another agent within one sample', async () => {
    const expert = new OsmosisAgent({ name: 'expert', instructions: 'You know.', model: new OsmosisRolloutModel() });
    const front = new OsmosisAgent({ name: 'front', model: new OsmosisRolloutModel(), handoffs: [handoff(expert)] });
    const W = doing(async ({ prompt }) => {
      await runAgent(front, inputItems(prompt), { session: new OsmosisMemorySession({ name: 'desk' }) });
    });
    const call = '<tool_call>\n{"name": "transfer_to_expert", "arguments": {}}\n</tool_call>';
    const { run } = await bench({ W, AlwaysRight }, (n) => (n === 0 ? call : 'I know'));
    const { turns, outcome } = await run();
    expect(outcome).toEqual({ kind: 'completed' });
    expect(turns.map(({ thread, response }) => [thread, response.content])).toEqual([
      ['desk', null],
      ['desk', 'I know'],
    ]);
  });

  it('may ask another agent as a tool, within its sample, and goes on', async () => {
    const expert = new OsmosisAgent({ name: 'expert', model: new OsmosisRolloutModel() });
    const asked = expert.asTool({ toolName: 'ask_expert', toolDescription: 'asks' });
    const W = doing(async ({ prompt }) => {
      const front = new OsmosisAgent({ name: 'front', model: new OsmosisRolloutModel(), tools: [asked] });
      await runAgent(front, inputItems(prompt), { session: new OsmosisMemorySession({ name: 'desk' }) });
    });
    const call = '<tool_call>\n{"name": "ask_expert", "arguments": {"input": "what?"}}\n</tool_call>';
    const { run } = await bench({ W, AlwaysRight }, (n) => (n === 0 ? call : `said ${n}`));
    const { turns, outcome } = await run();
    expect(outcome).toEqual({ kind: 'completed' });
    expect(turns.map(({ thread, response }) => [thread, response.content])).toEqual([
      ['desk', null],
      ['desk', 'said 1'],
      ['desk', 'said 2'],
    ]);
  });

  it('may be one of several at the same time, in many rollouts at once, and none mix', async () => {
    const echo = tool({
      name: 'echo',
      description: 'echo',
      parameters: z.object({}),
      execute: async () => 'echo',
    });
    const W = doing(async ({ rolloutId }) => {
      const one = async (name: string) => {
        const own = new OsmosisAgent({ name, model: new OsmosisRolloutModel(), tools: [echo] });
        await runAgent(own, `${rolloutId} ${name}`, { session: new OsmosisMemorySession({ name }) });
      };
      await Promise.all(['a', 'b', 'c'].map(one));
    });
    const { run, gateway } = await bench({ W, AlwaysRight });
    for (const { rolloutId, turns, outcome } of await Promise.all(Array.from({ length: 20 }, () => run()))) {
      expect(outcome).toEqual({ kind: 'completed' });
      expect(turns.map(({ thread }) => thread).toSorted()).toEqual(['a', 'b', 'c']);
      for (const { thread, request } of turns) expect(request.messages.at(-1)?.content).toBe(`${rolloutId} ${thread}`);
    }
    expect(gateway.openSessions).toBe(0);
  });
});

describe('misuse', () => {
  it('is a model call without a session', async () => {
    expect(await outcomeOf(async ({ prompt }) => void (await runAgent(agent, inputItems(prompt))))).toMatchObject({
      kind: 'failed',
      message: expect.stringContaining('without an active OsmosisMemorySession'),
    });
  });

  it('is a run without a session after one that had one: it would be heard as a part of it', async () => {
    const streamed = async (input: string, session?: OsmosisMemorySession) =>
      await (await runAgent(agent, input, { ...(session && { session }), stream: true })).completed;
    const plain = async (input: string, session?: OsmosisMemorySession) =>
      void (await runAgent(agent, input, session && { session }));
    for (const say of [plain, streamed]) {
      const twice = async (): Promise<void> => {
        const session = new OsmosisMemorySession({ name: 'first' });
        await say('hello', session);
        await say('again', session);
        await say('and now without');
      };
      const { turns, outcome } = await (await bench({ W: doing(twice), AlwaysRight })).run();
      expect(outcome).toMatchObject({ message: expect.stringContaining('without an active OsmosisMemorySession') });
      expect(turns.map(({ thread }) => thread)).toEqual(['first', 'first']);
    }
  });

  it('is a run without a session in a context inside another, whose session is not its own', async () => {
    const nested = async (ctx: AgentWorkflowContext): Promise<void> => {
      await runAgent(agent, 'hello', { session: new OsmosisMemorySession({ name: 'outer' }) });
      const inner = new RolloutContext({ model: ctx.model(), rolloutId: 'inner' });
      await inner.run(async () => runAgent(agent, 'hello'));
    };
    expect(await outcomeOf(nested)).toMatchObject({ message: expect.stringContaining('without an active OsmosisMemorySession') });
  });

  it('is a session of another rollout, or made before the rollout', async () => {
    const early = new OsmosisMemorySession({ name: 'early' });
    expect(await outcomeOf(async () => void (await runAgent(agent, 'hello', { session: early })))).toMatchObject({
      kind: 'failed',
      message: expect.stringContaining('used inside a RolloutContext it was not registered with'),
    });
  });

  it('is a model call outside of any rollout, or of the placeholder itself', async () => {
    await expect(runAgent(agent, 'hello')).rejects.toThrow('OsmosisRolloutModel requires an active RolloutContext');
    const plain = new Agent({ name: 'plain', model: new OsmosisRolloutModel() });
    await expect(runAgent(plain, 'hello')).rejects.toThrow('is a placeholder');
  });
});

describe('a session outside of any rollout', () => {
  it('is plain memory', async () => {
    const session = new OsmosisMemorySession({ name: 'memory' });
    await session.addItems([{ role: 'user', content: 'one' }]);
    await session.addItems([{ role: 'user', content: 'two' }]);
    expect(await session.getSessionId()).toBe('memory');
    expect(await session.getItems(1)).toEqual([{ role: 'user', content: 'two' }]);
    expect(await session.popItem()).toEqual({ role: 'user', content: 'two' });
    await session.clearSession();
    expect(await session.getItems()).toEqual([]);
  });
});

describe('what a session kept', () => {
  it('is left to graders elsewhere as messages; what is none as the SDK has it', async () => {
    const { asWorkflow, moduleOf } = await import('../../src/core/define.ts');
    const W = doing(async ({ prompt }) => {
      await runAgent(agent, inputItems(prompt), { session: new OsmosisMemorySession({ name: 'words' }) });
      const odd = new OsmosisMemorySession({ name: 'odd' });
      await odd.addItems([{ type: 'hosted_tool_call', name: 'web_search', status: 'completed' }]);
    });
    const workflow = asWorkflow(W, moduleOf({ W }))!;
    let returned: unknown;
    const seen = { ...workflow, run: async (ctx: never) => (returned = await workflow.run(ctx)) };
    const { run } = await bench({ seen, AlwaysRight });
    expect((await run()).grade).toMatchObject({ kind: 'graded' });
    expect(returned).toMatchObject({
      threads: {
        words: [...TASK.prompt, { role: 'assistant', content: 'answer 0' }],
        odd: [{ type: 'hosted_tool_call', name: 'web_search' }],
      },
    });
  });
});
