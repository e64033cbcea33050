/** The leaf files on a handle of a policy in another process: the same words over HTTP, and the same turns there. */
import { run as runAgent } from '@openai/agents';
import { generateText, Output, stepCountIs, tool } from 'ai';
import { expect, it } from 'vitest';
import { z } from 'zod';
import { policy } from '../../src/ai-sdk.ts';
import type { ModelHandle, WorkflowContext } from '../../src/core/contracts.ts';
import { defineGrader } from '../../src/core/define.ts';
import type { Message } from '../../src/core/types.ts';
import { generateOverHttp } from '../../src/gateway/chat-client.ts';
import { RolloutContext } from '../../src/osmosis.ts';
import { OsmosisAgent, OsmosisMemorySession, OsmosisRolloutModel } from '../../src/osmosis-openai-agents.ts';
import { expectLinear } from '../fixtures/gateway/served.ts';
import { ANSWERS, QUESTIONS, type Shop } from '../fixtures/gateway/shop-agent.ts';
import { bothWays, type Played } from '../fixtures/integrations/both-ways.ts';
import { execute, running } from '../fixtures/rollout-server/local-rollouts.ts';

const elsewhere = (handle: ModelHandle): ModelHandle => ({ ...handle, generate: (request) => generateOverHttp(handle, request) });
const here = (handle: ModelHandle): ModelHandle => handle;

const price = Output.object({ schema: z.object({ price: z.number() }) });

it('tools, forced ones and formats reach it as they reach one in this process', async () => {
  const playing =
    (from: (handle: ModelHandle) => ModelHandle): Played =>
    async (handle, shop: Shop) => {
      const model = policy(from(handle));
      const lookup = tool({
        description: shop.lookupText,
        inputSchema: z.object({ item: z.string() }),
        execute: async ({ item }) => shop.lookup(item),
      });
      const tools = { lookup, other: lookup };
      const asked = { model, tools, prompt: QUESTIONS[0]! };
      const { text } = await generateText({ ...asked, stopWhen: stepCountIs(3) });
      const any = await generateText({ ...asked, toolChoice: 'required' });
      const named = await generateText({ ...asked, toolChoice: { type: 'tool', toolName: 'other' } });
      const wrong = await generateText({ model, prompt: 'q', output: price }).then(
        ({ text: said }) => said,
        (thrown: Error) => thrown.name,
      );
      return [text, any.toolCalls.length, named.toolCalls[0]?.toolName, wrong];
    };
  const call = '{"item":"Zorvex lamp"}}</tool_call><|im_end|>';
  const turns = await bothWays({ inProcess: playing(here), overHttp: playing(elsewhere) }, [
    `<tool_call>{"name":"lookup","arguments":${call}`,
    `${ANSWERS[0]}<|im_end|>`,
    `"lookup","arguments":${call}`,
    call,
    'much<|im_end|>',
  ]);
  expectLinear(turns.slice(0, 2));
  expect(turns.at(-1)?.formatError).toContain('not JSON');
});

it('a grader on a rollout server sees an agent’s instructions, as in a run', async () => {
  let seen: readonly Message[] = [];
  const run = async (ctx: WorkflowContext): Promise<undefined> => {
    const context = new RolloutContext({ model: ctx.model(), rolloutId: ctx.rolloutId });
    await context.run(async () => {
      const agent = new OsmosisAgent({ name: 'two', instructions: 'Be kind.', model: new OsmosisRolloutModel() });
      await runAgent(agent, 'hello', { session: new OsmosisMemorySession({ name: 'two' }) });
    });
  };
  const grader = defineGrader(({ threads }) => {
    seen = threads['two'] ?? [];
    return 1;
  });
  await using backend = running(run, { grader });
  await execute(backend);
  expect(seen.map(({ role, content }) => [role, content])).toEqual([
    ['system', 'Be kind.'],
    ['user', 'hello'],
    ['assistant', '2 heard'],
  ]);
});
