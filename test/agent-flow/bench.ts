/** The agent-flow routes on a gateway with a scripted engine, as a server has them: with a store, a grader and tasks. */
import { scriptedEngine } from '../../packages/testing/src/trajectories.ts';
import { AgentFlowManager, type FlowClass, flowRegistry, type ManagerOptions } from '../../src/agent-flow.ts';
import type { Store } from '../../src/core/contracts.ts';
import { defineGrader } from '../../src/core/define.ts';
import type { Limits, Task, Trajectory } from '../../src/core/types.ts';
import { Gateway } from '../../src/gateway/gateway.ts';
import { inlineGrader } from '../../src/grading/inline.ts';
import { mountAgentFlow } from '../../src/shapes/flows/flow-routes.ts';
import type { GroupPool } from '../../src/shapes/flows/group-pool.ts';
import { renderer, say } from '../fixtures/gateway/streams.ts';
import { memoryStore } from '../fixtures/store/memory-store.ts';

export const SAMPLING = { temperature: 1, topP: 1, topK: 0, maxTokens: 64 };
const LIMITS: Limits = { turns: 40, tokens: 100_000, deadlineMs: 60_000 };
export const ANSWER = 'SECRET-ANSWER-7f';
export const TASKS: readonly Task[] = [{ id: 'p1', prompt: [{ role: 'user', content: 'How much?' }], answer: ANSWER }];
export const ASK = [{ role: 'user', content: 'How much?' }];

export interface Sent {
  readonly status: number;
  // biome-ignore lint/suspicious/noExplicitAny: what came over the wire is looked at by the tests
  readonly body: any;
}

type SendOptions = { key?: string; method?: string; headers?: Record<string, string> };
export type FlowBench = ReturnType<typeof flowBench>;

export interface BenchOptions {
  readonly replies?: readonly string[];
  readonly limits?: Partial<Limits>;
  readonly store?: (store: Store) => Store;
  readonly grade?: ((said: string, answer: unknown) => number) | null;
  readonly clock?: { now(): number };
  readonly idleMs?: number;
  /** Without it sessions are opened by the test alone. */
  readonly serves?: boolean;
  /** Opened on the same store. */
  readonly pool?: GroupPool;
}

export const SAID = 'It costs $81.<|im_end|>';
export const LOOKUP = '<tool_call>{"name":"lookup","arguments":{"item": "Bin"}}</tool_call><|im_end|>';

/** Gives one reply after the other, the last again and again. */
export const replying = (replies: readonly string[] = [SAID]) =>
  scriptedEngine({
    vocabSize: renderer.vocabSize,
    contextLength: 4096,
    reply: (_, call) => say(replies[Math.min(call, replies.length - 1)]!),
  });

export function flowBench(options: BenchOptions = {}) {
  const { grade = (said, answer) => (said.includes('81') && answer === ANSWER ? 1 : 0) } = options;
  const engine = replying(options.replies);
  const { clock, idleMs } = options;
  const gateway = new Gateway({ engine, renderer, modelName: 'policy', ...(clock && { clock }), ...(idleMs && { idleMs }) });
  const store = options.store?.(memoryStore()) ?? memoryStore();
  const grader = grade && inlineGrader(defineGrader(({ task, output }) => grade(String(output), task.answer)));
  const flows = mountAgentFlow(gateway, {
    ...(grader ? { grader } : {}),
    taskOf: ({ taskId, promptUid }) => TASKS.find(({ id }) => id === (taskId ?? promptUid)),
    ...(options.serves === false
      ? {}
      : {
          sessionDefaults: { sampling: SAMPLING, limits: { ...LIMITS, ...options.limits }, seed: 1 },
          keep: (trajectory: Trajectory) => (options.pool ?? { keep: (one) => store.append(one) }).keep(trajectory),
          pool: options.pool,
        }),
  });
  const key = gateway.key('flow');
  const send = async (path: string, body?: unknown, options: SendOptions = {}): Promise<Sent> => {
    const { key: by = key, method = 'POST', headers = {} } = options;
    const text = body === undefined ? undefined : typeof body === 'string' ? body : JSON.stringify(body);
    const reply = await gateway.fetch(path.startsWith('http') ? path : `${gateway.origin}${path}`, {
      method,
      headers: { authorization: `Bearer ${by}`, ...headers },
      ...(text === undefined ? {} : { body: text }),
    });
    return { status: reply.status, body: await reply.json() };
  };
  const submit = (...steps: readonly object[]): Promise<Sent> => send('/submit_steps', { steps });
  return { gateway, engine, flows, store, key, send, submit, stored: () => store.query() };
}

/** A manager whose default flow is this one. */
export function managerOf({ gateway, key }: FlowBench, flow: FlowClass, options: Partial<ManagerOptions> = {}) {
  const flows = flowRegistry([{ name: 'x', flow }]);
  const fetch = gateway.fetch as typeof globalThis.fetch;
  return new AgentFlowManager({ flows, defaultFlow: 'x', gatewayUrl: gateway.origin, gatewayKey: key, fetch, ...options });
}

/** A session as a run holds one. */
export function held(bench: FlowBench, rolloutId = 'g1-0', purpose: 'train' | 'eval' = 'train') {
  const session = bench.gateway.open({
    identity: { rolloutId, groupId: 'g1', taskId: 'p1', purpose },
    roles: {},
    sampling: SAMPLING,
    limits: LIMITS,
    seed: 1,
    signal: new AbortController().signal,
  });
  return { session, key: bench.gateway.key('flow', { rollout: rolloutId }) };
}

/** One generation of a trajectory, and the step it makes. */
export async function generated(bench: FlowBench, trajectory_uid: string, prompt_uid = 'p1', messages: unknown = ASK) {
  const { status, body } = await bench.send('/generate', { trajectory_uid, prompt_uid, messages });
  if (status !== 200) throw new Error(JSON.stringify(body));
  const { prompt_ids, response_ids } = body;
  return { body, step: { prompt_ids, response_ids, trajectory_uid, prompt_uid, step_index: 0, is_last: false } };
}
