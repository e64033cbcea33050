/** Strands agents in an `AgentWorkflow`, with the real SDK. */
import { Agent, Model, tool } from '@strands-agents/sdk';
import { describe, expect, it } from 'vitest';
import { z } from 'zod';
import { AgentWorkflow, AgentWorkflowConfig, type AgentWorkflowContext } from '../../src/osmosis.ts';
import { OsmosisRolloutModel, OsmosisStrandsAgent } from '../../src/osmosis-strands.ts';
import { AlwaysRight, bench, doing, loweredResult, rollout, TASK } from './rollouts.ts';

const model = new OsmosisRolloutModel({ params: { temperature: 0.5 } });
const CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call>';

describe('an agent built in run', () => {
  it('goes on from the prompt, is a sample by its name, and prints nothing', async () => {
    const task = { ...TASK, prompt: [{ role: 'system' as const, content: 'Be brief.' }, ...TASK.prompt] };
    const simple = async ({ prompt }: AgentWorkflowContext) => {
      const agent = new OsmosisStrandsAgent({ name: 'simple', model, messages: prompt, callbackHandler: null });
      const result = await agent.invokeAsync();
      expect(result.lastMessage.content).toMatchObject([{ text: 'answer 0' }]);
    };
    const { turns, outcome, grade } = await rollout(simple, undefined, task);
    expect({ outcome, grade }).toMatchObject({ outcome: { kind: 'completed' }, grade: { reward: { byThread: { simple: 1 } } } });
    expect(turns.map(({ thread, request }) => [thread, request.messages])).toEqual([['simple', task.prompt]]);
    expect(turns[0]?.sampling.requested).toEqual({ temperature: 0.5 });
  });

  it('is graded, not lost, when an answer is cut off at the token limit', async () => {
    const told: unknown[] = [];
    const talkative = async ({ prompt }: AgentWorkflowContext) => {
      const short = new OsmosisRolloutModel({ params: { maxTokens: 2 } });
      const { stopReason, lastMessage } = await new OsmosisStrandsAgent({ name: 'a', model: short, messages: prompt }).invoke();
      told.push(stopReason, lastMessage.role);
    };
    const { turns, outcome, grade } = await rollout(talkative);
    expect(told).toEqual(['maxTokens', 'assistant']);
    expect(turns).toMatchObject([{ stopReason: 'length' }]);
    expect({ outcome, grade }).toMatchObject({ outcome: { kind: 'completed' }, grade: { kind: 'graded' } });
  });

  it('calls its tools until the policy calls none, in one conversation', async () => {
    const search = tool({
      name: 'search',
      description: 'Search for information.',
      inputSchema: z.object({ query: z.string() }),
      callback: ({ query }) => `results for ${query}`,
    });
    class Config extends AgentWorkflowConfig {
      override name = 'tool-workflow';
      model = model;
      tools = [search];
      maxIterations = 8;
    }
    let iterations = 0;
    class W extends AgentWorkflow<Config> {
      async run(ctx: AgentWorkflowContext<Config>): Promise<void> {
        const { maxIterations, model: own, tools } = ctx.config ?? new Config();
        const agent = new OsmosisStrandsAgent({ name: 'search-agent', model: own, tools, messages: ctx.prompt });
        for (let i = 0; i < maxIterations; i++) {
          iterations++;
          const { lastMessage } = await agent.invokeAsync();
          if (!lastMessage.content.some(({ type }) => type === 'toolUseBlock')) break;
        }
      }
    }
    const { run } = await bench({ W, config: new Config(), AlwaysRight }, (call) => (call === 0 ? CALL : 'found it'));
    const { turns, outcome } = await run();
    expect({ outcome, iterations }).toEqual({ outcome: { kind: 'completed' }, iterations: 1 });
    expect(turns[1]?.request.messages.slice(1)).toMatchObject([
      { role: 'assistant', tool_calls: [{ function: { name: 'search' } }] },
      { role: 'tool', content: 'results for x' },
    ]);
    expect(turns[1]?.after).toBe(0);
  });

  it('may be one of several, by name or by number', async () => {
    const W = doing(async ({ prompt }) => {
      const named = (name?: string) => new OsmosisStrandsAgent({ ...(name && { name }), model, messages: prompt });
      await Promise.all([named('writer').invoke(), named().invoke('And you?'), named().invoke()]);
    });
    const { run } = await bench({ W, AlwaysRight });
    const trajectories = await Promise.all([run(), run()]);
    for (const { turns } of trajectories) {
      expect(turns.map(({ thread }) => thread).toSorted()).toEqual(['agent-1', 'agent-2', 'writer']);
    }
  });

  it('with another model is a plain agent, of which nothing is recorded', async () => {
    class Other extends Model {
      updateConfig(): void {}
      getConfig() {
        return { modelId: 'other' };
      }
      async *stream() {
        yield { type: 'modelMessageStartEvent', role: 'assistant' } as const;
        yield { type: 'modelContentBlockStartEvent' } as const;
        yield { type: 'modelContentBlockDeltaEvent', delta: { type: 'textDelta', text: 'elsewhere' } } as const;
        yield { type: 'modelContentBlockStopEvent' } as const;
        yield { type: 'modelMessageStopEvent', stopReason: 'endTurn' } as const;
      }
    }
    const plain = async ({ prompt }: AgentWorkflowContext) =>
      void (await new OsmosisStrandsAgent({ name: 'plain', model: new Other(), messages: prompt }).invoke());
    expect(await rollout(plain)).toMatchObject({ turns: [], outcome: { kind: 'rejected', reason: 'no_turns' } });
  });

  it('leaves its conversation to graders elsewhere; what is no text as Strands has it', async () => {
    const image = { image: { format: 'png' as const, source: { bytes: new Uint8Array([1]) } } };
    const returned = await loweredResult(async ({ prompt }) => {
      await new OsmosisStrandsAgent({ name: 'words', model, messages: prompt }).invoke();
      new OsmosisStrandsAgent({ name: 'picture', model, messages: [{ role: 'user', content: [image] }] });
    });
    expect(returned).toMatchObject({
      threads: {
        words: [...TASK.prompt, { role: 'assistant', content: 'answer 0' }],
        picture: [{ role: 'user', content: [{ type: 'imageBlock' }] }],
      },
    });
  });
});

describe('the placeholder', () => {
  it('needs a rollout, and an OsmosisStrandsAgent', async () => {
    expect(() => new OsmosisStrandsAgent({ model })).toThrow('OsmosisRolloutModel requires an active RolloutContext');
    await expect(new Agent({ model, printer: false }).invoke('hello')).rejects.toThrow('is a placeholder');
  });

  it('refuses parameters that it would have to ignore', () => {
    expect(() => new OsmosisRolloutModel({ params: { max_tokens: 5 } as never })).toThrow('has no parameter max_tokens');
  });
});
