import { setTimeout as sleep } from 'node:timers/promises';
import OpenAI from 'openai';
import { describe, expect, it, vi } from 'vitest';
import {
  AgentWorkflow,
  AgentWorkflowConfig,
  type AgentWorkflowContext,
  type AgentWorkflowReturn,
  getRolloutContext,
  RolloutContext,
} from '../../src/osmosis.ts';
import { AlwaysRight, bench, doing, rollout, TASK } from './rollouts.ts';

const ask = (ctx: AgentWorkflowContext) => ctx.model().generate({ messages: ctx.prompt });

describe('what a workflow is given', () => {
  it('is the prompt, the metadata and no config: never the label', async () => {
    const seen: AgentWorkflowContext[] = [];
    const { run } = await bench({ W: doing(async (ctx) => void seen.push(ctx)), AlwaysRight });
    await run();
    await run({ id: 't', prompt: TASK.prompt, answer: 'hi' });
    expect(seen[0]).toMatchObject({ prompt: TASK.prompt, metadata: { kind: 'greeting' }, config: null, artifactsDir: null });
    expect(JSON.stringify(seen)).not.toContain('"hi"');
    // @ts-expect-error A workflow has no label.
    expect(seen[0]?.label).toBe(undefined);
    expect('label' in seen[0]!).toBe(false);
    expect(seen[1]?.metadata).toBe(null);
  });

  it('is a config of its own, on the instance and on the context, while tools and models in it are shared', async () => {
    class Config extends AgentWorkflowConfig {
      override name = 'counting';
      seen = ['first'];
      tool = Object.assign(() => 1, { calls: 0 });
    }
    const seen: (readonly string[] | undefined)[] = [];
    class W extends AgentWorkflow<Config> {
      async run(ctx: AgentWorkflowContext<Config>): Promise<void> {
        expect(this.config).toBe(ctx.config);
        expect(ctx.config).toBeInstanceOf(Config);
        expect(ctx.config?.tool).toBe(config.tool);
        seen.push(ctx.config?.seen.slice());
        ctx.config?.seen.push('more');
      }
    }
    const config = new Config();
    const { run, workflow } = await bench({ W, config, AlwaysRight });
    await run();
    await run();
    expect(workflow.name).toBe('counting');
    expect([...seen, config.seen]).toEqual([['first'], ['first'], ['first']]);
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
  const messages = [{ role: 'assistant' as const, content: 'done' }];
  it.each<[AgentWorkflowReturn, object]>([
    [undefined, {}],
    [messages, { output: messages }],
    [
      { messages, metrics: { steps: 2 }, info: { why: 'x' } },
      { output: messages, metrics: { steps: 2 }, metadata: { why: 'x' } },
    ],
  ])('may be %j', async (value, expected) => {
    const { outcome, output, metrics, metadata } = await rollout((ctx) => ask(ctx).then(() => value));
    expect({ outcome, output, metrics, metadata }).toEqual({ outcome: { kind: 'completed' }, ...expected });
  });

  it.each([
    [1, 'got 1'],
    ['done', "got 'done'"],
    [{ reward: 1 }, 'got an object with reward'],
    [{ metrics: { loss: Number.NaN } }, "got the metric 'loss' as NaN"],
    [{ messages: 'hello' }, "got messages 'hello'"],
  ])('is refused where it is %j', async (value, found) => {
    const { outcome } = await rollout(async () => value as never);
    expect(outcome).toMatchObject({
      code: 'WORKFLOW_BAD_RESULT',
      message: expect.stringMatching(new RegExp(`run\\(\\) must return AgentWorkflowOutput.*${found}`)),
    });
  });
});

describe('the rollout context', () => {
  it('follows the code, has the base URL, the key and the id, and is gone outside', async () => {
    const { outcome } = await rollout(async (ctx) => {
      await sleep(1);
      const own = getRolloutContext();
      expect(own).toBeInstanceOf(RolloutContext);
      expect(own).toMatchObject({ rolloutId: 'r0', chatCompletionsUrl: ctx.model().baseURL, apiKey: ctx.model().apiKey });
      const other = new RolloutContext({ model: ctx.model(), rolloutId: 'other' });
      await other.run(async () => {
        await sleep(1);
        expect(getRolloutContext()).toBe(other);
      });
      expect(getRolloutContext()).toBe(own);
      await ask(ctx);
    });
    expect(outcome).toEqual({ kind: 'completed' });
    expect(getRolloutContext()).toBe(null);
  });

  it('makes each name a sample of its own, in process and over HTTP with its headers; rollouts never mix', async () => {
    const { run } = await bench({
      W: doing(async (ctx) => {
        const own = getRolloutContext()!;
        const { fetch } = ctx.model();
        const { chatCompletionsUrl: baseURL, apiKey } = own;
        const client = new OpenAI({ baseURL, apiKey, fetch, defaultHeaders: own.headers('planner') });
        await client.chat.completions.create({ model: 'osmosis-rollout', messages: ctx.prompt });
        await sleep(Math.random() * 5);
        await own.model('writer').generate({ messages: [{ role: 'user', content: own.rolloutId }] });
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
    const { outcome } = await rollout(async (ctx) => {
      const { fetch, baseURL, apiKey } = ctx.model();
      const client = new OpenAI({ baseURL, apiKey, fetch, maxRetries: 0, defaultHeaders: { 'x-rollout-id': 'another' } });
      await client.chat.completions.create({ model: 'osmosis-rollout', messages: ctx.prompt });
    });
    expect(outcome).toMatchObject({ kind: 'failed', message: expect.stringContaining('x-rollout-id') });
  });

  it.each<[names: readonly string[], message: string]>([
    [['a', 'a'], 'Session with a already exists, please give your session or agent a unique name in the workflow'],
    ...['a\nb', ' a', 'a ', ' ', '__proto__', 'é', 'x'.repeat(129), ''].map((name): [string[], string] => [
      [name],
      'name of an agent',
    ]),
  ])('refuses sources named %j: a second one of a name, and names that no header can carry', async (names, message) => {
    const { outcome } = await rollout(async () => {
      const source = { getSample: () => expect.fail('not asked') };
      for (const name of names) getRolloutContext()?.registerSampleSource(name, source);
    });
    expect(outcome).toMatchObject({ kind: 'failed', message: expect.stringContaining(message) });
  });
});
