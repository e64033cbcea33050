/** Agents of the OpenAI Agents SDK in an `AgentWorkflow`, with the real SDK. */
import { Agent, handoff, run as runAgent, setTracingDisabled, tool } from '@openai/agents';
import { beforeAll, describe, expect, it } from 'vitest';
import { z } from 'zod';
import type { Trajectory } from '../../src/core/types.ts';
import { type AgentWorkflowContext, RolloutContext } from '../../src/osmosis.ts';
import { inputItems, OsmosisAgent, OsmosisMemorySession, OsmosisRolloutModel } from '../../src/osmosis-openai-agents.ts';
import { AlwaysRight, bench, doing, loweredResult, rollout, TASK } from './rollouts.ts';

beforeAll(() => setTracingDisabled(true));

/** Made once for all rollouts: its model is looked up at every call. */
const agent = new OsmosisAgent({
  name: 'simple-openai-agent',
  instructions: 'Answer clearly.',
  model: new OsmosisRolloutModel(),
  modelSettings: { temperature: 0.5, maxTokens: 40 },
});

const NO_SESSION = { kind: 'failed', message: expect.stringContaining('without an active OsmosisMemorySession') };
const session = (name: string) => ({ session: new OsmosisMemorySession({ name }) });
const said = ({ turns, outcome }: Trajectory) => ({
  outcome: outcome.kind,
  turns: turns.map(({ thread, response }) => [thread, response.content]),
});

it('refuses options in Python’s spelling by name, which the SDK would ignore', () => {
  const model = new OsmosisRolloutModel();
  const settings = { temperature: 1, max_tokens: 8 };
  expect(() => new OsmosisAgent({ name: 'a', model, model_settings: settings } as never)).toThrow('no option model_settings');
  expect(() => new OsmosisAgent({ name: 'a', model, modelSettings: settings } as never)).toThrow('no option max_tokens');
  expect(() => new OsmosisMemorySession('a' as never)).toThrow('OsmosisMemorySession');
});

describe('an agent with a session', () => {
  it('is a sample by the name of the session', async () => {
    const { outcome, turns, grade } = await rollout(async ({ prompt }) => {
      const { finalOutput } = await runAgent(agent, inputItems(prompt), session('simple'));
      expect(finalOutput).toBe('answer 0');
    });
    expect({ outcome, grade }).toMatchObject({ outcome: { kind: 'completed' }, grade: { reward: { byThread: { simple: 1 } } } });
    expect(turns.map(({ thread }) => thread)).toEqual(['simple']);
    expect(turns[0]?.request.messages).toEqual([{ role: 'system', content: 'Answer clearly.' }, ...TASK.prompt]);
    expect(turns[0]?.sampling.requested).toEqual({ temperature: 0.5, maxTokens: 40 });
  });

  it('remembers what was said before, and streams', async () => {
    const { turns, outcome } = await rollout(async ({ prompt }) => {
      const unnamed = new OsmosisMemorySession();
      await runAgent(agent, inputItems(prompt), { session: unnamed });
      const streamed = await runAgent(agent, 'And then?', { session: unnamed, stream: true });
      await streamed.completed;
    });
    expect(outcome).toEqual({ kind: 'completed' });
    expect(turns.map(({ thread, after }) => [thread, after])).toEqual([
      ['agent-1', undefined],
      ['agent-1', 0],
    ]);
  });

  it('takes an assistant’s message of the prompt as it is', async () => {
    const prompt = [...TASK.prompt, { role: 'assistant' as const, content: 'hi' }, { role: 'user' as const, content: 'go on' }];
    const run = async (ctx: AgentWorkflowContext) => void (await runAgent(agent, inputItems(ctx.prompt), session('s')));
    const { turns } = await rollout(run, undefined, { ...TASK, prompt });
    expect(turns[0]?.request.messages.slice(1)).toEqual(prompt);
  });

  const expert = new OsmosisAgent({ name: 'expert', instructions: 'You know.', model: new OsmosisRolloutModel() });
  it.each([
    ['hands over to another agent', 'transfer_to_expert', { handoffs: [handoff(expert)] }, ['said 1']],
    [
      'may ask another agent as a tool',
      'ask_expert',
      { tools: [expert.asTool({ toolName: 'ask_expert', toolDescription: 'asks' })] },
      ['said 1', 'said 2'],
    ],
  ])('%s, within one sample', async (_, name, more, answers) => {
    const front = new OsmosisAgent({ name: 'front', model: new OsmosisRolloutModel(), ...more });
    const call = `<tool_call>\n{"name": "${name}", "arguments": {"input": "what?"}}\n</tool_call>`;
    const trajectory = await rollout(
      async ({ prompt }) => void (await runAgent(front, inputItems(prompt), session('desk'))),
      (n) => (n === 0 ? call : `said ${n}`),
    );
    expect(said(trajectory)).toEqual({ outcome: 'completed', turns: [null, ...answers].map((answer) => ['desk', answer]) });
  });

  it('may be one of several at the same time, in many rollouts at once, and none mix', async () => {
    const echo = tool({ name: 'echo', description: 'echo', parameters: z.object({}), execute: async () => 'echo' });
    const W = doing(async ({ rolloutId }) => {
      const one = async (name: string) => {
        const own = new OsmosisAgent({ name, model: new OsmosisRolloutModel(), tools: [echo] });
        await runAgent(own, `${rolloutId} ${name}`, session(name));
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
    const { outcome } = await rollout(async ({ prompt }) => void (await runAgent(agent, inputItems(prompt))));
    expect(outcome).toMatchObject(NO_SESSION);
  });

  it.each([false, true])(
    'is a run without a session after one that had one: it would be taken for a part of it (streamed: %s)',
    async (stream) => {
      const say = async (input: string, given: object = {}) => {
        const result = await runAgent(agent, input, { ...given, ...(stream && { stream }) } as { stream: true });
        await result.completed;
      };
      const { turns, outcome } = await rollout(async () => {
        const first = session('first');
        await say('hello', first);
        await say('again', first);
        await say('and now without');
      });
      expect(outcome).toMatchObject(NO_SESSION);
      expect(turns.map(({ thread }) => thread)).toEqual(['first', 'first']);
    },
  );

  it('is a run without a session in a context inside another, whose session is not its own', async () => {
    const { outcome } = await rollout(async (ctx) => {
      await runAgent(agent, 'hello', session('outer'));
      const inner = new RolloutContext({ model: ctx.model(), rolloutId: 'inner' });
      await inner.run(async () => runAgent(agent, 'hello'));
    });
    expect(outcome).toMatchObject(NO_SESSION);
  });

  it('is a session of another rollout, or made before the rollout', async () => {
    const early = session('early');
    const { outcome } = await rollout(async () => void (await runAgent(agent, 'hello', early)));
    const message = expect.stringContaining('used inside a RolloutContext it was not registered with');
    expect(outcome).toMatchObject({ kind: 'failed', message });
  });

  it('is a model call outside of any rollout, or of the placeholder itself', async () => {
    await expect(runAgent(agent, 'hello')).rejects.toThrow('OsmosisRolloutModel requires an active RolloutContext');
    const plain = new Agent({ name: 'plain', model: new OsmosisRolloutModel() });
    await expect(runAgent(plain, 'hello')).rejects.toThrow('is a placeholder');
  });
});

describe('a session outside of any rollout', () => {
  it('is plain memory', async () => {
    const { session: memory } = session('memory');
    const [one, two] = ['one', 'two'].map((content) => ({ role: 'user' as const, content }));
    await memory.addItems([one!]);
    await memory.addItems([two!]);
    expect(await memory.getSessionId()).toBe('memory');
    expect(await memory.getItems(1)).toEqual([two]);
    expect(await memory.popItem()).toEqual(two);
    await memory.clearSession();
    expect(await memory.getItems()).toEqual([]);
  });
});

describe('what a session kept', () => {
  it('is left to graders elsewhere as messages; what is none as the SDK has it', async () => {
    const returned = await loweredResult(async ({ prompt }) => {
      await runAgent(agent, inputItems(prompt), session('words'));
      const { session: odd } = session('odd');
      await odd.addItems([{ type: 'hosted_tool_call', name: 'web_search', status: 'completed' }]);
    });
    expect(returned).toMatchObject({
      threads: {
        words: [...TASK.prompt, { role: 'assistant', content: 'answer 0' }],
        odd: [{ type: 'hosted_tool_call', name: 'web_search' }],
      },
    });
  });
});
