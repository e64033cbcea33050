/**
 * Hundreds of rollouts of one framework in one process, all at once, all through one agent or one model that the program made once. The
 * policy answers from the ids of each prompt, and every question, call and result carries its rollout's number: were two rollouts ever
 * mixed up, some turn would show another's.
 *
 * TRAINYARD_CONCURRENT_ROLLOUTS makes it more, or fewer for a quick run.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { Agent as OpenAIAgent, tool as openAITool, Runner } from '@openai/agents';
import { Agent as StrandsAgent, tool as strandsTool } from '@strands-agents/sdk';
import { tool as aiTool, stepCountIs, ToolLoopAgent } from 'ai';
import { expect, it } from 'vitest';
import { z } from 'zod';
import { scriptedEngine } from '../../packages/testing/src/trajectories.ts';
import * as aiSdk from '../../src/ai-sdk.ts';
import { currentRollout } from '../../src/core/context.ts';
import type { Workflow, WorkflowContext } from '../../src/core/contracts.ts';
import { defineWorkflow } from '../../src/core/define.ts';
import { Gateway } from '../../src/gateway/gateway.ts';
import * as agents from '../../src/openai-agents.ts';
import * as strands from '../../src/strands.ts';
import { renderer, tokenizer } from '../fixtures/gateway/streams.ts';
import { rolloutsThrough } from '../fixtures/scripted-gateway.ts';

const ROLLOUTS = Number(process.env['TRAINYARD_CONCURRENT_ROLLOUTS'] ?? 500);
const SYSTEM = 'You sell.';
const shape = z.object({ item: z.string() });

/** Of all texts, the numbers that they mention. */
const numbersIn = (text: string): readonly string[] => [...new Set([...text.matchAll(/#(\d+)#/g)].map(([, number]) => number!))];

/** A tool sees the rollout that it is called in, and answers with its number. */
function answer(what: string, item: string): string {
  const own = currentRollout()?.task.id;
  if (item !== `#${own}#`) throw new Error(`rollout ${own} was asked about ${item}`);
  return `the ${what} of ${item} is known`;
}

const say = (text: string): number[] => [...tokenizer.encodeRendered(`${text}<|im_end|>`)];

/** Price, then stock, then the answer; from nothing but the prompt. */
async function reply({ promptIds }: { readonly promptIds: Int32Array }): Promise<number[]> {
  const prompt = tokenizer.decode(promptIds);
  const numbers = numbersIn(prompt);
  const place = prompt.split('<|im_start|>assistant').length - 2;
  // Each waits differently long, so that the order in which rollouts are served keeps changing.
  await sleep((Number(numbers[0]) * 7 + place * 13) % 23);
  if (numbers.length !== 1) return say(`mixed up: #${numbers.join('# #')}#`);
  const call = (name: string): string => `<tool_call>{"name":"${name}","arguments":{"item":"#${numbers[0]}#"}}</tool_call>`;
  return say([call('price'), call('stock')][place] ?? `#${numbers[0]}# is in stock.`);
}

// ── one agent or model each, made once ───────────────────────────────────────────────────────────────────────────────────

const question = ({ prompt }: WorkflowContext): string => prompt[0]!.content;
const rewarded = (said: string): { output: string; reward: number } => ({ output: said, reward: 1 });
const TOOLS = ['price', 'stock'] as const;

const runner = new Runner({ tracingDisabled: true });
const openAIAgent = new OpenAIAgent({
  name: 'seller',
  instructions: SYSTEM,
  model: agents.policy(),
  tools: TOOLS.map((name) =>
    openAITool({ name, description: name, parameters: shape, execute: ({ item }) => answer(name, item) }),
  ),
});

const strandsModel = new strands.PolicyModel();
const strandsTools = TOOLS.map((name) =>
  strandsTool({ name, description: name, inputSchema: shape, callback: ({ item }) => answer(name, item) }),
);

const aiAgent = new ToolLoopAgent({
  model: aiSdk.policy(),
  instructions: SYSTEM,
  stopWhen: stepCountIs(5),
  tools: Object.fromEntries(
    TOOLS.map((name) => [
      name,
      aiTool({ description: name, inputSchema: shape, execute: async ({ item }) => answer(name, item) }),
    ]),
  ),
});

const WORKFLOWS: readonly Workflow[] = [
  defineWorkflow(async (ctx) => rewarded((await runner.run(openAIAgent, question(ctx))).finalOutput ?? ''), {
    name: 'the OpenAI Agents SDK',
  }),
  defineWorkflow(
    async (ctx) => {
      // A Strands agent is one conversation; its model and tools are shared.
      const agent = new StrandsAgent({ model: strandsModel, systemPrompt: SYSTEM, tools: strandsTools, printer: false });
      return rewarded((await agent.invoke(question(ctx))).toString().trim());
    },
    { name: 'Strands' },
  ),
  defineWorkflow(async (ctx) => rewarded((await aiAgent.generate({ prompt: question(ctx) })).text), { name: 'the AI SDK' }),
];

// ── all at once ──────────────────────────────────────────────────────────────────────────────────────────────────────────

async function rollOut(workflow: Workflow) {
  const engine = scriptedEngine({ vocabSize: renderer.vocabSize, contextLength: 8192, reply });
  const gateway = new Gateway({ engine, renderer, modelName: 'policy' });
  const run = rolloutsThrough(gateway);
  const limits = { turns: 8, tokens: 10_000, deadlineMs: 600_000 };
  const ask = (_: unknown, number: number) =>
    run({ workflow, limits }, { id: `${number}`, prompt: [{ role: 'user', content: `Is #${number}# in stock?` }] });
  return { trajectories: await Promise.all(Array.from({ length: ROLLOUTS }, ask)), gateway };
}

/** What keeps the process alive, by kind. */
function active(): ReadonlyMap<string, number> {
  const count = new Map<string, number>();
  for (const kind of process.getActiveResourcesInfo()) count.set(kind, (count.get(kind) ?? 0) + 1);
  return count;
}

/** What there is more of than before, when it has had time to end. */
async function leftOver(before: ReadonlyMap<string, number>): Promise<readonly string[]> {
  const more = (): string[] => [...active()].filter(([kind, count]) => count > (before.get(kind) ?? 0)).map(([kind]) => kind);
  for (let i = 0; i < 100 && more().length > 0; i++) await sleep(20);
  return more();
}

it.each(WORKFLOWS)(
  `${ROLLOUTS} rollouts of $name at once are never mixed up, and leave nothing behind`,
  async (workflow) => {
    const troubles: unknown[] = [];
    const note = (trouble: unknown): void => void troubles.push(trouble);
    process.on('unhandledRejection', note).on('warning', note);
    const before = active();
    const { trajectories, gateway } = await rollOut(workflow);
    expect(trajectories).toHaveLength(ROLLOUTS);
    for (const { taskId, turns, outcome, output } of trajectories) {
      expect(outcome).toEqual({ kind: 'completed' });
      expect(output).toBe(`#${taskId}# is in stock.`);
      expect(turns.map(({ after, fork }) => ({ after, fork }))).toEqual([{ after: undefined }, { after: 0 }, { after: 1 }]);
      for (const { request, response } of turns)
        expect(numbersIn(JSON.stringify([request.messages, response]))).toEqual([taskId]);
      const { promptIds, sampledIds } = turns[2]!;
      expect(numbersIn(tokenizer.decode(Int32Array.from([...promptIds, ...sampledIds])))).toEqual([taskId]);
    }
    expect(gateway.openSessions).toBe(0);
    expect(currentRollout()).toBeUndefined();
    expect(await leftOver(before)).toEqual([]);
    process.off('unhandledRejection', note).off('warning', note);
    expect(troubles).toEqual([]);
  },
  600_000,
);
