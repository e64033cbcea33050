/** Rollouts through the real gateway, runner, store and stitch, with a scripted engine in the policy's place. */
import { getEventListeners } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import OpenAI from 'openai';
import { describe, expect, it } from 'vitest';
import { scriptedEngine } from '../../packages/testing/src/trajectories.ts';
import { Downtime } from '../../src/core/async.ts';
import { currentRollout } from '../../src/core/context.ts';
import type { WorkflowContext, WorkflowResult } from '../../src/core/contracts.ts';
import { defineGrader, defineWorkflow } from '../../src/core/define.ts';
import type { Limits, Message, Task, Trajectory } from '../../src/core/types.ts';
import { Gateway } from '../../src/gateway/gateway.ts';
import { renderer, tokenizer } from '../fixtures/gateway/streams.ts';
import { rolloutsThrough } from '../fixtures/scripted-gateway.ts';
import { memoryStore } from '../fixtures/store/memory-store.ts';

type Run = (ctx: WorkflowContext<undefined>) => Promise<unknown>;
interface Options {
  readonly limits?: Partial<Limits>;
  readonly stop?: AbortSignal;
  readonly downtime?: Downtime;
  readonly reply?: (call: number) => readonly number[];
  readonly grade?: () => number;
}

async function bench(options: Options = {}) {
  const engine = scriptedEngine({
    vocabSize: 1024,
    contextLength: 4096,
    reply: (_, call) => options.reply?.(call) ?? [...tokenizer.encodeRendered(`answer ${call}<|im_end|>`)],
  });
  const gateway = new Gateway({ engine, renderer, modelName: 'policy' });
  const store = memoryStore();
  const rollOut = rolloutsThrough(gateway, store);
  const grader = defineGrader(options.grade ?? (() => 1));
  const { stop: signal, downtime } = options;
  const rollout = (run: Run, task: Task = { id: 't', prompt: [{ role: 'user', content: 'hello' }] }): Promise<Trajectory> => {
    const workflow = defineWorkflow(async (ctx) => (await run(ctx)) as WorkflowResult);
    const limits = { turns: 8, tokens: 1000, ...options.limits };
    return rollOut({ workflow, grader, limits, signal, downtime }, task);
  };
  return { engine, gateway, store, rollout };
}

function chat(ctx: WorkflowContext, messages: readonly Message[]): Promise<OpenAI.ChatCompletion> {
  const { baseURL, apiKey, fetch, name } = ctx.model();
  const client = new OpenAI({ baseURL, apiKey, fetch, maxRetries: 0 });
  return client.chat.completions.create({ model: name, messages: messages as OpenAI.ChatCompletionMessageParam[] });
}

describe('a rollout', () => {
  it('that returns is completed, graded, stored and sealed', async () => {
    const { rollout, store, gateway } = await bench();
    const trajectory = await rollout(async (ctx) => {
      expect(currentRollout()).toBe(ctx);
      await chat(ctx, ctx.prompt);
      return { output: { said: 'done' } };
    });
    expect(trajectory).toMatchObject({
      outcome: { kind: 'completed' },
      grade: { kind: 'graded', reward: { value: 1 } },
      output: { said: 'done' },
    });
    expect(await store.read('r0')).toEqual(trajectory);
    expect(gateway.openSessions).toBe(0);
  });

  it.each<[string, Run, Limits['turns'], object]>([
    [
      'that throws is a failed trajectory with its turns, and gets no reward',
      async (ctx) => {
        await chat(ctx, ctx.prompt);
        throw new Error('tool exploded');
      },
      8,
      {
        outcome: { kind: 'failed', code: 'WORKFLOW_FAILED', message: 'tool exploded' },
        grade: { kind: 'ungraded' },
        turns: [{}],
      },
    ],
    [
      'that runs into its turn limit is truncated and still graded',
      async (ctx) => {
        for (;;) await chat(ctx, ctx.prompt);
      },
      2,
      { outcome: { kind: 'truncated', limit: 'turns' }, grade: { kind: 'graded', reward: { value: 1 } }, turns: [{}, {}] },
    ],
    [
      'without a model call is rejected, never rewarded',
      async () => 'from memory',
      8,
      { outcome: { kind: 'rejected', reason: 'no_turns' }, grade: { kind: 'ungraded' }, turns: [] },
    ],
  ])('%s', async (_, run, turns, expected) => {
    const { rollout, store } = await bench({ limits: { turns } });
    expect(await rollout(run)).toMatchObject(expected);
    expect(await store.read('r0')).toMatchObject(expected);
  });

  it('has the time of its deadline for itself: what the policy was away for does not count, the rest does', async () => {
    const deadlineMs = 1500;
    const afterDowntime = async (run: Run): Promise<Trajectory> => {
      const downtime = new Downtime();
      const { rollout } = await bench({ downtime, limits: { deadlineMs } });
      return rollout(async (ctx) => {
        downtime.begin();
        await sleep(deadlineMs + 200);
        downtime.end();
        return run(ctx);
      });
    };
    const asking = afterDowntime((ctx) => chat(ctx, ctx.prompt).then(() => undefined));
    const [waited, hung] = await Promise.all([asking, afterDowntime(() => new Promise(() => {}))]);
    expect(waited.outcome).toEqual({ kind: 'completed' });
    expect(hung.outcome).toEqual({ kind: 'truncated', limit: 'deadline' });
  });

  it('waits for a busy default model outside of its deadline, and for a silent one within it', async () => {
    const { rollout } = await bench({ limits: { deadlineMs: 500 } });
    let calls = 0;
    const busy: typeof fetch = async () =>
      ++calls === 1
        ? new Response('slow down', { status: 429, headers: { 'retry-after': '1' } })
        : Response.json({ choices: [{ message: { content: 'yes' } }] });
    const silent: typeof fetch = (_, init) =>
      new Promise((_, reject) => init?.signal?.addEventListener('abort', () => reject(init.signal!.reason)));
    const asking = (by: string, answer: typeof fetch): Run => {
      const model = { name: 'house', baseURL: `http://${by}.test/v1`, fetch: answer };
      return async (ctx) => {
        await ctx.model('other', { default: model, trainable: () => false }).generate({ messages: ctx.prompt });
      };
    };
    expect(await rollout(asking('busy', busy))).toMatchObject({ outcome: { kind: 'completed' }, turns: [{ model: 'house' }] });
    expect((await rollout(asking('silent', silent))).outcome).toEqual({ kind: 'truncated', limit: 'deadline' });
  });

  it('that ignores its deadline is cut off; what it does later is refused and not recorded', async () => {
    const { rollout, gateway } = await bench({ limits: { deadlineMs: 1000 } });
    const over = Promise.withResolvers<void>();
    const late = Promise.withResolvers<unknown>();
    const trajectory = await rollout(async (ctx) => {
      await chat(ctx, ctx.prompt);
      await over.promise;
      late.resolve(chat(ctx, ctx.prompt).catch((error: unknown) => error));
    });
    over.resolve();
    expect(trajectory).toMatchObject({ outcome: { kind: 'truncated', limit: 'deadline' }, grade: { kind: 'ungraded' } });
    expect(await late.promise).toMatchObject({ status: 410 });
    expect(trajectory.turns.length).toBe(1);
    expect(gateway.openSessions).toBe(0);
  });

  it('is given up and not stored when the run is stopped, so that it is run when the run goes on', async () => {
    const stop = new AbortController();
    const { rollout, store, gateway } = await bench({ stop: stop.signal });
    const stopped = rollout(async () => {
      stop.abort(new Error('enough'));
      await new Promise(() => {});
    });
    await expect(stopped).rejects.toThrow('enough');
    expect(await store.count()).toBe(0);
    expect(gateway.openSessions).toBe(0);
  });

  it('leaves nothing behind on the run’s signal, which outlives thousands of them', async () => {
    const stop = new AbortController();
    const { rollout } = await bench({ stop: stop.signal });
    for (let i = 0; i < 3; i++) await rollout(async (ctx) => void (await chat(ctx, ctx.prompt)));
    expect(getEventListeners(stop.signal, 'abort')).toEqual([]);
    const dependants = Object.getOwnPropertySymbols(stop.signal).find((symbol) => String(symbol).includes('kDependantSignals'));
    expect(dependants === undefined ? undefined : Reflect.get(stop.signal, dependants)).toBeUndefined();
  });
});

describe('a model call that failed', () => {
  type Agent = (ctx: WorkflowContext, say: (words: string, thread?: string) => Promise<unknown>) => Promise<unknown>;
  const LONG = 'word '.repeat(5000);
  /** Its client never says that a call failed. */
  async function rolledOut(agent: Agent): Promise<Trajectory> {
    const engineFails = (call: number): readonly number[] => {
      if (call === 1) throw new Error('GPU fell off the bus');
      return [...tokenizer.encodeRendered('fine<|im_end|>')];
    };
    const { rollout } = await bench({ reply: engineFails, limits: { turns: 3 } });
    return await rollout(async (ctx) => {
      const say = (content: string, thread = 'default'): Promise<unknown> =>
        ctx
          .model()
          .thread(thread)
          .generate({ messages: [{ role: 'user', content }] })
          .catch(() => undefined);
      return await agent(ctx, say);
    });
  }
  const crash = (): never => {
    throw new Error('the database is down');
  };
  /** Says one after another, in the main conversation. */
  const saying =
    (...words: readonly string[]): Agent =>
    async (_, say) => {
      for (const one of words) await say(one);
    };
  const thenDo =
    (first: Agent, then: (ctx: WorkflowContext) => unknown): Agent =>
    async (ctx, say) => {
      await first(ctx, say);
      return await then(ctx);
    };
  const generate = (ctx: WorkflowContext, more: object) =>
    ctx
      .model()
      .generate({ messages: ctx.prompt, ...more })
      .catch(() => undefined);
  const clerk = (ctx: WorkflowContext) => ctx.model('clerk', { trainable: () => false, default: crash });
  const ENGINE = { kind: 'failed', code: 'ENGINE_FAILED', message: expect.stringContaining('GPU fell off the bus') };
  const CRASH = { kind: 'failed', code: 'WORKFLOW_FAILED', message: 'the database is down' };
  const DONE = { kind: 'completed' };
  const FULL = 'because the context was full';
  const OVERFLOW = { kind: 'truncated', limit: 'context' };

  it.each<[string, object, Agent]>([
    ['as the last word fails the rollout', ENGINE, saying('a', 'b')],
    ['and was made again is recovered from', DONE, saying('a', 'b', 'b')],
    [
      'is not made good by another conversation',
      { ...ENGINE, message: expect.stringContaining('call of aside failed') },
      async (_, say) => {
        for (const thread of ['default', 'aside', 'default']) await say('a', thread);
      },
    ],
    [
      'is not made good by a call beside it that was answered',
      ENGINE,
      async (_, say) => void (await say('a').then(() => Promise.all([say('b'), say('c')]))),
    ],
    [
      'as the only one is told, and not that there was none',
      { kind: 'failed', code: 'REQUEST_INVALID' },
      async (ctx) => void (await generate(ctx, { temperature: -1 })),
    ],
    [
      'in a default model fails the rollout',
      { kind: 'failed', code: 'DEFAULT_MODEL_FAILED' },
      thenDo(
        saying('a'),
        async (ctx) =>
          void (await clerk(ctx)
            .generate({ messages: ctx.prompt })
            .catch(() => undefined)),
      ),
    ],
    [`${FULL}, and was followed by a shorter one, is recovered from`, DONE, saying(LONG, 'short')],
    [`${FULL}, as the last word, truncates the rollout`, OVERFLOW, saying('short', LONG)],
    [`${FULL} is behind what a framework throws right then`, OVERFLOW, thenDo(saying('short', LONG), crash)],
    [`${FULL} is not behind a crash after an answer`, CRASH, thenDo(saying(LONG, 'short'), crash)],
    [
      `${FULL} is no excuse for what cannot be graded`,
      { kind: 'failed', code: 'WORKFLOW_BAD_RESULT' },
      thenDo(saying('short', LONG), () => ({ output: 12n })),
    ],
    [
      'is none where its client gave it up',
      DONE,
      thenDo(saying('a'), async (ctx) => void (await generate(ctx, { signal: AbortSignal.abort() }))),
    ],
  ])('%s', async (_, outcome, agent) => {
    const trajectory = await rolledOut(agent);
    expect(trajectory).toMatchObject({ outcome, unanswered: [{ promptTokens: expect.any(Number) }] });
    expect(trajectory.grade.kind).toBe(trajectory.outcome.kind === 'failed' ? 'ungraded' : 'graded');
  });

  it('is kept with its place among the turns; of very many the last', async () => {
    const { rollout } = await bench();
    const { unanswered } = await rollout(async (ctx) => {
      for (let i = 0; i < 1001; i++) await generate(ctx, { maxTokens: -i });
      await chat(ctx, ctx.prompt);
      await generate(ctx, { stop: [''] });
    });
    expect(unanswered).toHaveLength(1000);
    expect([unanswered![0]!.turnsBefore, unanswered!.at(-1)!.turnsBefore]).toEqual([0, 1]);
  });
});
