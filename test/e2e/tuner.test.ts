/** AgentScope's shape through the real gateway, runner, grader and store, with a scripted engine in the policy's place. */

import Anthropic from '@anthropic-ai/sdk';
import { Agent, Runner, setTracingDisabled } from '@openai/agents';
import { generateText } from 'ai';
import OpenAI from 'openai';
import { beforeAll, describe, expect, it } from 'vitest';
import { z } from 'zod';
import type { DefaultModelRequest, Grader } from '../../src/core/contracts.ts';
import { asGrader, asWorkflow, moduleOf } from '../../src/core/define.ts';
import type { Purpose, Task, Trajectory } from '../../src/core/types.ts';
import { Gateway } from '../../src/gateway/gateway.ts';
import { scriptedEngine } from '../../src/testing/trajectories.ts';
import { makeBatch } from '../../src/trainer/batch.ts';
import { BaseJudge, defineJudge, type ModelTuner, Workflow, WorkflowOutput, type WorkflowTask } from '../../src/tuner.ts';
import { renderer, rolloutsThrough, scriptedGateway, tokenizer } from '../fixtures/scripted-gateway.ts';

beforeAll(() => setTracingDisabled(true));

const TASK: Task = {
  id: 't',
  prompt: [
    { role: 'system', content: 'be brief' },
    { role: 'user', content: 'what is 1+1?' },
  ],
  answer: 'the secret answer',
  metadata: { env_type: 'sums', level: 3 },
};
const messages = [{ role: 'user' as const, content: 'hello' }];

interface Options {
  readonly grader?: Grader | undefined;
  readonly trainable?: readonly string[];
  readonly purpose?: Purpose;
  /** What the policy says at its n-th call. */
  readonly says?: (call: number) => string;
}

function bench({ grader, trainable, purpose = 'train', says = (call) => `policy ${call}` }: Options = {}) {
  const run = rolloutsThrough(scriptedGateway(says).gateway);
  return (Class: unknown, task = TASK): Promise<Trajectory> => {
    const workflow = asWorkflow(Class);
    if (workflow === undefined) throw new Error('no workflow');
    return run({ workflow, trainable, grader, limits: { turns: 16, tokens: 1000, deadlineMs: 5000 } }, task, purpose);
  };
}

type Execute = (task: WorkflowTask, modelTuner: ModelTuner, self: Workflow) => Promise<unknown>;
/** A workflow class whose episodes do this. */
function workflowOf(execute: Execute, targets?: readonly string[]) {
  return class Example extends Workflow {
    override trainableTargets = targets;
    async execute(task: WorkflowTask, modelTuner: ModelTuner): Promise<WorkflowOutput> {
      return (await execute(task, modelTuner, this)) as WorkflowOutput;
    }
  };
}

const says = (text: string, name = text) =>
  Object.defineProperty((_: DefaultModelRequest) => text, 'name', { value: name }) as (request: DefaultModelRequest) => string;
const played = ({ turns }: Trajectory) =>
  turns.map(({ role, trainable, model, response }) => ({ role, trainable, by: model ?? 'policy', said: response.content }));
const messageOf = ({ outcome }: Trajectory) => (outcome.kind === 'failed' ? `${outcome.code}: ${outcome.message}` : outcome.kind);

describe('a task', () => {
  it('has the question, the messages before it and the metadata, and never the answer', async () => {
    let seen: unknown;
    const Example = workflowOf(async (task, tuner) => {
      await tuner.generate({ messages });
      const { taskId, envType, episodeUuid, metadata } = task;
      seen = { ...{ taskId, envType, episodeUuid, metadata }, task: task.task, all: JSON.stringify([task, task.rollout.task]) };
      return { reward: 1 };
    });
    await bench()(Example);
    expect(seen).toMatchObject({
      ...{ taskId: 't', envType: 'sums', episodeUuid: 'r0', metadata: { env_type: 'sums', level: 3 } },
      task: { mainQuery: 'what is 1+1?', initMessages: [{ role: 'system', content: 'be brief' }], taskId: 't' },
      all: expect.not.stringMatching(/secret/),
    });
  });
});

describe('the tuner used as a model', () => {
  it('is the same policy for every client', async () => {
    const Example = workflowOf(async (_, tuner) => {
      const texts = [(await tuner.generate({ messages })).text];
      texts.push((await generateText({ model: tuner, prompt: 'hello' })).text);
      const agent = new Agent({ name: 'Friday', instructions: 'help', model: tuner });
      texts.push(String((await new Runner().run(agent, 'hello')).finalOutput));
      const openai = new OpenAI(tuner.openai());
      texts.push((await openai.chat.completions.create({ model: tuner.name, messages })).choices[0]?.message.content ?? '');
      const anthropic = new Anthropic(tuner.anthropic());
      const said = await anthropic.messages.create({ model: tuner.name, max_tokens: 20, messages });
      texts.push(said.content.map((part) => (part.type === 'text' ? part.text : '')).join(''));
      return { reward: 1, metadata: { texts } };
    });
    const trajectory = await bench()(Example);
    expect(messageOf(trajectory)).toBe('completed');
    expect(trajectory.metadata).toEqual({ texts: [0, 1, 2, 3, 4].map((call) => `policy ${call}`) });
    expect(trajectory.turns.map(({ trainable, model }) => [trainable, model])).toEqual(Array(5).fill([true, undefined]));
  });

  it('keeps conversations apart by thread', async () => {
    const Example = workflowOf(async (_, tuner) => {
      await tuner.thread('one').generate({ messages });
      await tuner.registerModel('a').thread('two').generate({ messages });
      return { reward: 1 };
    });
    const { turns } = await bench()(Example);
    expect(turns.map(({ thread, role }) => [role, thread])).toEqual([
      ['default', 'one'],
      ['a', 'two'],
    ]);
  });
});

describe('roles', () => {
  const both: Execute = async (_, tuner) => {
    await tuner.registerModel('a', { defaultModel: says('default a') }).generate({ messages });
    await tuner.registerModel('b', { defaultModel: says('default b') }).generate({ messages });
    return { reward: 1 };
  };

  it('are all trained where nobody says otherwise', async () => {
    expect(played(await bench()(workflowOf(both)))).toEqual([
      { role: 'a', trainable: true, by: 'policy', said: 'policy 0' },
      { role: 'b', trainable: true, by: 'policy', said: 'policy 1' },
    ]);
  });

  it('that are no target are played by their default model: in the trace, never in a sample', async () => {
    const trajectory = await bench()(workflowOf(both, ['a']));
    expect(played(trajectory)).toEqual([
      { role: 'a', trainable: true, by: 'policy', said: 'policy 0' },
      { role: 'b', trainable: false, by: 'default b', said: 'default b' },
    ]);
    expect(trajectory.turns[1]?.sampledIds).toHaveLength(0);
    const worse = { ...trajectory, rolloutId: 'other', grade: { kind: 'graded', reward: { value: 0 } } } as Trajectory;
    const { samples } = makeBatch([trajectory, worse]);
    expect(samples).toHaveLength(2);
    for (const { tokens } of samples) expect(tokenizer.decode([...tokens])).not.toMatch(/default/);
  });

  it('are switched by the run without touching the workflow', async () => {
    expect(played(await bench({ trainable: ['b'] })(workflowOf(both, ['a']))).map(({ by }) => by)).toEqual([
      'default a',
      'policy',
    ]);
    expect(played(await bench({ trainable: ['b'] })(workflowOf(both, []))).map(({ by }) => by)).toEqual(['default a', 'policy']);
  });

  it('are asked for at every call: a change between two calls takes effect', async () => {
    const Example = workflowOf(
      async (_, tuner, self) => {
        const model = tuner.registerModel('a', { defaultModel: says('default a') });
        for (const targets of [['a'], ['b'], undefined]) {
          self.trainableTargets = targets;
          await model.generate({ messages });
        }
        return { reward: 1 };
      },
      ['a'],
    );
    expect(played(await bench()(Example)).map(({ by, trainable }) => [by, trainable])).toEqual([
      ['policy', true],
      ['default a', false],
      ['policy', true],
    ]);
  });

  it('none of which is trained are an error in training, and all played by their default models in an evaluation', async () => {
    const training = await bench()(workflowOf(both, []));
    expect(messageOf(training)).toMatch(/^WORKFLOW_INVALID: no role is trained: trainableTargets is an empty list/);
    expect(training.turns).toEqual([]);
    const evaluation = await bench({ purpose: 'eval' })(workflowOf(both, []));
    expect(played(evaluation).map(({ by }) => by)).toEqual(['default a', 'default b']);
  });

  it('none of which is trained are an error even where the agent swallowed it', async () => {
    const swallowed = workflowOf(async (_, tuner) => {
      await tuner.generate({ messages }).catch(() => undefined);
      return { reward: 0 };
    }, []);
    expect(messageOf(await bench()(swallowed))).toMatch(/no role is trained/);
    const wrapped = workflowOf(async (_, tuner) => {
      await tuner.generate({ messages }).catch(() => {
        throw new Error('the agent gave up');
      });
    }, []);
    expect(messageOf(await bench()(wrapped))).toMatch(/^WORKFLOW_INVALID: no role is trained/);
    expect(messageOf(await bench()(workflowOf(both, ['wolf'])))).toMatch(
      /trainableTargets is wolf, and the roles are a, b, default/,
    );
  });

  it('without a default model are played by the policy, untrained', async () => {
    const Example = workflowOf(
      async (_, tuner) => {
        await tuner.registerModel('a').generate({ messages });
        await tuner.registerModel('b').generate({ messages });
        return { reward: 1 };
      },
      ['a'],
    );
    expect(played(await bench()(Example)).map(({ by, trainable }) => [by, trainable])).toEqual([
      ['policy', true],
      ['policy', false],
    ]);
  });

  it('have one default model each: another name is an error with both, the same name is not', async () => {
    const registering = (second: string) =>
      workflowOf(async (_, tuner) => {
        tuner.registerModel('a', { defaultModel: { name: 'qwen-max', baseURL: 'http://one.invalid/v1' } });
        await tuner
          .registerModel('a', { defaultModel: { name: second, baseURL: 'http://one.invalid/v1' } })
          .generate({ messages });
        return { reward: 1 };
      });
    expect(messageOf(await bench()(registering('qwen-max')))).toBe('completed');
    expect(messageOf(await bench()(registering('qwen-plus')))).toMatch(
      /role "a" has two default models: WAS qwen-max, NOW qwen-plus/,
    );
  });

  it('that nobody registered are an error that names the registered ones', async () => {
    const Example = workflowOf(async (_, tuner) => {
      tuner.registerModel('seer');
      tuner.registerModel('witch');
      tuner.getModel('sear');
      return { reward: 1 };
    });
    expect(messageOf(await bench()(Example))).toMatch(/role 'sear' is not registered; registered are seer, witch/);
  });

  it('may have a model of the AI SDK as their default, tools and all', async () => {
    const asked: unknown[] = [];
    const choices: unknown[] = [];
    const model = {
      ...{ specificationVersion: 'v4', provider: 'test', modelId: 'scripted', supportedUrls: {} },
      doGenerate: async (options: { prompt: unknown; toolChoice?: unknown }) => {
        asked.push(options.prompt);
        choices.push(options.toolChoice);
        const content = [{ type: 'tool-call', toolCallId: 'x', toolName: 'add', input: '{"a":1}' }];
        return { content, finishReason: { unified: 'tool-calls', raw: 'x' } };
      },
    };
    const tools = [{ type: 'function' as const, function: { name: 'add', parameters: { type: 'object' } } }];
    const Example = workflowOf(
      async (_, tuner) => {
        await tuner.registerModel('a').generate({ messages });
        const b = tuner.registerModel('b', { defaultModel: model });
        const first = await b.generate({ messages, tools });
        const result = { role: 'tool' as const, tool_call_id: first.toolCalls[0]!.id, content: '3' };
        await b.generate({ messages: [...messages, first.message, result], tools, tool: 'add' });
        return { reward: 1 };
      },
      ['a'],
    );
    const trajectory = await bench()(Example);
    expect(messageOf(trajectory)).toBe('completed');
    expect(trajectory.turns[1]).toMatchObject({ model: 'scripted', response: { tool_calls: [{ function: { name: 'add' } }] } });
    expect(choices).toEqual([undefined, { type: 'tool', toolName: 'add' }]);
    expect(asked[1]).toMatchObject([
      { role: 'user', content: [{ type: 'text', text: 'hello' }] },
      { role: 'assistant', content: [{ type: 'tool-call', toolName: 'add', input: { a: 1 } }] },
      { role: 'tool', content: [{ type: 'tool-result', toolName: 'add', output: { type: 'text', value: '3' } }] },
    ]);
  });

  it('may have the model handle of another gateway as their default', async () => {
    const engine = scriptedEngine({
      ...{ vocabSize: 1024, contextLength: 4096 },
      reply: () => [...tokenizer.encodeRendered('from elsewhere<|im_end|>')],
    });
    const elsewhere = new Gateway({ engine, renderer, modelName: 'frozen' }).open({
      identity: { rolloutId: 'other', groupId: 'g', taskId: 't', purpose: 'eval' },
      roles: {},
      sampling: { temperature: 0, topP: 1, topK: 0, maxTokens: 20 },
      limits: { turns: 4, tokens: 100, deadlineMs: 1000 },
      seed: 1,
      signal: new AbortController().signal,
    });
    const Example = workflowOf(
      async (_, tuner) => {
        await tuner.registerModel('a').generate({ messages });
        await tuner.registerModel('b', { defaultModel: elsewhere.model() }).generate({ messages });
        return { reward: 1 };
      },
      ['a'],
    );
    expect(played(await bench()(Example))[1]).toEqual({ role: 'b', trainable: false, by: 'frozen', said: 'from elsewhere' });
    expect(elsewhere.turns).toHaveLength(1);
  });

  it('refuse as a default model what is none, and the model in training; and an empty name', async () => {
    for (const [defaultModel, found] of [
      [3, '3'],
      [{}, 'an object with nothing'],
    ] as const) {
      const wrong = workflowOf(async (_, tuner) => tuner.registerModel('a', { defaultModel: defaultModel as never }));
      expect(messageOf(await bench()(wrong))).toContain(`role "a": expected a default model, found ${found}`);
    }
    const itself = workflowOf(async (_, tuner) => tuner.registerModel('a', { defaultModel: tuner }));
    expect(messageOf(await bench()(itself))).toMatch(/role "a": its default model is the model in training/);
    const nameless = workflowOf(async (_, tuner) => tuner.registerModel(''));
    expect(messageOf(await bench()(nameless))).toMatch(/registerModel was given role '', expected a name/);
  });
});

describe('the reward', () => {
  const returning = (output: unknown, calls = 1) =>
    workflowOf(async (_, tuner) => {
      for (let call = 0; call < calls; call++) await tuner.generate({ messages });
      return output;
    });
  const counting = () => {
    const calls: unknown[] = [];
    const judge = defineJudge((task, output) => {
      calls.push([task.task.answer, output.metadata]);
      return [0.25, true];
    });
    return { calls, judge };
  };

  it('of the workflow holds, and the judge is not asked', async () => {
    const { calls, judge } = counting();
    const output = new WorkflowOutput({ reward: 0.5, isSuccess: true, metadata: { a: 1 }, logMetrics: { steps: 2 } });
    const trajectory = await bench({ grader: judge })(returning(output));
    expect(trajectory).toMatchObject({ metadata: { a: 1 }, metrics: { steps: 2 } });
    expect(trajectory.grade).toMatchObject({ kind: 'graded', reward: { value: 0.5, success: true, source: 'workflow' } });
    expect(calls).toEqual([]);
  });

  it.each([[null], [undefined]])('%s is asked for once from the judge, who sees the answer and the output', async (reward) => {
    const { calls, judge } = counting();
    const trajectory = await bench({ grader: judge })(returning({ reward, metadata: { final_answer: '2' } }));
    expect(trajectory.grade).toEqual({ kind: 'graded', reward: { value: 0.25, success: true } });
    expect(calls).toEqual([['the secret answer', { final_answer: '2' }]]);
  });

  it('of 0 is a reward', async () => {
    const { calls, judge } = counting();
    expect((await bench({ grader: judge })(returning({ reward: 0 }))).grade).toMatchObject({ reward: { value: 0 } });
    expect(calls).toEqual([]);
  });

  it('that nobody gives ends the run with what to do', async () => {
    await expect(bench()(returning({ reward: null }))).rejects.toMatchObject({ code: 'REWARD_MISSING' });
  });

  it('as a list is one for every model call; its sum is the value', async () => {
    const trajectory = await bench()(returning({ reward: [0.5, -1, 2] }, 3));
    expect(trajectory.grade).toMatchObject({ reward: { value: 1.5, byTurn: { 0: 0.5, 1: -1, 2: 2 } } });
    expect(messageOf(await bench()(returning({ reward: [0.5, 1] }, 3)))).toMatch(
      /2 rewards by turn, expected one for each of the rollout's 3 turns/,
    );
    expect(messageOf(await bench()(returning({ reward: [1, 1] }, 1)))).toMatch(/2 rewards by turn/);
  });

  it.each([
    ['NaN', { reward: Number.NaN }, /reward NaN, expected a finite number/],
    ['a text', { reward: '1' }, /reward '1', expected a finite number/],
    ['a list with infinity', { reward: [1, Infinity] }, /reward Infinity, expected a finite number/],
    ['a bare number', 1, /execute returned 1/],
    ['nothing', undefined, /execute returned undefined/],
    [
      'another name',
      { rewards: 1, is_success: true },
      /no option rewards, did you mean reward\?; also: .*is_success, did you mean isSuccess\?/,
    ],
    ['no truth', { reward: 1, isSuccess: 'yes' }, /isSuccess 'yes', expected true or false/],
  ])('is not %s: the rollout fails, saying so', async (_, output, message) => {
    const trajectory = await bench()(returning(output));
    expect(messageOf(trajectory)).toMatch(/^WORKFLOW_BAD_RESULT: /);
    expect(messageOf(trajectory)).toMatch(message);
    expect(trajectory.grade).toEqual({ kind: 'ungraded', why: 'failed' });
  });
});

describe('a judge', () => {
  const silent = workflowOf(async (_, tuner) => {
    await tuner.generate({ messages });
    return { metadata: { final_answer: 'the secret answer' } };
  });

  it('may be a class', async () => {
    class ExactJudge extends BaseJudge {
      async computeReward(...[task, output]: Parameters<BaseJudge['computeReward']>) {
        const isRight = output.metadata['final_answer'] === task.task.answer;
        return [isRight ? 1 : 0, isRight] as const;
      }
    }
    const grader = asGrader(ExactJudge, moduleOf({ ExactJudge }));
    expect(grader?.name).toBe('ExactJudge');
    expect((await bench({ grader })(silent)).grade).toEqual({ kind: 'graded', reward: { value: 1, success: true } });
    expect(asGrader(BaseJudge)).toBeUndefined();
  });

  it('that fails or returns something else gives no reward, never 0', async () => {
    const number = defineJudge((() => 1) as never);
    expect((await bench({ grader: number })(silent)).grade).toMatchObject({
      kind: 'failed',
      message: expect.stringMatching(/returned 1, expected \[reward, isSuccess\]/),
    });
    const nan = defineJudge(() => [Number.NaN, true]);
    expect((await bench({ grader: nan })(silent)).grade).toMatchObject({ kind: 'failed', code: 'GRADER_BAD_REWARD' });
    expect(() => defineJudge(3 as never)).toThrowError(/defineJudge was given 3/);
  });
});

describe('structured output', () => {
  const FinalResult = z.object({ result: z.number() });
  const asking = (structuredModel: unknown) =>
    workflowOf(async (_, tuner) => {
      const { object, problem, generation } = await tuner.generateStructured({
        messages,
        structuredModel: structuredModel as never,
      });
      return {
        reward: object === undefined ? 0 : 1,
        metadata: { object: object ?? null, problem: problem ?? null, id: generation.id },
      };
    });
  const json = { type: 'object', properties: { result: { type: 'number' } }, required: ['result'] };

  it.each([
    ['a Zod schema', FinalResult],
    ['a JSON schema', json],
  ])('by %s is the arguments of the tool that the policy must call', async (_, schema) => {
    const trajectory = await bench({ says: () => '{"result":2}}</tool_call>' })(asking(schema));
    expect(messageOf(trajectory)).toBe('completed');
    expect(trajectory.turns[0]).toMatchObject({ request: { tools: [{ function: { name: 'generate_response' } }] } });
    expect(trajectory.metadata).toMatchObject({ object: { result: 2 }, problem: null });
    // What the policy had to say is given to it: only the arguments are sampled, and trained.
    expect(tokenizer.decode([...trajectory.turns[0]!.sampledIds])).not.toContain('generate_response');
  });

  it('that does not fit is a value with what is wrong, and was asked for once', async () => {
    for (const schema of [FinalResult, json]) {
      const trajectory = await bench({ says: () => '{"result":"two"}}</tool_call>' })(asking(schema));
      expect(trajectory.metadata).toMatchObject({ object: null, problem: expect.stringMatching(/^result: /) });
      expect(trajectory.grade).toMatchObject({ kind: 'graded', reward: { value: 0 } });
      expect(trajectory.turns).toHaveLength(1);
    }
    const nonsense = await bench({ says: () => 'x' })(asking(FinalResult));
    expect(nonsense.metadata).toMatchObject({ object: null, problem: expect.any(String) });
  });

  it('by something that is no schema is refused', async () => {
    expect(messageOf(await bench()(asking({ type: 'nonsense' })))).toMatch(/structuredModel cannot be used as a schema/);
  });
});

describe('a workflow class', () => {
  it('is made anew for each episode: nothing on `this` is seen by another', async () => {
    class Counting extends Workflow {
      override name = 'counting';
      seen: string[] = [];
      async execute(task: WorkflowTask, tuner: ModelTuner) {
        this.seen.push(task.episodeUuid);
        await tuner.generate({ messages });
        return new WorkflowOutput({ reward: 1, metadata: { seen: this.seen } });
      }
    }
    expect(asWorkflow(Counting)?.name).toBe('counting');
    const run = bench();
    const trajectories = await Promise.all([run(Counting), run(Counting), run(Counting)]);
    expect(trajectories.map(({ metadata }) => metadata)).toEqual([{ seen: ['r0'] }, { seen: ['r1'] }, { seen: ['r2'] }]);
  });

  it('is none while it is abstract', () => {
    abstract class Half extends Workflow {}
    class Marked extends Workflow {
      static abstract = true;
      async execute() {
        return { reward: 1 };
      }
    }
    class Concrete extends Marked {}
    expect([Workflow, Half, Marked].map((one) => asWorkflow(one))).toEqual([undefined, undefined, undefined]);
    expect(asWorkflow(Concrete)?.name).toBe('Concrete');
  });

  it('with mistakes is refused before anything runs, with all of them', () => {
    class Wrong extends Workflow {
      override name = 3 as never;
      override trainableTargets = 'werewolf' as never;
      execute() {
        return Promise.resolve({ reward: 1 });
      }
    }
    const problems: string[] = [];
    const module = {
      exports: [],
      problem: ({ code, message }: { code: string; message: string }) => problems.push(`${code} ${message}`),
    };
    expect(asWorkflow(Wrong, module as never)).toBeUndefined();
    expect(problems).toEqual([
      'WORKFLOW_NOT_ASYNC Wrong.execute is Function, expected an async function',
      'WORKFLOW_INVALID Wrong.name is 3, expected a text',
      "WORKFLOW_INVALID Wrong.trainableTargets is 'werewolf', expected a list of roles",
    ]);
    class Throwing extends Wrong {
      constructor() {
        super();
        throw new Error('no GPU');
      }
    }
    problems.length = 0;
    expect(asWorkflow(Throwing, module as never)).toBeUndefined();
    expect(problems).toEqual([expect.stringMatching(/^WORKFLOW_INIT_FAILED cannot make a Throwing: .*no GPU/)]);
  });
});
