/** What reaches the grader, the rewards and the samples of unusual workflows, through the real runner, gateway and store. */
import { EventEmitter, once } from 'node:events';
import fc from 'fast-check';
import OpenAI from 'openai';
import { describe, expect, it } from 'vitest';
import { scriptedLogprob } from '../../packages/testing/src/trajectories.ts';
import type { GraderInput, GraderResult, Workflow, WorkflowContext, WorkflowResult } from '../../src/core/contracts.ts';
import { defineGrader, defineWorkflow } from '../../src/core/define.ts';
import type { Message, Task, Trajectory, Turn } from '../../src/core/types.ts';
import { versionsBehind } from '../../src/rollout/scheduler.ts';
import { stitch } from '../../src/tokens/stitch.ts';
import { makeBatch } from '../../src/training/batch.ts';
import { rolloutsThrough, scriptedGateway } from '../fixtures/scripted-gateway.ts';

const TASK: Task = { id: 't', prompt: [{ role: 'user', content: 'hello' }], answer: 'SECRET' };
const ask = { messages: [{ role: 'user', content: 'well?' }] } as const;

/** Emits `recorded` with each turn of a rollout. */
const session = new EventEmitter();

function yardOf(workflow: Workflow, grade?: (input: GraderInput) => GraderResult) {
  const { engine, gateway } = scriptedGateway((call) => `say ${call}`);
  const run = rolloutsThrough(gateway);
  const observer = { recorded: () => void session.emit('recorded') };
  const rollOut = (): Promise<Trajectory> => run({ workflow, grader: grade && defineGrader(grade), observer }, TASK);
  return { rollOut, gateway, engine };
}

/** Three turns of one conversation; gives their ids. */
async function converse(ctx: WorkflowContext<undefined>): Promise<string[]> {
  const messages: Message[] = [...ctx.prompt];
  const ids: string[] = [];
  for (let turn = 0; turn < 3; turn++) {
    const { id, message } = await ctx.model().generate({ messages });
    ids.push(id);
    messages.push(message, { role: 'user', content: 'and?' });
  }
  return ids;
}

/** A call whose client leaves before the answer is read, after it was recorded. */
async function missed(ctx: WorkflowContext<undefined>, messages: readonly Message[]): Promise<void> {
  const { fetch, baseURL, apiKey } = ctx.model();
  const headers = { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' };
  const body = JSON.stringify({ model: 'any', stream: true, messages });
  const recorded = once(session, 'recorded');
  const response = await fetch(`${baseURL}/chat/completions`, { method: 'POST', headers, body });
  await recorded;
  await response.body?.cancel();
}

describe('the grader', () => {
  const seenBy = async (run: (ctx: WorkflowContext<undefined>) => Promise<WorkflowResult | undefined>) => {
    const seen: GraderInput[] = [];
    const { turns } = await yardOf(defineWorkflow(run), (input) => seen.push(input)).rollOut();
    return { turns, seen: seen[0]! };
  };

  it('sees the whole conversation, however few of its turns are trained', async () => {
    const { turns, seen } = await seenBy(async (ctx) => ({ trainedTurns: [(await converse(ctx))[0]!] }));
    expect(turns.map(({ trainable }) => trainable)).toEqual([true, false, false]);
    expect(seen.messages).toHaveLength(6);
    expect(seen.messages.at(-1)?.content).toBe('say 2');
  });

  it('does not see an answer that nobody got as the end of a conversation', async () => {
    const { turns, seen } = await seenBy(async (ctx) => {
      const { message } = await ctx.model().generate(ask);
      await missed(ctx, [...ask.messages, message, { role: 'user', content: 'lost?' }]);
    });
    expect(turns.map(({ undelivered }) => undelivered)).toEqual([undefined, true]);
    expect([seen.threads['default'], seen.messages].map((messages) => messages?.at(-1)?.content)).toEqual(['say 0', 'say 0']);
  });
});

describe('rewards by turn', () => {
  it('do not count an answer that nobody got among what a turn led to', async () => {
    const credit = { turnDiscount: 0.5, per: 'turn' } as const;
    const run = async (ctx: WorkflowContext<undefined>) => {
      const first = await ctx.model().generate(ask);
      const next: Message[] = [...ask.messages, first.message, { role: 'user', content: 'go' }];
      await missed(ctx, [...next, { role: 'user', content: 'lost?' }]);
      const last = await ctx.model().generate({ messages: next });
      return last.id;
    };
    const own = yardOf(defineWorkflow(async (ctx) => ({ reward: { value: 1, byTurn: { [await run(ctx)]: 1 } }, credit })));
    const { turns, grade } = await own.rollOut();
    expect(turns.map(({ undelivered, after }) => `${undelivered} ${after}`)).toEqual([
      'undefined undefined',
      'true 0',
      'undefined 0',
    ]);
    expect(grade).toMatchObject({ kind: 'graded', reward: { byTurn: { 0: 0.5, 2: 1 } } });
    const withCredit = defineWorkflow(async (ctx) => run(ctx).then(() => ({ credit })));
    const graded = yardOf(withCredit, () => ({ value: 1, byTurn: { 2: 1 } }));
    expect((await graded.rollOut()).grade).toMatchObject({ kind: 'graded', reward: { byTurn: { 0: 0.5, 2: 1 } } });
  });

  it('are refused where two of them are for the same turn', async () => {
    const { rollOut } = yardOf(
      defineWorkflow(async (ctx) => {
        const [first] = await converse(ctx);
        return { reward: { value: 1, byTurn: { 0: 1, [`chatcmpl-${first}`]: 0 } } };
      }),
    );
    expect((await rollOut()).outcome).toMatchObject({
      kind: 'failed',
      code: 'WORKFLOW_BAD_RESULT',
      message: expect.stringMatching(/two rewards.*turn 0/),
    });
  });
});

describe('reject', () => {
  it('ends the rollout so, whoever catches it on its way', async () => {
    const rejecting = (handled: (rejection: Promise<never>) => Promise<unknown>) =>
      yardOf(
        defineWorkflow(async (ctx) => {
          await ctx.model().generate(ask);
          await handled(Promise.resolve().then(() => ctx.reject('not this one')));
        }),
        () => 1,
      );
    const swallow = rejecting((rejection) => rejection.catch(() => 'tool error'));
    const wrap = rejecting((rejection) =>
      rejection.catch((cause: unknown) => Promise.reject(new Error('the tool failed', { cause }))),
    );
    for (const { rollOut } of [swallow, wrap]) {
      expect(await rollOut()).toMatchObject({
        outcome: { kind: 'rejected', reason: 'not this one' },
        grade: { kind: 'ungraded' },
      });
    }
  });
});

describe('roles', () => {
  it('that are not among the trained ones are not, declared or not', async () => {
    const { rollOut } = yardOf(
      defineWorkflow({
        roles: ['solver', '__proto__', 'constructor'],
        trainable: ['solver'],
        async run(ctx) {
          for (const role of ['solver', '__proto__', 'constructor', undefined] as const) await ctx.model(role).generate(ask);
          return { reward: 1 };
        },
      }),
    );
    const trained = (await rollOut()).turns.map(({ role, trainable }) => `${role} ${trainable}`);
    expect(trained).toEqual(['solver true', '__proto__ false', 'constructor false', 'default false']);
  });
});

describe('a default model', () => {
  it('is kept with what it was asked, and is in no sample, no budget and no staleness', async () => {
    const tools = [{ type: 'function', function: { name: 'add' } }] as const;
    const { rollOut, engine } = yardOf(
      defineWorkflow({
        roles: { solver: {}, user: { default: () => 'played' } },
        trainable: ['solver'],
        async run(ctx) {
          const { message } = await ctx.model('user').generate({ ...ask, tools, temperature: 0.5 });
          // The same words in the policy's own conversation: said by another, so context.
          const messages = [...ask.messages, message, { role: 'user', content: 'go' }] as const;
          await ctx.model('solver').generate({ messages });
          return { reward: 1 };
        },
      }),
    );
    engine.policyVersion = 4;
    const trajectory = await rollOut();
    const [played, solved] = trajectory.turns;
    expect(played).toMatchObject({ request: { messages: ask.messages, tools }, sampling: { requested: { temperature: 0.5 } } });
    expect(solved?.after).toBeUndefined();
    expect(versionsBehind([trajectory], 4)).toBe(0);
    const other = { ...trajectory, rolloutId: 'other', grade: { kind: 'graded', reward: { value: 0 } } } as const;
    const { samples, trainedTokens } = makeBatch([trajectory, other]);
    expect(trainedTokens).toBe(2 * solved!.sampledIds.length);
    expect(samples.map(({ mask }) => mask.length)).toEqual(Array(2).fill(solved!.promptIds.length + solved!.sampledIds.length));
  });
});

describe('samples', () => {
  /** Whatever an agent does, in an order of its own. */
  const moves = ['words', 'ids', 'forced', 'cut', 'cut in ids', 'aside', 'other role', 'several', 'again'] as const;
  const tools = [{ type: 'function', function: { name: 'add', parameters: { type: 'object' } } }] as const;

  const play = async (ctx: WorkflowContext<undefined>, order: readonly (typeof moves)[number][]): Promise<void> => {
    const model = ctx.model();
    let messages: Message[] = [...ctx.prompt];
    let last: Turn | undefined;
    for (const move of order) {
      const asks: Message = { role: 'user', content: `go on with ${move}` };
      const maxTokens = move.startsWith('cut') ? 2 : 64;
      if (move === 'ids' || move === 'cut in ids') {
        const promptIds = last ? model.render([asks], { after: last }) : model.render(messages);
        last = (await model.generate({ promptIds, maxTokens, temperature: 0.1 })).turn;
        continue;
      }
      if (move === 'several') {
        const client = new OpenAI(model.openai());
        await client.chat.completions.create({ model: 'policy', n: 3, messages: messages as never, temperature: 0 });
        continue;
      }
      const caller = move === 'aside' ? model.thread('aside') : move === 'other role' ? ctx.model('critic') : model;
      const asked = move === 'again' ? messages : [...messages, asks];
      const forced = move === 'forced' ? { tools, tool: 'add' } : {};
      const { message, turn } = await caller.generate({ messages: asked, maxTokens, temperature: 0.1, ...forced });
      messages = [
        ...asked,
        message,
        ...(message.tool_calls ?? []).map(({ id }) => ({ role: 'tool' as const, content: '3', tool_call_id: id })),
      ];
      if (caller === model) last = turn;
    }
  };

  it('hold every sampled token of trained roles once, with its own log-probability, and nothing else', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(fc.constantFrom(...moves), { minLength: 2, maxLength: 6 }), async (order) => {
        const { rollOut, gateway } = yardOf(
          defineWorkflow({
            roles: ['default', 'critic'],
            trainable: ['default'],
            run: async (ctx) => {
              await play(ctx as WorkflowContext<undefined>, order);
              return { reward: 1 };
            },
          }),
        );
        const trajectory = await rollOut();
        expect(gateway.openSessions).toBe(0);
        expect(['completed', 'truncated'], JSON.stringify(trajectory.outcome)).toContain(trajectory.outcome.kind);
        const trained = trajectory.turns.filter(({ role }) => role === 'default');
        expect(trained.every(({ sampling }) => sampling.effective.temperature === 1)).toBe(true);
        expect(new Set(trajectory.turns.map(({ sampling }) => sampling.seed)).size).toBe(trajectory.turns.length);
        const samples = stitch(trajectory.turns, { advantageOf: () => 1, weight: 1, rolloutId: 'r', groupId: 'g' });
        const masked = samples.flatMap(({ tokens, mask, logprobs }) =>
          [...tokens].flatMap((id, i) => (mask[i] === 1 ? [[id, logprobs[i]] as const] : [])),
        );
        expect(masked.every(([id, logprob]) => logprob === scriptedLogprob(id))).toBe(true);
        const ids = (all: readonly number[]) => all.toSorted((a, b) => a - b);
        expect(ids(masked.map(([id]) => id))).toEqual(ids(trained.flatMap(({ sampledIds }) => [...sampledIds])));
      }),
      { numRuns: 60 },
    );
  });
});
