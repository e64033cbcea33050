/** Agents written with `@openai/agents`, on the policy in this process. */
import {
  Agent,
  type AgentInputItem,
  type Model,
  type ModelProvider,
  OpenAIProvider,
  Runner,
  run,
  type Session,
  tool,
} from '@openai/agents';
import OpenAI from 'openai';
import { describe, expect, it } from 'vitest';
import { z } from 'zod';
import type { ModelHandle } from '../../src/core/contracts.ts';
import { policy, policyProvider, RecordingSession } from '../../src/openai-agents.ts';
import { expectLinear } from '../fixtures/gateway/served.ts';
import { ANSWERS, CALLS, QUESTIONS, REPLIES, type Shop, Shop as TheShop } from '../fixtures/gateway/shop-agent.ts';
import { bothWays, inRollout, type Played, rollout } from '../fixtures/integrations/both-ways.ts';

process.env['OPENAI_AGENTS_DISABLE_TRACING'] = '1';

// The SDK's own types take ours.
policy() satisfies Model;
policyProvider() satisfies ModelProvider;
new RecordingSession<AgentInputItem>('main') satisfies Session;

const toolsOf = (shop: Shop) => [
  tool({
    name: 'lookup',
    description: shop.lookupText,
    parameters: z.object({ item: z.string() }),
    execute: ({ item }) => shop.lookup(item),
  }),
  tool({
    name: 'calculator',
    description: shop.calculatorText,
    parameters: z.object({ expression: z.string() }),
    execute: ({ expression }) => shop.calculator(expression),
  }),
];

function playing(providerOf: (model: ModelHandle) => ModelProvider, { stream = false } = {}): Played {
  return async (model, shop) => {
    const runner = new Runner({ modelProvider: providerOf(model), tracingDisabled: true });
    const agent = new Agent({ name: 'assistant', model: 'policy', instructions: shop.system, tools: toolsOf(shop) });
    const session = new RecordingSession<AgentInputItem>('main');
    const answers: unknown[] = [];
    for (const question of QUESTIONS) {
      if (stream) {
        const result = await runner.run(agent, question, { session, stream: true });
        await result.completed;
        answers.push(result.finalOutput);
      } else answers.push((await runner.run(agent, question, { session })).finalOutput);
    }
    return answers;
  };
}

const overHttp = (useResponses: boolean, stream = false): Played =>
  playing(({ baseURL, apiKey }) => new OpenAIProvider({ openAIClient: new OpenAI({ baseURL, apiKey }), useResponses }), {
    stream,
  });

const THINKING = REPLIES.map((reply, i) => `<think>\nthought ${i}\n</think>\n\n${reply}`);

describe('an agent of the OpenAI Agents SDK', () => {
  for (const stream of [false, true]) {
    for (const useResponses of [false, true]) {
      const how = `${useResponses ? 'Responses' : 'Chat Completions'}${stream ? ', streamed' : ''}`;
      it(`leaves the same trajectory in process as over ${how}`, async () => {
        const turns = await bothWays({
          inProcess: playing(() => policyProvider(), { stream }),
          overHttp: overHttp(useResponses, stream),
        });
        expectLinear(turns);
      });
    }
  }
});
