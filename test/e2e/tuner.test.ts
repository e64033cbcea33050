/** AgentScope's shape through the real gateway, runner, grader and store, with a scripted engine in the policy's place. */
import Anthropic from '@anthropic-ai/sdk';
import { BaseChatModel } from '@langchain/core/language_models/chat_models';
import { AIMessage, type BaseMessage } from '@langchain/core/messages';
import { Agent, Runner, setTracingDisabled } from '@openai/agents';
import { generateText } from 'ai';
import OpenAI from 'openai';
import { beforeAll, describe, expect, it } from 'vitest';
import { z } from 'zod';
import type { DefaultModelRequest, Grader } from '../../src/core/contracts.ts';
import { asGrader, asWorkflow, moduleOf } from '../../src/core/define.ts';
import type { Json, Purpose, Task, Trajectory } from '../../src/core/types.ts';
import { ChatPolicy } from '../../src/langchain.ts';
import { makeBatch } from '../../src/training/batch.ts';
import { BaseJudge, defineJudge, type ModelTuner, Workflow, WorkflowOutput, type WorkflowTask } from '../../src/tuner.ts';
import { tokenizer } from '../fixtures/gateway/streams.ts';
import { rolloutsThrough, scriptedGateway } from '../fixtures/scripted-gateway.ts';

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

/** One rollout of such a workflow. */
const rollout = (execute: Execute, targets?: readonly string[], options?: Options): Promise<Trajectory> =>
  bench(options)(workflowOf(execute, targets));

const says = (text: string, name = text) =>
  Object.defineProperty((_: DefaultModelRequest) => text, 'name', { value: name }) as (request: DefaultModelRequest) => string;
const playedBy = ({ turns }: Trajectory) =>
  turns.map(({ trainable, model }) => `${model ?? 'policy'}${trainable ? ' trained' : ''}`);
const messageOf = ({ outcome }: Trajectory) => (outcome.kind === 'failed' ? `${outcome.code}: ${outcome.message}` : outcome.kind);

it('a task has the question, the messages before it and the metadata, and never the answer', async () => {
  let seen: unknown;
  await rollout(async (task, tuner) => {
    await tuner.generate({ messages });
    const { taskId, envType, episodeUuid, metadata } = task;
    expect(() => (task.task as unknown as { main_query: string }).main_query).toThrow(
      /task.task has no main_query: it is mainQuery here/,
    );
    expect(() => (task.task as unknown as { answer: string }).answer).toThrow(/a judge \(defineJudge\) gets task.task.answer/);
    seen = { ...{ taskId, envType, episodeUuid, metadata }, task: task.task, all: JSON.stringify([task, task.rollout.task]) };
    return { reward: 1 };
  });
  expect(seen).toMatchObject({
    ...{ taskId: 't', envType: 'sums', episodeUuid: 'r0', metadata: { env_type: 'sums', level: 3 } },
    task: { mainQuery: 'what is 1+1?', initMessages: [{ role: 'system', content: 'be brief' }], taskId: 't' },
    all: expect.not.stringMatching(/secret/),
  });
});

describe('the tuner used as a model', () => {
  it('is the same policy for every client', async () => {
    const trajectory = await rollout(async (_, tuner) => {
      const texts = [(await tuner.generate({ messages })).text];
      texts.push((await generateText({ model: tuner, prompt: 'hello' })).text);
      const agent = new Agent({ name: 'Friday', instructions: 'help', model: tuner });
      texts.push(String((await new Runner().run(agent, 'hello')).finalOutput));
      const openai = new OpenAI(tuner.openai());
      texts.push((await openai.chat.completions.create({ model: tuner.name, messages })).choices[0]?.message.content ?? '');
      const anthropic = new Anthropic(tuner.anthropic());
      const said = await anthropic.messages.create({ model: tuner.name, max_tokens: 20, messages });
      texts.push(said.content.map((part) => (part.type === 'text' ? part.text : '')).join(''));
      texts.push(String((await new ChatPolicy(tuner).invoke('hello')).content));
      return { reward: 1, metadata: { texts } };
    });
    expect(messageOf(trajectory)).toBe('completed');
    expect(trajectory.metadata).toEqual({ texts: [0, 1, 2, 3, 4, 5].map((call) => `policy ${call}`) });
    expect(playedBy(trajectory)).toEqual(Array(6).fill('policy trained'));
  });

  it('keeps conversations apart by thread', async () => {
    const { turns } = await rollout(async (_, tuner) => {
      await tuner.thread('one').generate({ messages });
      await tuner.registerModel('a').thread('two').generate({ messages });
      return { reward: 1 };
    });
    expect(turns.map(({ thread, role }) => `${role} ${thread}`)).toEqual(['default one', 'a two']);
  });
});

it('a chat model of LangChain is a default model, with tools', async () => {
  const seen: unknown[] = [];
  class Chat extends BaseChatModel {
    readonly model = 'qwen-max';
    override _llmType(): string {
      return 'test';
    }
    override bindTools = (tools: unknown[], options: object = {}) => {
      seen.push(tools.length, options);
      return this;
    };
    override async _generate(given: BaseMessage[]) {
      seen.push(given.map((message) => `${message.type} ${message.text}`));
      const tool_calls = seen.length > 1 ? [{ name: 'add', args: { a: 1 }, id: 'x' }] : [];
      return { generations: [{ text: '', message: new AIMessage({ content: 'hm', tool_calls }) }] };
    }
  }
  const tools = [{ type: 'function' as const, function: { name: 'add', parameters: { type: 'object' } } }];
  const trajectory = await rollout(
    async (_, tuner) => {
      await tuner.generate({ messages });
      const model = tuner.registerModel('b', { defaultModel: new Chat({}) });
      const first = await model.generate({ messages });
      const second = await model.generate({ messages: [...messages, first.message], tools, tool: 'add' });
      const result = { role: 'tool' as const, content: '2', tool_call_id: second.toolCalls[0]!.id };
      await model.generate({ messages: [...messages, first.message, second.message, result] });
      return { reward: 1, metadata: { called: second.toolCalls.map((call) => ({ ...call.function })) } };
    },
    ['default'],
  );
  expect(messageOf(trajectory)).toBe('completed');
  expect(playedBy(trajectory)).toEqual(['policy trained', 'qwen-max', 'qwen-max', 'qwen-max']);
  expect(trajectory.metadata).toEqual({ called: [{ name: 'add', arguments: '{"a":1}' }] });
  const asked = ['human hello', 'ai hm'];
  expect(seen).toEqual([['human hello'], 1, { tool_choice: 'add' }, asked, [...asked, 'ai hm', 'tool 2']]);
});

describe('roles', () => {
  /** Both speak once; without default models where that is asked for. */
  const speaking =
    (hasDefaults = true): Execute =>
    async (_, tuner) => {
      for (const role of ['a', 'b']) {
        const options = hasDefaults ? { defaultModel: says(`default ${role}`) } : {};
        await tuner.registerModel(role, options).generate({ messages });
      }
      return { reward: 1 };
    };
  const both = speaking();

  const switched = ['default a', 'policy trained'];
  it.each<[string, string[] | undefined, Options, string[], Execute?]>([
    ['are all trained where nobody says otherwise', undefined, {}, ['policy trained', 'policy trained']],
    ['that are no target are played by their default model', ['a'], {}, ['policy trained', 'default b']],
    ['without a default model are played by the policy', ['a'], {}, ['policy trained', 'policy'], speaking(false)],
    ['are switched by the run', ['a'], { trainable: ['b'] }, switched],
    ['are switched by the run where the workflow trains none', [], { trainable: ['b'] }, switched],
    ['none of which is trained are all played in an evaluation', [], { purpose: 'eval' }, ['default a', 'default b']],
  ])('%s', async (_, targets, options, expected, execute = both) => {
    expect(playedBy(await rollout(execute, targets, options))).toEqual(expected);
  });

  it('that are no target are in the trace, never in a sample', async () => {
    const trajectory = await rollout(both, ['a']);
    expect(trajectory.turns.map(({ role, response }) => `${role}: ${response.content}`)).toEqual(['a: policy 0', 'b: default b']);
    expect(trajectory.turns[1]?.sampledIds).toHaveLength(0);
    const worse = { ...trajectory, rolloutId: 'other', grade: { kind: 'graded', reward: { value: 0 } } } as Trajectory;
    const { samples } = makeBatch([trajectory, worse]);
    expect(samples).toHaveLength(2);
    for (const { tokens } of samples) expect(tokenizer.decode([...tokens])).not.toMatch(/default/);
  });

  it('are asked for at every call: a change between two calls takes effect', async () => {
    const changing: Execute = async (_, tuner, self) => {
      const model = tuner.registerModel('a', { defaultModel: says('default a') });
      for (const targets of [['a'], ['b'], undefined]) {
        self.trainableTargets = targets;
        await model.generate({ messages });
      }
      return { reward: 1 };
    };
    expect(playedBy(await rollout(changing, ['a']))).toEqual(['policy trained', 'default a', 'policy trained']);
  });

  const swallowing: Execute = async (_, tuner) => {
    await tuner.generate({ messages }).catch(() => undefined);
    return { reward: 0 };
  };
  const wrapping: Execute = async (_, tuner) => {
    await tuner.generate({ messages }).catch(() => {
      throw new Error('the agent gave up');
    });
  };
  const registering =
    (...given: Parameters<ModelTuner['registerModel']>): Execute =>
    async (_, tuner) =>
      tuner.registerModel(...given);
  const twice =
    (second: string): Execute =>
    async (_, tuner) => {
      for (const name of ['qwen-max', second]) {
        tuner.registerModel('a', { defaultModel: { name, baseURL: 'http://one.invalid/v1' } });
      }
      await tuner.getModel('a').generate({ messages });
      return { reward: 1 };
    };
  const misspelling: Execute = async (_, tuner) => {
    for (const role of ['seer', 'witch']) tuner.registerModel(role);
    tuner.getModel('sear');
  };
  const NONE = /^WORKFLOW_INVALID: no role is trained: trainableTargets is an empty list/;

  it.each<[string, RegExp, Execute, string[]?]>([
    ['none of which is trained', NONE, both, []],
    ['none of which is trained, though the agent swallowed it', NONE, swallowing, []],
    ['none of which is trained, though the agent gave up', NONE, wrapping, []],
    ['that are all no target', /trainableTargets is wolf, and the roles are a, b, default/, both, ['wolf']],
    ['with two default models', /role "a" has two default models: WAS qwen-max, NOW qwen-plus/, twice('qwen-plus')],
    ['that nobody registered', /role 'sear' is not registered; registered are seer, witch/, misspelling],
    ['without a name', /registerModel was given role '', expected a name/, registering('')],
    ['whose default is a number', /a default model, found 3/, registering('a', { defaultModel: 3 as never })],
    ['whose default is empty', /a default model, found an object with nothing/, registering('a', { defaultModel: {} as never })],
    [
      'whose default is the model in training',
      /role "a": its default model is the model in training/,
      async (_, tuner) => tuner.registerModel('a', { defaultModel: tuner }),
    ],
  ])('%s are an error', async (_, message, execute, targets) => {
    expect(messageOf(await rollout(execute, targets))).toMatch(message);
  });

  it('may be registered again with the same default model', async () => {
    expect(messageOf(await rollout(twice('qwen-max')))).toBe('completed');
  });

  it('may have a model of the AI SDK as their default, tools and all', async () => {
    const asked: { prompt: unknown; toolChoice?: unknown }[] = [];
    const model = {
      ...{ specificationVersion: 'v4', provider: 'test', modelId: 'scripted', supportedUrls: {} },
      doGenerate: async (options: { prompt: unknown; toolChoice?: unknown }) => {
        asked.push(options);
        const content = [{ type: 'tool-call', toolCallId: 'x', toolName: 'add', input: '{"a":1}' }];
        return { content, finishReason: { unified: 'tool-calls', raw: 'x' } };
      },
    };
    const tools = [{ type: 'function' as const, function: { name: 'add', parameters: { type: 'object' } } }];
    const adding: Execute = async (_, tuner) => {
      await tuner.registerModel('a').generate({ messages });
      const b = tuner.registerModel('b', { defaultModel: model });
      const first = await b.generate({ messages, tools });
      const result = { role: 'tool' as const, tool_call_id: first.toolCalls[0]!.id, content: '3' };
      await b.generate({ messages: [...messages, first.message, result], tools, tool: 'add' });
      return { reward: 1 };
    };
    const trajectory = await rollout(adding, ['a']);
    expect(messageOf(trajectory)).toBe('completed');
    expect(trajectory.turns[1]).toMatchObject({ model: 'scripted', response: { tool_calls: [{ function: { name: 'add' } }] } });
    expect(asked.map(({ toolChoice }) => toolChoice)).toEqual([undefined, { type: 'tool', toolName: 'add' }]);
    expect(asked[1]?.prompt).toMatchObject([
      { role: 'user', content: [{ type: 'text', text: 'hello' }] },
      { role: 'assistant', content: [{ type: 'tool-call', toolName: 'add', input: { a: 1 } }] },
      { role: 'tool', content: [{ type: 'tool-result', toolName: 'add', output: { type: 'text', value: '3' } }] },
    ]);
  });

  it('may have the model handle of another gateway as their default', async () => {
    const elsewhere = scriptedGateway(() => 'from elsewhere').gateway.open({
      identity: { rolloutId: 'other', groupId: 'g', taskId: 't', purpose: 'eval' },
      roles: {},
      sampling: { temperature: 0, topP: 1, topK: 0, maxTokens: 20 },
      limits: { turns: 4, tokens: 100, deadlineMs: 1000 },
      seed: 1,
      signal: new AbortController().signal,
    });
    const trajectory = await rollout(
      async (_, tuner) => {
        await tuner.registerModel('a').generate({ messages });
        await tuner.registerModel('b', { defaultModel: elsewhere.model() }).generate({ messages });
        return { reward: 1 };
      },
      ['a'],
    );
    expect(trajectory.turns[1]).toMatchObject({ trainable: false, model: 'policy', response: { content: 'from elsewhere' } });
    expect(elsewhere.turns).toHaveLength(1);
  });
});

describe('the reward', () => {
  const returning =
    (output: unknown, calls = 1): Execute =>
    async (_, tuner) => {
      for (let call = 0; call < calls; call++) await tuner.generate({ messages });
      return output;
    };
  const counting = () => {
    const calls: unknown[] = [];
    const grader = defineJudge((task, output) => {
      calls.push([task.task.answer, output.metadata]);
      return [0.25, true];
    });
    return { calls, options: { grader } };
  };

  it('of the workflow holds, 0 too, and the judge is not asked', async () => {
    const { calls, options } = counting();
    const output = new WorkflowOutput({ reward: 0.5, isSuccess: true, metadata: { a: 1 }, logMetrics: { steps: 2 } });
    expect(await rollout(returning(output), undefined, options)).toMatchObject({
      ...{ metadata: { a: 1 }, metrics: { steps: 2 } },
      grade: { kind: 'graded', reward: { value: 0.5, success: true, source: 'workflow' } },
    });
    expect((await rollout(returning({ reward: 0 }), undefined, options)).grade).toMatchObject({ reward: { value: 0 } });
    expect(calls).toEqual([]);
  });

  it.each([[null], [undefined]])('%s is asked for once from the judge, who sees the answer and the output', async (reward) => {
    const { calls, options } = counting();
    const { grade } = await rollout(returning({ reward, metadata: { final_answer: '2' } }), undefined, options);
    expect(grade).toEqual({ kind: 'graded', reward: { value: 0.25, success: true } });
    expect(calls).toEqual([['the secret answer', { final_answer: '2' }]]);
  });

  it('that nobody gives ends the run with what to do', async () => {
    await expect(rollout(returning({ reward: null }))).rejects.toMatchObject({ code: 'REWARD_MISSING' });
  });

  it('as a list is one for every model call; its sum is the value', async () => {
    const { grade } = await rollout(returning({ reward: [0.5, -1, 2] }, 3));
    expect(grade).toMatchObject({ reward: { value: 1.5, byTurn: { 0: 0.5, 1: -1, 2: 2 } } });
  });

  it.each([
    ['NaN', { reward: Number.NaN }, /reward NaN, expected a finite number/],
    ['a text', { reward: '1' }, /reward '1', expected a finite number/],
    ['a list with infinity', { reward: [1, Infinity] }, /reward Infinity, expected a finite number/],
    ['a list of two', { reward: [0.5, 1] }, /2 rewards by turn, expected one for each of the rollout's 1 turns/],
    ['a bare number', 1, /execute returned 1/],
    ['nothing', undefined, /execute returned undefined/],
    [
      'another name',
      { rewards: 1, is_success: true },
      /no option rewards, did you mean reward\?; also: .*is_success, did you mean isSuccess\?/,
    ],
    ['no truth', { reward: 1, isSuccess: 'yes' }, /isSuccess 'yes', expected true or false/],
  ])('is not %s: the rollout fails, saying so', async (_, output, message) => {
    const trajectory = await rollout(returning(output));
    expect(messageOf(trajectory)).toMatch(/^WORKFLOW_BAD_RESULT: /);
    expect(messageOf(trajectory)).toMatch(message);
    expect(trajectory.grade).toEqual({ kind: 'ungraded', why: 'failed' });
  });
});

describe('a judge', () => {
  const gradeBy = async (grader: Grader | undefined) => {
    const silent: Execute = async (_, tuner) => {
      await tuner.generate({ messages });
      return { metadata: { final_answer: 'the secret answer' } };
    };
    return (await rollout(silent, undefined, { grader })).grade;
  };

  it('may be a class', async () => {
    class ExactJudge extends BaseJudge {
      async computeReward(...[task, output]: Parameters<BaseJudge['computeReward']>) {
        const isRight = output.metadata['final_answer'] === task.task.answer;
        return [isRight ? 1 : 0, isRight] as const;
      }
    }
    const grader = asGrader(ExactJudge, moduleOf({ ExactJudge }));
    expect(grader?.name).toBe('ExactJudge');
    expect(await gradeBy(grader)).toEqual({ kind: 'graded', reward: { value: 1, success: true } });
    expect(asGrader(BaseJudge)).toBeUndefined();
  });

  it('that fails or returns something else gives no reward, never 0', async () => {
    const message = expect.stringMatching(/returned 1, expected \[reward, isSuccess\]/);
    expect(await gradeBy(defineJudge((() => 1) as never))).toMatchObject({ kind: 'failed', message });
    const nan = defineJudge(() => [Number.NaN, true]);
    expect(await gradeBy(nan)).toMatchObject({ kind: 'failed', code: 'GRADER_BAD_REWARD' });
    expect(() => defineJudge(3 as never)).toThrowError(/defineJudge was given 3/);
  });
});

describe('structured output', () => {
  const zod = z.object({ result: z.number() });
  const json = { type: 'object', properties: { result: { type: 'number' } }, required: ['result'] };
  const asking =
    (schema: unknown): Execute =>
    async (_, tuner) => {
      const { object = null, problem = null } = await tuner.generateStructured({ messages, structuredModel: schema as never });
      return { reward: object === null ? 0 : 1, metadata: { object: object as Json, problem } };
    };
  const answering = (schema: unknown, said: string) => rollout(asking(schema), undefined, { says: () => said });

  it.each([
    ['a Zod schema', zod],
    ['a JSON schema', json],
  ])('by %s is the arguments of the tool that the policy must call', async (_, schema) => {
    const trajectory = await answering(schema, '{"result":2}}</tool_call>');
    expect(messageOf(trajectory)).toBe('completed');
    expect(trajectory.turns[0]).toMatchObject({ request: { tools: [{ function: { name: 'generate_response' } }] } });
    expect(trajectory.metadata).toEqual({ object: { result: 2 }, problem: null });
    // What the policy had to say is given to it: only the arguments are sampled, and trained.
    expect(tokenizer.decode([...trajectory.turns[0]!.sampledIds])).not.toContain('generate_response');
  });

  it.each([
    [zod, '{"result":"two"}}</tool_call>', expect.stringMatching(/^result: /)],
    [json, '{"result":"two"}}</tool_call>', expect.stringMatching(/^result: /)],
    [zod, 'x', expect.any(String)],
  ])('that does not fit is a value with what is wrong, and was asked for once', async (schema, said, problem) => {
    const { metadata, grade, turns } = await answering(schema, said);
    expect(metadata).toEqual({ object: null, problem });
    expect(grade).toMatchObject({ kind: 'graded', reward: { value: 0 } });
    expect(turns).toHaveLength(1);
  });

  it('by something that is no schema is refused', async () => {
    expect(messageOf(await rollout(asking({ type: 'nonsense' })))).toMatch(/structuredModel cannot be used as a schema/);
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
      static trainableTargets = ['werewolf'];
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
      'WORKFLOW_INVALID Wrong has a static trainableTargets, expected a field of its instances',
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
