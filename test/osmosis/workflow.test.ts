import { setTimeout as sleep } from 'node:timers/promises';
import OpenAI from 'openai';
import { describe, expect, it, vi } from 'vitest';
import {
  AgentWorkflow,
  AgentWorkflowConfig,
  type AgentWorkflowContext,
  type AgentWorkflowReturn,
  ConcurrencyConfig,
  getRolloutContext,
  RolloutContext,
} from '../../src/osmosis.ts';
import { AlwaysRight, bench, doing, TASK } from './rollouts.ts';

const ask = (ctx: AgentWorkflowContext<never> | AgentWorkflowContext, name = 'default') =>
  ctx.model().thread(name).generate({ messages: ctx.prompt });

describe('what a workflow is given', () => {
  it('is the prompt, the metadata and no config: never the label', async () => {
    let seen: AgentWorkflowContext | undefined;
    const W = doing(async (ctx) => {
      seen = ctx;
    });
    const { run } = await bench({ W, AlwaysRight });
    await run();
    expect(seen).toMatchObject({ prompt: TASK.prompt, metadata: { kind: 'greeting' }, config: null, artifactsDir: null });
    expect(JSON.stringify(seen)).not.toContain('"hi"');
    // @ts-expect-error A workflow has no label.
    expect(seen?.label).toBe(undefined);
    expect('label' in seen!).toBe(false);
  });

  it('has null for metadata where the row has none', async () => {
    let seen: unknown = 'nothing';
    const W = doing(async (ctx) => {
      seen = ctx.metadata;
    });
    const { run } = await bench({ W, AlwaysRight });
    await run({ id: 't', prompt: TASK.prompt, answer: 'hi' });
    expect(seen).toBe(null);
  });

  it('is a config of its own, on the instance and on the context, while tools and models in it are shared', async () => {
    class Config extends AgentWorkflowConfig {
      override name = 'counting';
      seen = ['first'];
      tool = Object.assign(() => 1, { calls: 0 });
    }
    const configs: (Config | null)[] = [];
    class W extends AgentWorkflow<Config> {
      async run(ctx: AgentWorkflowContext<Config>): Promise<void> {
        expect(this.config).toBe(ctx.config);
        expect(ctx.config).toBeInstanceOf(Config);
        configs.push(structuredClone({ ...ctx.config, tool: undefined }) as never);
        ctx.config?.seen.push('more');
        expect(ctx.config?.tool).toBe(config.tool);
      }
    }
    const config = new Config();
    const { run, workflow } = await bench({ W, config, AlwaysRight });
    await run();
    await run();
    expect(workflow.name).toBe('counting');
    expect(configs.map((one) => one?.seen)).toEqual([['first'], ['first']]);
    expect(config.seen).toEqual(['first']);
  });

  it('is a new instance for each rollout', async () => {
    class W extends AgentWorkflow {
      runs = 0;
      async run(): Promise<AgentWorkflowReturn> {
        this.runs += 1;
        return { metrics: { runs: this.runs } };
      }
    }
    const { run } = await bench({ W, AlwaysRight });
    expect([(await run()).metrics, (await run()).metrics]).toEqual([{ runs: 1 }, { runs: 1 }]);
  });
});

describe('what a workflow returns', () => {
  it('may be nothing, the conversation, or messages with metrics and info', async () => {
    const returned = async (value: AgentWorkflowReturn) => {
      const { run } = await bench({
        W: doing(async (ctx) => {
          await ask(ctx);
          return value;
        }),
        AlwaysRight,
      });
      const { outcome, output, metrics, metadata } = await run();
      return { outcome: outcome.kind, output, metrics, metadata };
    };
    const messages = [{ role: 'assistant', content: 'done' }] as const;
    expect(await returned(undefined)).toEqual({ outcome: 'completed' });
    expect(await returned([...messages])).toEqual({ outcome: 'completed', output: messages });
    expect(await returned({ messages, metrics: { steps: 2 }, info: { why: 'x' } })).toEqual({
      outcome: 'completed',
      output: messages,
      metrics: { steps: 2 },
      metadata: { why: 'x' },
    });
  });

  it.each([
    [1, 'got 1'],
    ['done', "got 'done'"],
    [{ reward: 1 }, 'got an object with reward'],
    [{ metrics: { loss: Number.NaN } }, "got the metric 'loss' as NaN"],
    [{ messages: 'hello' }, "got messages 'hello'"],
  ])('is refused where it is %j', async (value, found) => {
    const { run } = await bench({ W: doing(async () => value as never), AlwaysRight });
    const { outcome } = await run();
    expect(outcome).toEqual({
      kind: 'failed',
      code: 'WORKFLOW_BAD_RESULT',
      message: expect.stringContaining(`run() must return AgentWorkflowOutput`),
    });
    expect((outcome as { message: string }).message).toContain(found);
  });
});

describe('concurrency of workflows', () => {
  async function mostAtOnce(maxConcurrent: number | null, fails = false): Promise<number> {
    let now = 0;
    let most = 0;
    const config = new AgentWorkflowConfig({ name: 'w', concurrency: new ConcurrencyConfig({ maxConcurrent }) });
    const W = doing(async (ctx) => {
      most = Math.max(most, ++now);
      await sleep(20);
      now--;
      if (fails) throw new Error('no');
      await ask(ctx);
    });
    const { run } = await bench({ W, config, AlwaysRight });
    await Promise.all(Array.from({ length: 6 }, () => run()));
    expect(now).toBe(0);
    return most;
  }

  it('is what the config says, whether rollouts succeed or throw, and unlimited for null', async () => {
    expect(await mostAtOnce(1)).toBe(1);
    expect(await mostAtOnce(2, true)).toBe(2);
    expect(await mostAtOnce(null)).toBe(6);
  });
});

describe('the rollout context', () => {
  it('follows the code, has the base URL, the key and the id, and is gone outside', async () => {
    let seen: RolloutContext | null = null;
    const { run } = await bench({
      W: doing(async (ctx) => {
        await sleep(1);
        seen = getRolloutContext();
        expect(seen).toMatchObject({ rolloutId: 'r0', chatCompletionsUrl: ctx.model().baseURL, apiKey: ctx.model().apiKey });
        const other = new RolloutContext({ model: ctx.model(), rolloutId: 'other' });
        await other.run(async () => {
          await sleep(1);
          expect(getRolloutContext()).toBe(other);
        });
        expect(getRolloutContext()).toBe(seen);
        await ask(ctx);
      }),
      AlwaysRight,
    });
    expect((await run()).outcome).toEqual({ kind: 'completed' });
    expect(seen).toBeInstanceOf(RolloutContext);
    expect(getRolloutContext()).toBe(null);
  });

  it('makes each name a sample of its own, in process and over HTTP with its headers; rollouts never mix', async () => {
    const { run } = await bench({
      W: doing(async (ctx) => {
        const rollout = getRolloutContext()!;
        const { fetch } = ctx.model();
        const { chatCompletionsUrl: baseURL, apiKey } = rollout;
        const client = new OpenAI({ baseURL, apiKey, fetch, defaultHeaders: rollout.headers('planner') });
        await client.chat.completions.create({ model: 'osmosis-rollout', messages: ctx.prompt });
        await sleep(Math.random() * 5);
        await rollout.model('writer').generate({ messages: [{ role: 'user', content: rollout.rolloutId }] });
      }),
      AlwaysRight,
    });
    const all = await Promise.all(Array.from({ length: 5 }, () => run()));
    for (const { rolloutId, turns, grade } of all) {
      expect(turns.map(({ thread }) => thread)).toEqual(['planner', 'writer']);
      expect(turns[1]?.request.messages[0]?.content).toBe(rolloutId);
      expect(grade).toMatchObject({ reward: { byThread: { planner: 1, writer: 1 } } });
    }
  });

  it('may be made by hand, or of the environment, for a client of one’s own', () => {
    const by = { chatCompletionsUrl: 'http://localhost/v1', apiKey: 'k' };
    expect(() => new RolloutContext(by)).toThrow('OSMOSIS_ROLLOUT_ID in the environment, found neither');
    vi.stubEnv('OSMOSIS_ROLLOUT_ID', 'r9');
    const context = new RolloutContext(by);
    vi.unstubAllEnvs();
    expect(context).toMatchObject({ ...by, rolloutId: 'r9' });
    expect(context.headers('planner')).toEqual({ 'x-sample-id': 'planner', 'x-rollout-id': 'r9' });
    expect(() => context.model('planner')).toThrow('was made by hand');
  });

  it('refuses headers of another rollout', async () => {
    const { run } = await bench({
      W: doing(async (ctx) => {
        const { fetch, baseURL, apiKey } = ctx.model();
        const client = new OpenAI({ baseURL, apiKey, fetch, maxRetries: 0, defaultHeaders: { 'x-rollout-id': 'another' } });
        await client.chat.completions.create({ model: 'osmosis-rollout', messages: ctx.prompt });
      }),
      AlwaysRight,
    });
    expect((await run()).outcome).toMatchObject({ kind: 'failed', message: expect.stringContaining('x-rollout-id') });
  });

  it('refuses a second source of the same name, and names that no header can carry', async () => {
    const source = { getSample: () => expect.fail('not asked') };
    const outcomes = async (...names: string[]) => {
      const { run } = await bench({
        W: doing(async () => {
          for (const name of names) getRolloutContext()?.registerSampleSource(name, source);
        }),
        AlwaysRight,
      });
      return (await run()).outcome;
    };
    expect(await outcomes('a', 'a')).toMatchObject({
      message: 'Session with a already exists, please give your session or agent a unique name in the workflow',
    });
    for (const name of ['a\nb', ' a', 'a ', ' ', '__proto__', 'é', 'x'.repeat(129)])
      expect(await outcomes(name)).toMatchObject({ kind: 'failed', message: expect.stringContaining('name of an agent') });
    expect(await outcomes('')).toMatchObject({ kind: 'failed', message: expect.stringContaining("is ''") });
  });
});
