/** What the rollouts of the benchmark run on: everything real but the policy, which says what is in the script after a given time. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import OpenAI from 'openai';
import { scriptedLogprob } from '../../packages/testing/src/trajectories.ts';
import { mapConcurrently } from '../../src/core/async.ts';
import type { ModelHandle, WorkflowContext } from '../../src/core/contracts.ts';
import { defineGrader, defineWorkflow } from '../../src/core/define.ts';
import type { Message, Tool } from '../../src/core/types.ts';
import { Gateway, listen } from '../../src/gateway/gateway.ts';
import { graderInput } from '../../src/grading/call.ts';
import { inlineGrader } from '../../src/grading/inline.ts';
import { type RolloutParts, runRollout } from '../../src/rollout/runner.ts';
import { BASE_MODEL } from '../../src/settings/settings.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { createRenderer } from '../../src/tokens/renderer.ts';
import { loadTokenizer } from '../../src/tokens/tokenizer.ts';

export const TURNS = 5;
const GROUP = 8;

export interface Crowding {
  readonly atOnce: number;
  readonly latencyMs: number;
  readonly door: 'in-process' | 'http';
}

export interface Yard extends AsyncDisposable {
  /** Runs, grades and stores so many rollouts; seconds it took. Throws if one of them is not as it should be. */
  run(count: number, crowding: Crowding): Promise<number>;
}

const TOOLS: Tool[] = [
  {
    type: 'function',
    function: {
      name: 'lookup',
      description: 'price and stock of an item',
      parameters: { type: 'object', properties: { item: { type: 'string' } }, required: ['item'] },
    },
  },
];

const said = (turn: number): string =>
  turn < TURNS - 1
    ? `<tool_call>\n{"name": "lookup", "arguments": {"item": "item ${turn}"}}\n</tool_call><|im_end|>`
    : 'The total is 81.<|im_end|>';

const conversation = (ctx: WorkflowContext): Message[] => [
  { role: 'system', content: 'You are a shop assistant. Use the tools to answer.' },
  ...ctx.prompt,
];

const answerTo = (id: string, turn: number): Message => ({
  role: 'tool',
  tool_call_id: id,
  content: JSON.stringify({ price: 20 + turn, stock: turn }),
});

async function inProcess(ctx: WorkflowContext, model: ModelHandle): Promise<string> {
  const messages = conversation(ctx);
  for (let turn = 0; ; turn++) {
    const { message, toolCalls, text } = await model.generate({ messages, tools: TOOLS });
    if (toolCalls.length === 0) return text;
    messages.push(message, ...toolCalls.map(({ id }) => answerTo(id, turn)));
  }
}

async function overHttp(ctx: WorkflowContext, { baseURL, apiKey, name }: ModelHandle): Promise<string> {
  const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
  const messages = conversation(ctx);
  for (let turn = 0; ; turn++) {
    const wanted = {
      model: name,
      messages: messages as OpenAI.ChatCompletionMessageParam[],
      tools: TOOLS as OpenAI.ChatCompletionTool[],
    };
    const message = (await client.chat.completions.create(wanted)).choices[0]!.message as Message;
    if (!message.tool_calls?.length) return message.content ?? '';
    messages.push(message, ...message.tool_calls.map(({ id }) => answerTo(id, turn)));
  }
}

const agents = {
  'in-process': defineWorkflow(async (ctx) => await inProcess(ctx, ctx.model())),
  http: defineWorkflow(async (ctx) => await overHttp(ctx, ctx.model())),
};

export async function openYard(): Promise<Yard> {
  const tokenizer = await loadTokenizer(BASE_MODEL);
  const script = Array.from({ length: TURNS }, (_, turn) => {
    const ids = Int32Array.from(tokenizer.encodeRendered(said(turn)));
    return { ids, logprobs: Float32Array.from(ids, scriptedLogprob) };
  });
  let latencyMs = 0;
  // Which turn it is shows in how many messages the prompt has: two at first, one begun by the policy, two more with each turn.
  const [begin] = tokenizer.encodeRendered('<|im_start|>');
  const turnOf = (promptIds: Int32Array): number => (promptIds.filter((id) => id === begin).length - 3) / 2;
  const engine = {
    vocabSize: 512,
    contextLength: 4096,
    policyVersion: 0,
    async sample({ promptIds }: { readonly promptIds: Int32Array }) {
      const { ids, logprobs } = script[turnOf(promptIds)]!;
      if (latencyMs > 0) await new Promise((resolve) => setTimeout(resolve, latencyMs));
      return { ids, logprobs, stopReason: 'stop' as const, policyVersion: 0 };
    },
  };
  const gateway = new Gateway({ engine, renderer: createRenderer(tokenizer), modelName: 'policy' });
  const listener = await listen(gateway);
  const dir = await mkdtemp(join(tmpdir(), 'trainyard-bench-'));
  const store = await openSqliteStore(join(dir, 'store.sqlite'));
  const parts: Omit<RolloutParts, 'workflow'> = {
    sessions: gateway,
    grader: inlineGrader(defineGrader(({ output }) => (output === 'The total is 81.' ? 1 : 0))),
    graderInput,
    store,
    limits: { turns: 16, tokens: 4096, deadlineMs: 120_000 },
    seed: 1,
    clock: { now: Date.now },
    signal: new AbortController().signal,
  };
  const sampling = { temperature: 1, topP: 1, topK: 0, maxTokens: 256 };
  let number = 0;
  return {
    async run(count, { atOnce, latencyMs: latency, door }) {
      latencyMs = latency;
      const tasks = Array.from({ length: count }, () => ++number);
      const start = performance.now();
      const rollOut = async (one: number): Promise<void> => {
        // As in training: the rollouts of a group have the same question, those of other groups another one.
        const group = Math.floor(one / GROUP);
        const task = {
          id: 't',
          prompt: [{ role: 'user' as const, content: `What do five items cost, order ${10_000_000 + group}?` }],
        };
        const identity = { rolloutId: `r${one}`, groupId: `g${group}`, taskId: 't', purpose: 'train' as const };
        const { grade, turns } = await runRollout({ ...parts, workflow: agents[door] }, { task, identity, sampling });
        if (turns.length === TURNS && grade.kind === 'graded' && grade.reward.value === 1) return;
        throw new Error(`rollout ${one} has ${turns.length} turns and ${JSON.stringify(grade)}`);
      };
      await mapConcurrently(tasks, atOnce, rollOut);
      return (performance.now() - start) / 1000;
    },
    async [Symbol.asyncDispose]() {
      await store[Symbol.asyncDispose]();
      await listener[Symbol.asyncDispose]();
      await rm(dir, { recursive: true, force: true });
    },
  };
}
