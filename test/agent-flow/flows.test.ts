/** Agent flows as rollouts of a run: through the real runner, gateway and flow routes, with a scripted engine. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it, onTestFinished } from 'vitest';
import {
  AgentFlowBase,
  BlackBoxAgentFlowBase,
  type FlowFields,
  flowRegistry,
  MultiStepAgentFlow,
  ProcessAgentFlow,
  register,
  type SamplingParams,
  SingleStepSingleTurnAgentFlow,
  Step,
  type StepFields,
} from '../../src/agent-flow.ts';
import type { GraderInput, GraderResult } from '../../src/core/contracts.ts';
import { asWorkflow, defineGrader } from '../../src/core/define.ts';
import type { RunEvent } from '../../src/core/events.ts';
import type { Task, Trajectory } from '../../src/core/types.ts';
import { Gateway, listen } from '../../src/gateway/gateway.ts';
import { inlineGrader } from '../../src/grading/inline.ts';
import { startWorkflow } from '../../src/rollout/runner.ts';
import { flowWorkflow } from '../../src/shapes/flows/flow-workflow.ts';
import { train } from '../../src/training/train.ts';
import { renderer } from '../fixtures/gateway/streams.ts';
import { refusal } from '../fixtures/refusal.ts';
import { rolloutsThrough } from '../fixtures/scripted-gateway.ts';
import { ANSWER, LOOKUP, replying, SAID, SAMPLING } from './bench.ts';

async function temporaryRun(): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'trainyard-flows-'));
  onTestFinished(() => rm(folder, { recursive: true }));
  return join(folder, 'run');
}

class Agent extends BlackBoxAgentFlowBase {
  async _runAgent(
    baseURL: string,
    { rawPrompt }: FlowFields,
    { apiKey }: { apiKey: string },
  ): Promise<{ reward?: number } | undefined> {
    const reply = await fetch(`${baseURL}/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' },
      body: JSON.stringify({ messages: [{ role: 'user', content: rawPrompt }] }),
    });
    if (!reply.ok) throw new Error(await reply.text());
    return undefined;
  }
}

const METADATA = { task: 'How much is it?', kind: 'price' };
const TASK: Task = { id: 't', prompt: [{ role: 'user', content: 'How much?' }], answer: ANSWER, metadata: METADATA };
type Run = [SamplingParams, FlowFields];

interface Options {
  readonly replies?: readonly string[];
  readonly metadata?: Task['metadata'];
  readonly graded?: boolean;
  readonly purpose?: 'train' | 'eval';
}

/** One rollout of the flow, as a run makes it. */
async function rollout(
  flow: unknown,
  { replies, metadata = METADATA, graded = true, purpose = 'train' }: Options = {},
): Promise<Trajectory> {
  const gateway = new Gateway({ engine: replying(replies), renderer, modelName: 'policy' });
  await using _listener = await listen(gateway);
  const right = ({ task: { answer }, output, result }: GraderInput): GraderResult => ({
    value: answer === ANSWER && output === 'It costs $81.' ? 1 : 0,
    metrics: { said: Object.keys(result.metadata ?? {}).length },
  });
  const grader = graded ? inlineGrader(defineGrader(right)) : undefined;
  const workflow = asWorkflow(flow)!;
  await using started = await startWorkflow(workflow, undefined, { gateway, grader });
  const limits = { turns: 8, tokens: 1000, deadlineMs: 10_000 };
  const trajectory = await rolloutsThrough(gateway)({ ...started, grader, limits }, { ...TASK, metadata }, purpose);
  expect(gateway.openSessions).toBe(0);
  return trajectory;
}

describe('a flow', () => {
  it('of several steps, by the base class: tools are run, the conversation goes on from the sampled ids, the grader decides', async () => {
    expect(await rollout(SingleStepSingleTurnAgentFlow)).toMatchObject({
      metrics: { steps: 1 },
      grade: { reward: { value: 1 } },
    });
    class Short extends MultiStepAgentFlow {
      override readonly tools = { lookup: { run: () => ({ price: 81 }) } };
    }
    const trajectory = await rollout(Short, { replies: [LOOKUP, SAID] });
    expect(trajectory).toMatchObject({
      outcome: { kind: 'completed' },
      metrics: { steps: 2 },
      grade: { reward: { value: 1 } },
      turns: [{ trainable: true }, { trainable: true, after: 0 }],
    });
    expect(trajectory.turns[1]?.request.messages.at(-1)).toMatchObject({ role: 'tool', content: '{"price":81}' });
  });

  it('is given the row without its answer, and config of its own', async () => {
    let seen: unknown;
    class Curious extends SingleStepSingleTurnAgentFlow {
      override async run(...given: Run): Promise<number> {
        seen = [...given, this.config, this.gatewayUrl, { ...this }];
        return await super.run(...given);
      }
    }
    await rollout(flowWorkflow({ name: 'x', flow: Curious, config: { k: [1] } }, flowRegistry()));
    const fields = { trajectoryUid: 'r0', promptUid: 'g', rawPrompt: 'How much?', kind: 'price', channel: 'train' };
    expect(seen).toMatchObject([SAMPLING, fields, { k: [1] }, expect.stringMatching(/^http:/), {}]);
    expect(JSON.stringify(seen)).not.toContain(ANSWER);
    const [, given] = seen as [unknown, Record<string, unknown>];
    expect(() => given['raw_prompt']).toThrow(/fields has no raw_prompt: it is rawPrompt here/);
    expect(() => given['trajectory_uid']).toThrow(/it is trajectoryUid here/);
    expect(() => given['answer']).toThrow(/gatewayComputeReward asks the grader/);
    expect(JSON.stringify(seen)).not.toMatch(/ty-/);
  });

  it('may speak in token ids, ask the grader on the way, and trains only what it submitted', async () => {
    class Tokens extends AgentFlowBase {
      async run(_: SamplingParams, { trajectoryUid, promptUid, prompt }: FlowFields): Promise<number> {
        const first = await this.gatewayGenerate({ messages: prompt });
        const { promptIds, responseIds } = await this.gatewayGenerate({
          promptIds: [...first.promptIds, 1],
          maxTokens: 64,
        });
        const inTokens = await this.gatewayComputeReward({ promptIds: first.promptIds, responseIds: first.responseIds });
        const messages = [...prompt, first.message];
        const { reward } = await this.gatewayComputeReward({ trajectoryUid, messages, datasetFields: { answer: 'no' } });
        if (inTokens.reward !== reward) throw new Error('they differ');
        const step = { promptIds, responseIds, trajectoryUid, promptUid, isLast: true, reward: reward * 2 };
        return await this.gatewaySubmitSteps([new Step(step)]);
      }
    }
    expect(await rollout(Tokens)).toMatchObject({
      turns: [{ trainable: false }, { trainable: true }],
      grade: { kind: 'graded', reward: { value: 2, source: 'workflow' } },
    });
  });

  it('may choose its uids, write the default channel out in an evaluation, and say things of a step that graders see', async () => {
    class Literal extends AgentFlowBase {
      async run(_: SamplingParams, { prompt }: FlowFields): Promise<number> {
        const names = { trajectoryUid: 'traj-abc', promptUid: 'prompt-xyz' };
        const { promptIds, responseIds, message } = await this.gatewayGenerate({ ...names, messages: prompt });
        const messages = [...prompt, message];
        const datasetFields = { kind: 'price' };
        const { reward } = await this.gatewayComputeReward({ trajectoryUid: 'traj-abc', messages, datasetFields });
        const step = new Step({ promptIds, responseIds, ...names, isLast: true, metadata: { flow: 'two', reward } });
        return await this.gatewaySubmitSteps([step], 'train');
      }
    }
    expect(await rollout(Literal, { purpose: 'eval' })).toMatchObject({
      purpose: 'eval',
      groupId: 'g',
      metadata: { steps: { 0: { turn: 0, metadata: { flow: 'two', reward: 1 } } } },
      grade: { reward: { value: 1, metrics: { said: 1 } } },
    });
  });

  it('knows calls in the model’s own format, and runs each of them', async () => {
    const texts = ['{"name":"lookup","parameters":{"item":"Bin"}}', '[TOOL_CALLS][{"name":"lookup","arguments":{}}]'];
    const calls = [{ function: { name: 'lookup', arguments: '{"item":"Bin"}' } }, { function: { name: 'fly', arguments: '{}' } }];
    const reply = (text: string | undefined) => ({ response_text: text, message: { tool_calls: calls } });
    class Tools extends MultiStepAgentFlow {
      override readonly tools = { lookup: { run: ({ item }: { item?: unknown }) => ({ item }) } };
    }
    const door = {
      url: 'http://g',
      key: 'k',
      signal: new AbortController().signal,
      fetch: async () => Response.json(reply(texts.pop())),
    };
    const flow = new Tools({ config: undefined, door });
    for (const _ of [1, 2]) {
      const { text } = await flow.gatewayGenerate({ messages: [] });
      expect(flow.isTerminal(text)).toBe(false);
      expect(await flow.executeTool(text)).toBe('[{"item":"Bin"},{"error":"no such tool"}]');
    }
    expect(flow.isTerminal('{"name":"an answer in JSON","parameters":{}}')).toBe(true);
    expect(await flow.executeTool('<tool_call>{"name":"lookup","arguments":{"item":1}}</tool_call>')).toBe('{"item":1}');
    expect(await flow.executeTool('<tool_call>{bad</tool_call>')).toMatch(/^{"error":/);
    expect(flow.isTerminal('<tool_call>{bad</tool_call>')).toBe(false);
  });

  it('that submits reward 0 logs where', async () => {
    class Zero extends SingleStepSingleTurnAgentFlow {
      override async gatewaySubmitSteps(steps: readonly StepFields[]): Promise<number> {
        return await super.gatewaySubmitSteps(steps.map((step) => ({ ...step, reward: 0 })));
      }
    }
    const { logs } = await rollout(Zero);
    expect(logs).toMatchObject([
      { text: expect.stringMatching(/^Zero submitted reward 0 at .*flows\.test\.ts:\d+:\d+\); leave it out/) },
    ]);
  });

  it('that says another number of steps than it submitted is noted; that says no number fails', async () => {
    class Wrong extends SingleStepSingleTurnAgentFlow {
      override async run(...given: Run): Promise<number> {
        return (await super.run(...given)) + 1;
      }
    }
    expect((await rollout(Wrong)).logs).toMatchObject([{ text: 'Wrong returned 2 steps; the gateway has 1' }]);
    class Silent extends SingleStepSingleTurnAgentFlow {
      override async run(): Promise<number> {
        return undefined as never;
      }
    }
    expect((await rollout(Silent)).outcome).toMatchObject({
      code: 'WORKFLOW_BAD_RESULT',
      message: expect.stringMatching(/Silent\.run returned undefined, expected the number of steps/),
    });
  });

  it('that submits no step trains nothing of what it generated, and its log and its run say so', async () => {
    class Forgetful extends AgentFlowBase {
      async run(_: SamplingParams, { prompt }: FlowFields): Promise<number> {
        await this.gatewayGenerate({ messages: prompt });
        return 0;
      }
    }
    expect(await rollout(Forgetful)).toMatchObject({
      turns: [{ trainable: false }],
      metrics: { steps: 0 },
      logs: [{ text: 'Forgetful submitted no step, so nothing that it generated is trained' }],
    });
    const events: RunEvent[] = [];
    const entry = {
      workflow: flowWorkflow({ name: 'Forgetful', flow: Forgetful }, flowRegistry()),
      grader: defineGrader(() => ({ value: 1 })),
    };
    const settings = { steps: 1, group: 2, groupsPerStep: 1, threads: 1, run: await temporaryRun() };
    const tasks = ['a', 'b', 'c', 'd'].map((prompt) => ({ prompt, answer: 'x' }));
    const training = train({ entry, tasks, ...settings }, (event) => events.push(event));
    await expect(training).rejects.toThrow(refusal('NO_SIGNAL', undefined, 'a flow submits the steps'));
    const told = events.filter((event) => event.type === 'warning' && event.code === 'NO_STEPS');
    expect(told).toMatchObject([{ message: expect.stringContaining('its flow submitted no step to train') }]);
  });

  it('that generates beside an agent, without steps, trains what the agent said', async () => {
    class Mixed extends Agent {
      override async _runAgent(...given: Parameters<Agent['_runAgent']>) {
        await this.gatewayGenerate({ messages: [{ role: 'user', content: 'a plan?' }] });
        return await super._runAgent(...given);
      }
    }
    const { turns, metrics } = await rollout(Mixed);
    expect(turns.map(({ trainable }) => trainable)).toEqual([false, true]);
    expect(metrics).toEqual({ steps: 1 });
  });

  it('with a method in Python’s spelling, a list of tools or an unknown option fails by name', async () => {
    class Snake extends MultiStepAgentFlow {
      execute_tool(): void {}
    }
    class Listed extends MultiStepAgentFlow {
      override tools = [] as never;
    }
    class Asking extends AgentFlowBase {
      async run(): Promise<number> {
        await this.gatewayComputeReward({ messages: [], dataset_fields: {} } as never);
        return 0;
      }
    }
    const told = await Promise.all([Snake, Listed, Asking].map(async (flow) => (await rollout(flow)).outcome));
    expect(told).toMatchObject([
      { message: expect.stringMatching('Snake has execute_tool, did you mean executeTool?') },
      { message: expect.stringMatching('tools is a list, expected an object of tools by name') },
      { message: expect.stringMatching(/gatewayComputeReward has no option dataset_fields, did you mean datasetFields/) },
    ]);
  });

  it('hears what the gateway refuses', async () => {
    class Forger extends AgentFlowBase {
      async run(_: SamplingParams, { trajectoryUid, promptUid }: FlowFields): Promise<number> {
        return await this.gatewaySubmitSteps([{ promptIds: [1], responseIds: [2], trajectoryUid, promptUid, isLast: true }]);
      }
    }
    const message = expect.stringMatching(/unknown_generation/);
    expect((await rollout(Forger)).outcome).toMatchObject({ kind: 'failed', message });
  });

  it('is chosen by the row’s agent_name', async () => {
    class Other extends SingleStepSingleTurnAgentFlow {
      override async run(...given: Run): Promise<number> {
        await this.gatewayGenerate({ messages: [{ role: 'user', content: 'other' }] });
        return await super.run(...given);
      }
    }
    register('the_other')(Other);
    const named = (agent_name: string) => rollout(SingleStepSingleTurnAgentFlow, { metadata: { agent_name } });
    expect((await named('the_other')).turns).toHaveLength(2);
    expect((await named('nobody')).outcome).toMatchObject({
      code: 'WORKFLOW_NOT_FOUND',
      message: expect.stringMatching(/no flow "nobody"; there are .*the_other/),
    });
  });

  it('without a run is none; a base class is none either; one whose run is not async is refused', async () => {
    for (const base of [AgentFlowBase, MultiStepAgentFlow, BlackBoxAgentFlowBase, ProcessAgentFlow])
      expect(asWorkflow(base)).toBeUndefined();
    class Base extends SingleStepSingleTurnAgentFlow {
      static override readonly abstract = true;
    }
    expect(asWorkflow(Base)).toBeUndefined();
    expect(asWorkflow(class extends Base {})).toBeDefined();
    class Empty extends (BlackBoxAgentFlowBase as unknown as typeof SingleStepSingleTurnAgentFlow) {}
    expect(() => asWorkflow(Empty)).toThrow('the flow Empty has no _runAgent');
    class Hasty extends AgentFlowBase {
      override run(): Promise<number> {
        return Promise.resolve(1);
      }
    }
    const refused = { code: 'WORKFLOW_NOT_ASYNC', message: expect.stringContaining('Hasty') };
    expect(() => asWorkflow(Hasty)).toThrowError(expect.objectContaining(refused));
    await expect(asWorkflow(class extends Base {})!.run({} as never)).rejects.toMatchObject({ code: 'NO_ROLLOUT' });
  });
});

describe('a black box', () => {
  it('is captured call by call, graded, and keeps the row’s fields', async () => {
    expect(await rollout(Agent)).toMatchObject({
      outcome: { kind: 'completed' },
      grade: { reward: { value: 1 } },
      metadata: { kind: 'price' },
      metrics: { steps: 1 },
    });
  });

  it('may have a row with a whole book in it', async () => {
    const book = 'x'.repeat(300_000);
    const { outcome, metadata } = await rollout(Agent, { metadata: { ...METADATA, book } });
    expect(outcome).toEqual({ kind: 'completed' });
    expect(metadata).toEqual(METADATA);
  });

  it('may give the reward itself', async () => {
    class Rewarded extends Agent {
      override async _runAgent(...given: Parameters<Agent['_runAgent']>) {
        await super._runAgent(...given);
        return { reward: 0.25 };
      }
    }
    expect((await rollout(Rewarded, { graded: false })).grade).toEqual({
      kind: 'graded',
      reward: { value: 0.25, source: 'workflow' },
    });
  });

  it('is completed also where the agent throws, or cannot be registered', async () => {
    const called: string[] = [];
    class Throwing extends Agent {
      constructor(setup: ConstructorParameters<typeof Agent>[0]) {
        const { fetch } = setup.door;
        const spy: typeof fetch = (input, init) => {
          called.push(new URL(String(input)).pathname);
          return fetch(input, init);
        };
        super({ ...setup, door: { ...setup.door, fetch: spy } });
      }
      override async _runAgent(...given: Parameters<Agent['_runAgent']>): Promise<never> {
        await super._runAgent(...given);
        throw new Error('tool exploded');
      }
    }
    expect(await rollout(Throwing)).toMatchObject({
      ...{ outcome: { kind: 'failed', message: 'tool exploded' }, grade: { kind: 'ungraded' }, turns: [{}] },
    });
    expect(called).toEqual(['/init_trajectory', '/r0/g/v1/register_trajectory', '/r0/g/v1/complete_trajectory']);
  });
});

describe('a program as an agent', () => {
  const ASKING = `
    let text = ''; for await (const part of process.stdin) text += part;
    const reply = await fetch(process.env.OPENAI_BASE_URL + '/chat/completions', { method: 'POST',
      headers: { authorization: 'Bearer ' + process.env.OPENAI_API_KEY, 'content-type': 'application/json' },
      body: JSON.stringify({ messages: [{ role: 'user', content: JSON.parse(text).rawPrompt }] }) });
    if (!reply.ok) throw new Error(await reply.text());
  `;
  const program = (code: string, more: { deadlineMs?: number } = {}) =>
    class Program extends ProcessAgentFlow {
      readonly command = [process.execPath, '--input-type=module', '-e', code] as const satisfies readonly [string, ...string[]];
      override readonly deadlineMs = more.deadlineMs ?? 10_000;
    };

  it('finds the policy in its environment and its task on standard input', async () => {
    expect(await rollout(program(ASKING))).toMatchObject({ outcome: { kind: 'completed' }, grade: { reward: { value: 1 } } });
  });

  it('that fails, or takes too long, fails its rollout, saying why', async () => {
    const failing = await rollout(program(`${ASKING}; console.error('no idea'); process.exit(3)`));
    expect(failing.outcome).toMatchObject({ kind: 'failed', message: expect.stringMatching(/exited with 3: no idea/) });
    expect(failing.turns).toHaveLength(1);
    const slow = await rollout(program('setInterval(() => {}, 1000)', { deadlineMs: 300 }));
    expect(slow.outcome).toMatchObject({ kind: 'failed', message: expect.stringMatching(/did not end within 300 ms/) });
  });

  it('that ends well without a call did nothing, whatever it says of itself', async () => {
    const boasting = await rollout(program(`console.log('reward=1'); console.log(JSON.stringify({ reward: 1 }))`));
    expect(boasting).toMatchObject({ outcome: { kind: 'rejected' }, grade: { kind: 'ungraded' }, turns: [] });
  });
});
