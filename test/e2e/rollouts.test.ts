/** Rollouts through the real gateway, runner, store and stitch, with a scripted engine in the policy's place. */
import { getEventListeners } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import fc from 'fast-check';
import OpenAI from 'openai';
import { describe, expect, it } from 'vitest';
import { Downtime } from '../../src/core/async.ts';
import { currentRollout } from '../../src/core/context.ts';
import type { WorkflowContext, WorkflowResult } from '../../src/core/contracts.ts';
import { defineGrader, defineWorkflow } from '../../src/core/define.ts';
import type { Limits, Message, Task, Trajectory } from '../../src/core/types.ts';
import { Gateway } from '../../src/gateway/gateway.ts';
import { memoryStore } from '../../src/store/memory.ts';
import { scriptedEngine, scriptedLogprob } from '../../src/testing/trajectories.ts';
import { stitch } from '../../src/tokens/stitch.ts';
import { renderer, rolloutsThrough, tokenizer } from '../fixtures/scripted-gateway.ts';

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

  it('that throws is a failed trajectory with its turns, and gets no reward', async () => {
    const { rollout, store } = await bench();
    const trajectory = await rollout(async (ctx) => {
      await chat(ctx, ctx.prompt);
      throw new Error('tool exploded');
    });
    expect(trajectory).toMatchObject({
      outcome: { kind: 'failed', code: 'WORKFLOW_FAILED', message: 'tool exploded' },
      grade: { kind: 'ungraded' },
    });
    expect((await store.read('r0'))?.turns.length).toBe(1);
  });

  it('has the time of its deadline for itself: what the policy was away for does not count, the rest does', async () => {
    const downtime = new Downtime();
    const deadlineMs = 1500;
    const { rollout } = await bench({ downtime, limits: { deadlineMs } });
    const away = async (): Promise<void> => {
      downtime.begin();
      await sleep(deadlineMs + 200);
      downtime.end();
    };
    const waited = await rollout(async (ctx) => {
      await away();
      await chat(ctx, ctx.prompt);
    });
    expect(waited.outcome).toEqual({ kind: 'completed' });
    const hung = await rollout(async () => {
      await away();
      await new Promise(() => {});
    });
    expect(hung.outcome).toEqual({ kind: 'truncated', limit: 'deadline' });
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

  it('that runs into its turn limit is truncated and still graded', async () => {
    const { rollout } = await bench({ limits: { turns: 2 }, grade: () => 0.25 });
    const trajectory = await rollout(async (ctx) => {
      for (;;) await chat(ctx, ctx.prompt);
    });
    expect(trajectory).toMatchObject({
      outcome: { kind: 'truncated', limit: 'turns' },
      grade: { kind: 'graded', reward: { value: 0.25 } },
    });
    expect(trajectory.turns.length).toBe(2);
  });

  it('that outgrows the context is truncated and graded, as any other ending of its own doing', async () => {
    const { rollout, store } = await bench({ limits: { turns: 1000, tokens: 1_000_000 }, grade: () => 0 });
    const trajectory = await rollout(async (ctx) => {
      const messages: Message[] = [...ctx.prompt];
      for (;;) {
        await chat(ctx, messages);
        messages.push({ role: 'user', content: 'more and more and more '.repeat(50) });
      }
    });
    expect(trajectory).toMatchObject({ outcome: { kind: 'truncated', limit: 'context' }, grade: { kind: 'graded' } });
    expect(await store.count()).toBe(1);
  });

  it('without a model call is rejected, never rewarded', async () => {
    const { rollout } = await bench();
    expect(await rollout(async () => 'from memory')).toMatchObject({
      outcome: { kind: 'rejected', reason: 'no_turns' },
      grade: { kind: 'ungraded' },
    });
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

  it('never shows its task’s answer to the workflow, the policy or the stored record', async () => {
    const canary = 'CANARY-6f1d';
    const { rollout, engine, store } = await bench();
    const seen: string[] = [];
    const task: Task = {
      id: 't',
      prompt: [{ role: 'user', content: 'hello' }],
      answer: { secret: canary },
      metadata: { kind: 'x' },
    };
    await rollout(async (ctx) => {
      seen.push(JSON.stringify(ctx), JSON.stringify(ctx.task), JSON.stringify(currentRollout()), JSON.stringify(process.env));
      await chat(ctx, ctx.prompt);
    }, task);
    seen.push(...engine.requests.map(({ promptIds }) => tokenizer.decode(promptIds)));
    seen.push(JSON.stringify(await store.query()));
    expect(seen.join('\n')).toContain('hello');
    expect(seen.join('\n')).not.toContain(canary);
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
  const ENGINE = { kind: 'failed', code: 'ENGINE_FAILED', message: expect.stringContaining('GPU fell off the bus') };
  const CRASH = { kind: 'failed', code: 'WORKFLOW_FAILED', message: 'the database is down' };
  const OVERFLOW = { kind: 'truncated', limit: 'context' };

  it.each<[string, object, Agent]>([
    ['as the last word fails the rollout', ENGINE, async (_, say) => void (await say('a').then(() => say('b')))],
    [
      'and was made again is recovered from',
      { kind: 'completed' },
      async (_, say) => {
        for (const words of ['a', 'b', 'b']) await say(words);
      },
    ],
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
      async (ctx) => {
        await ctx
          .model()
          .generate({ messages: [], temperature: -1 })
          .catch(() => undefined);
      },
    ],
    [
      'in a default model fails the rollout',
      { kind: 'failed', code: 'DEFAULT_MODEL_FAILED' },
      async (ctx, say) => {
        await say('a');
        const clerk = ctx.model('clerk', { trainable: () => false, default: crash });
        await clerk.generate({ messages: ctx.prompt }).catch(() => undefined);
      },
    ],
    [
      'because the context was full, and was followed by a shorter one, is recovered from',
      { kind: 'completed' },
      async (_, say) => {
        for (const words of [LONG, 'short']) await say(words);
      },
    ],
    [
      'because the context was full, as the last word, truncates the rollout',
      OVERFLOW,
      async (_, say) => {
        for (const words of ['short', LONG]) await say(words);
      },
    ],
    [
      'because the context was full is behind what a framework throws right then',
      OVERFLOW,
      async (_, say) => {
        for (const words of ['short', LONG]) await say(words);
        crash();
      },
    ],
    [
      'because the context was full is not behind a crash after an answer',
      CRASH,
      async (_, say) => {
        for (const words of [LONG, 'short']) await say(words);
        crash();
      },
    ],
    [
      'because the context was full is no excuse for what cannot be graded',
      { kind: 'failed', code: 'WORKFLOW_BAD_RESULT' },
      async (_, say) => {
        for (const words of ['short', LONG]) await say(words);
        return { output: 12n };
      },
    ],
    [
      'is none where its client gave it up',
      { kind: 'completed' },
      async (ctx, say) => {
        await say('a');
        await ctx
          .model()
          .generate({ messages: ctx.prompt, signal: AbortSignal.abort() })
          .catch(() => undefined);
      },
    ],
  ])('%s', async (_, outcome, agent) => {
    const trajectory = await rolledOut(agent);
    expect(trajectory).toMatchObject({ outcome, unanswered: [{ promptTokens: expect.any(Number) }] });
    expect(trajectory.grade.kind).toBe(trajectory.outcome.kind === 'failed' ? 'ungraded' : 'graded');
  });

  it('is kept with its place among the turns; of very many the last', async () => {
    const { rollout } = await bench();
    const { unanswered } = await rollout(async (ctx) => {
      for (let i = 0; i < 1001; i++)
        await ctx
          .model()
          .generate({ messages: [], maxTokens: -i })
          .catch(() => undefined);
      await chat(ctx, ctx.prompt);
      await ctx
        .model()
        .generate({ messages: ctx.prompt, stop: [''] })
        .catch(() => undefined);
    });
    expect(unanswered).toHaveLength(1000);
    expect([unanswered![0]!.turnsBefore, unanswered!.at(-1)!.turnsBefore]).toEqual([0, 1]);
  });
});

describe('whatever agents do', () => {
  const action = fc.oneof(
    fc.record({ kind: fc.constant('continue' as const), text: fc.string({ maxLength: 12 }) }),
    fc.record({ kind: fc.constant('restart' as const), text: fc.string({ maxLength: 12 }) }),
    fc.record({ kind: fc.constant('rewrite' as const), text: fc.string({ maxLength: 12 }) }),
    fc.record({ kind: fc.constant('fan-out' as const), text: fc.string({ maxLength: 4 }) }),
    fc.record({ kind: fc.constant('throw' as const), text: fc.string({ maxLength: 4 }) }),
  );

  async function act(ctx: WorkflowContext, actions: readonly { kind: string; text: string }[]): Promise<void> {
    let history: Message[] = [...ctx.prompt];
    const turn = async (messages: Message[]) => [...messages, (await chat(ctx, messages)).choices[0]!.message as Message];
    for (const { kind, text } of actions) {
      if (kind === 'throw') throw new Error(text);
      if (kind === 'restart') history = [{ role: 'user', content: text }];
      if (kind === 'rewrite')
        history = history.map((message) => (message.role === 'assistant' ? { ...message, content: text } : message));
      if (kind === 'fan-out')
        await Promise.all([turn(history), turn(history), turn([...history, { role: 'user', content: text }])]);
      else history = await turn([...history, { role: 'user', content: text }]);
    }
  }

  it('every session is sealed, every rollout stored once, and every sampled token trained exactly once as it was sent', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.array(action, { maxLength: 6 }), { minLength: 1, maxLength: 4 }),
        fc.nat(),
        async (scripts, salt) => {
          const { rollout, engine, store, gateway } = await bench({
            limits: { turns: 6 },
            reply: (call) => Array.from({ length: 1 + ((call * 7 + salt) % 9) }, (_, i) => (i * 31 + call + salt) % 512),
          });
          const trajectories = await Promise.all(scripts.map((script) => rollout((ctx) => act(ctx, script))));
          expect(gateway.openSessions).toBe(0);
          expect((await store.query()).map(({ rolloutId }) => rolloutId).toSorted()).toEqual(
            trajectories.map(({ rolloutId }) => rolloutId).toSorted(),
          );
          for (const { rolloutId, groupId } of trajectories) {
            const stored = (await store.read(rolloutId))!;
            for (const { promptIds } of stored.turns)
              expect(engine.requests.some((request) => request.promptIds.join() === promptIds.join())).toBe(true);
            const samples = stitch(stored.turns, { advantageOf: () => 1, weight: 1, rolloutId, groupId });
            const trained = samples.flatMap(({ tokens, mask, logprobs }) =>
              [...tokens].flatMap((id, i) => (mask[i] ? [[id, logprobs[i]]] : [])),
            );
            const sampled = stored.turns.flatMap(({ sampledIds }) => [...sampledIds].map((id) => [id, scriptedLogprob(id)]));
            expect(trained.toSorted()).toEqual(sampled.toSorted());
          }
        },
      ),
      { numRuns: 40 },
    );
  });
});
