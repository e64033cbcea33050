import { chmodSync, mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { ask, backendOf, execute, policy, request, running } from '../../test/fixtures/rollout-server/local-rollouts.ts';
import { currentRollout } from '../core/context.ts';
import type { GraderInput, WorkflowContext } from '../core/contracts.ts';
import { defineGrader, defineWorkflow } from '../core/define.ts';
import type { RolloutRequest } from './execution.ts';
import { LocalBackend } from './local-backend.ts';

describe('a rollout of a local backend', () => {
  it('runs the workflow as an ambient rollout, then grades each conversation by its name', async () => {
    let ambient: string | undefined;
    let seen: GraderInput | undefined;
    const workflow = defineWorkflow(async (ctx) => {
      ambient = currentRollout()?.rolloutId;
      await ask(ctx);
      await ask(ctx, 'helper');
      return { metrics: { calls: 2 }, metadata: { note: 'kept' } };
    });
    const grader = defineGrader((input) => {
      seen = input;
      return { value: 0.5, byThread: { helper: 0.25 }, parts: { length: 3 } };
    });
    const { order, graded } = await execute(backendOf({ workflow, grader }));
    expect(ambient).toBe('r1');
    expect(order).toEqual(['completed', 'graded']);
    expect(seen!.task).toMatchObject({ answer: 'secret-label', prompt: [{ role: 'user', content: 'hello' }] });
    expect(seen!.threads['helper']).toEqual([
      { role: 'user', content: 'hello' },
      { role: 'assistant', content: '1 heard' },
    ]);
    expect(seen!.turns.map(({ thread }) => thread)).toEqual(['default', 'helper']);
    expect(graded[0]).toMatchObject({ status: 'success', errMessage: null });
    const { default: first, helper } = graded[0]!.samples;
    expect([first!.reward, helper!.reward]).toEqual([0.5, 0.25]);
    expect(first).toMatchObject({ label: 'secret-label', metrics: { calls: 2, length: 3 }, extraFields: { note: 'kept' } });
  });

  it('never shows the label to the workflow; metadata is the same for both', async () => {
    const metadata = { row: 7, nested: { a: [1] } };
    let shown = '';
    let graderMetadata: unknown;
    const workflow = defineWorkflow(async (ctx) => {
      shown = JSON.stringify([ctx.task, ctx.prompt, ctx.metadata, ctx.config]);
      await ask(ctx);
    });
    const grader = defineGrader(({ task }) => {
      graderMetadata = task.metadata;
      return 1;
    });
    await execute(backendOf({ workflow, grader }), { metadata });
    expect(shown).not.toContain('secret-label');
    expect(JSON.parse(shown)[2]).toEqual(metadata);
    expect(graderMetadata).toEqual(metadata);
  });

  it('shows a grader each conversation as the workflow kept it, where it did', async () => {
    const kept = [{ role: 'user' as const, content: 'as I had it' }];
    let seen: GraderInput['threads'] = {};
    const workflow = defineWorkflow(async (ctx) => {
      await ask(ctx);
      await ask(ctx, 'mine');
      return { threads: { mine: kept } };
    });
    const grader = defineGrader((input) => {
      seen = input.threads;
      return 1;
    });
    const { graded } = await execute(backendOf({ workflow, grader }));
    expect(seen['mine']).toEqual(kept);
    expect(seen['default']!.at(-1)).toEqual({ role: 'assistant', content: '1 heard' });
    expect(Object.keys(graded[0]!.samples)).toEqual(['default', 'mine']);
  });

  it('is completed once, even where that could not be told', async () => {
    const told: string[] = [];
    await backendOf().execute(request(), {
      completed: async ({ status }) => {
        told.push(status);
        throw new Error('nobody there');
      },
      graded: async ({ errMessage }) => void told.push(errMessage ?? ''),
      fetch: policy,
      warn: () => undefined,
    });
    expect(told).toEqual(['success', 'nobody there']);
  });

  it('is refused where its threads are no conversations', async () => {
    const { completed } = await execute(running(async () => ({ threads: { mine: 'a text' } })));
    expect(completed[0]).toMatchObject({ errCategory: 'validation_error', errMessage: expect.stringContaining('threads') });
  });

  it('sends the identity of its rollout and conversation with every call', async () => {
    const headers: string[] = [];
    const fetch: typeof policy = async (input, init) => {
      const sent = new Request(input, init);
      headers.push(`${sent.headers.get('x-rollout-id')} ${sent.headers.get('x-sample-id')} ${sent.headers.get('authorization')}`);
      return await policy(sent);
    };
    const workflow = defineWorkflow(async (ctx) => void (await Promise.all([ask(ctx, 'a'), ask(ctx, 'b')])));
    const backend = backendOf({ workflow, workflowConfig: {} });
    await Promise.all([execute(backend, { rolloutId: 'x' }, fetch), execute(backend, { rolloutId: 'y' }, fetch)]);
    expect(headers.toSorted()).toEqual(['x a', 'x b', 'y a', 'y b'].map((seat) => `${seat} Bearer llm-key-0123`));
  });

  it('has heard a stream whose client stops reading at its end mark', async () => {
    const text = `data: ${JSON.stringify({ choices: [{ index: 0, delta: { content: 'streamed' } }] })}\n\ndata: [DONE]\n\n`;
    const open = new ReadableStream<Uint8Array<ArrayBuffer>>({
      start: (controller) => controller.enqueue(new TextEncoder().encode(text)),
    });
    const workflow = defineWorkflow(async (ctx) => {
      const { fetch, baseURL } = ctx.model();
      const body = JSON.stringify({ messages: ctx.prompt, stream: true });
      const response = await fetch(`${baseURL}/chat/completions`, { method: 'POST', body });
      const reader = response.body!.getReader();
      await reader.read();
      await reader.cancel();
    });
    const fetch = async (): Promise<Response> => new Response(open, { headers: { 'content-type': 'text/event-stream' } });
    const { graded } = await execute(backendOf({ workflow }), {}, fetch);
    expect(graded[0]!.samples['default']!.messages.at(-1)).toEqual({ role: 'assistant', content: 'streamed' });
  });

  it('has heard a stream to its real end where the policy says the mark of an end', async () => {
    const chunk = (content: string): string => `data: ${JSON.stringify({ choices: [{ index: 0, delta: { content } }] })}\n\n`;
    const parts = [chunk('I am done. data: [DONE]'), chunk(' but there is more'), 'data: [DONE]\n\n'];
    const fetch = async (): Promise<Response> =>
      new Response(ReadableStream.from(parts.map((part) => new TextEncoder().encode(part))) as never, {
        headers: { 'content-type': 'text/event-stream' },
      });
    const workflow = defineWorkflow(async (ctx) => {
      const { fetch: own, baseURL } = ctx.model();
      const body = JSON.stringify({ stream: true, messages: ctx.prompt });
      await (await own(`${baseURL}/chat/completions`, { method: 'POST', body })).text();
    });
    const { graded } = await execute(backendOf({ workflow }), {}, fetch);
    expect(graded[0]!.samples['default']!.messages.at(-1)?.content).toBe('I am done. data: [DONE] but there is more');
  });

  it('asks nothing of the policy any more once it has ended', async () => {
    const { promise: asked, resolve: begin } = Promise.withResolvers<void>();
    let late: Promise<unknown> | undefined;
    const workflow = defineWorkflow(async (ctx) => {
      await ask(ctx);
      late = asked.then(() => ask(ctx));
      late.catch(() => undefined);
    });
    const { graded } = await execute(backendOf({ workflow }));
    begin();
    await expect(late).rejects.toThrow('has ended');
    expect(graded[0]!.samples['default']!.messages).toHaveLength(2);
  });

  it('says which setup failed', async () => {
    const setup = (): never => {
      throw new Error('no database');
    };
    const backend = backendOf({ workflow: defineWorkflow({ name: 'mine', setup, run: async () => {} }) });
    await expect(backend.start()).rejects.toThrow('the setup of workflow mine failed: no database');
  });

  it('refuses tokens in place of messages: they are where the policy is', async () => {
    const { completed } = await execute(running((ctx) => ctx.model().generate({ promptIds: [1, 2] })));
    expect(completed[0]).toMatchObject({ status: 'failure', errMessage: expect.stringContaining('promptIds') });
  });

  it('that the workflow rejected has its samples removed and no reward', async () => {
    const rejecting = running(async (ctx) => {
      await ask(ctx);
      ctx.reject('no good');
    });
    const { completed, graded } = await execute(rejecting);
    expect(completed[0]!.status).toBe('success');
    expect(graded[0]).toMatchObject({ status: 'success', errMessage: expect.stringContaining('no good') });
    expect(graded[0]!.samples['default']).toMatchObject({ removed: true, reward: null });
  });

  it('has a folder of its own, or none where none can be made', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'artifacts-'));
    const seen: (string | null)[] = [];
    const keep = async (ctx: WorkflowContext): Promise<void> => void seen.push(ctx.artifactsDir);
    await execute(running(keep, { artifacts: folder }));
    expect(seen[0]).toBe(join(folder, 'r1'));
    const file = join(folder, 'a-file');
    writeFileSync(file, '');
    chmodSync(file, 0o400);
    const { completed } = await execute(running(keep, { artifacts: file }));
    expect(seen[1]).toBeNull();
    expect(completed[0]!.status).toBe('success');
  });
});

describe('a grade', () => {
  it.each([
    ['only a label', { label: 'x', metadata: null }],
    ['only metadata', { label: null, metadata: { a: 1 } }],
  ])('is given with %s', async (_, more) => {
    const { graded } = await execute(backendOf(), more);
    expect(graded[0]).toMatchObject({ status: 'success', samples: { default: { reward: 1 } } });
  });

  it('without either, or without a grader, fails and says why', async () => {
    const why = async (backend: LocalBackend, more: Partial<RolloutRequest> = {}): Promise<string | null> => {
      const { completed, graded } = await execute(backend, more);
      expect(completed[0]!.status).toBe('success');
      expect(graded[0]!.status).toBe('failure');
      for (const { reward } of Object.values(graded[0]!.samples)) expect(reward).toBeNull();
      return graded[0]!.errMessage;
    };
    expect(await why(backendOf(), { label: null })).toContain('neither label nor metadata');
    expect(await why(backendOf({ grader: undefined }))).toContain('no grader');
  });

  it('is given by what the workflow returned where its model calls went past us', async () => {
    const grader = defineGrader(({ output, task, messages }) => (messages.length === 0 && output === task.answer ? 1 : 0));
    const { graded } = await execute(backendOf({ workflow: defineWorkflow(async () => 'secret-label'), grader }));
    expect(graded[0]).toMatchObject({ status: 'success', samples: { default: { messages: [], reward: 1 } } });
  });

  it('is the one number of a workflow that also gives rewards by turn', async () => {
    for (const byTurn of [[0.5, 1], { 0: 1 }, { 'some-completion': 1 }]) {
      const { graded } = await execute(running(async () => ({ reward: { value: 1.5, byTurn } }), { grader: undefined }));
      expect(graded).toMatchObject([{ status: 'success', samples: { default: { reward: 1.5 } } }]);
    }
  });

  it('is the workflow’s own where there is no grader', async () => {
    const workflow = defineWorkflow(async (ctx) => {
      await ask(ctx);
      return { reward: 0.75 };
    });
    const { graded } = await execute(backendOf({ workflow, grader: undefined }));
    expect(graded[0]!.samples['default']!.reward).toBe(0.75);
  });

  it.each([
    [
      'throws',
      () => {
        throw new Error('broken');
      },
      'agent_error',
      'broken',
    ],
    ['gives NaN', () => Number.NaN, 'validation_error', 'NaN'],
    ['gives a text', () => '1' as unknown as number, 'validation_error', 'expected a number'],
    ['gives a thread that is not there', () => ({ value: 1, byThread: { ghost: 1 } }), 'validation_error', 'ghost'],
  ])('of a grader that %s is a failure, never 0', async (_, grade, category, message) => {
    const { completed, graded } = await execute(backendOf({ grader: defineGrader(grade) }));
    expect(completed.map(({ status }) => status)).toEqual(['success']);
    expect(graded[0]).toMatchObject({ status: 'failure', errCategory: category, errMessage: expect.stringContaining(message) });
    expect(graded[0]!.samples['default']!.reward).toBeNull();
  });

  it('changes nothing of what was said', async () => {
    const grader = defineGrader(({ threads }) => {
      (threads['default'] as unknown[]).length = 0;
      return 1;
    });
    const { graded } = await execute(backendOf({ grader }));
    expect(graded[0]!.samples['default']!.messages).toHaveLength(2);
  });

  it('is not asked for where nobody wants to hear of it', async () => {
    const { order } = await execute(backendOf(), { grading: false });
    expect(order).toEqual(['completed']);
  });

  it('of taken-out conversations is none', async () => {
    const workflow = defineWorkflow(async (ctx) => {
      for (const thread of ['a', 'b', 'constructor']) await ask(ctx, thread);
    });
    const grader = defineGrader(() => ({ value: 1, untrained: ['a'], byThread: { b: 0.5 } }));
    const { graded } = await execute(backendOf({ workflow, grader }));
    expect(graded[0]!.samples['a']).toMatchObject({ removed: true, reward: null });
    expect(graded[0]!.samples['b']).toMatchObject({ removed: false, reward: 0.5 });
    expect(graded[0]!.samples['constructor']).toMatchObject({ removed: false, reward: 1 });
  });

  it('survives metrics and metadata that are no JSON, which are left out and told once each', async () => {
    const broken = { metrics: { good: 1, bad: Number.NaN }, metadata: { big: 1n, fn: () => 1, fine: 'yes' } } as object;
    const workflow = defineWorkflow(async (ctx) => {
      await ask(ctx);
      return broken;
    });
    const { graded, warnings } = await execute(backendOf({ workflow }));
    expect(graded[0]!.samples['default']).toMatchObject({ reward: 1, metrics: { good: 1 }, extraFields: { fine: 'yes' } });
    expect(Object.keys(graded[0]!.samples['default']!.extraFields)).toEqual(['fine']);
    expect(warnings).toEqual([expect.stringContaining('big, fn'), expect.stringContaining('bad')]);
  });
});

describe('a failure', () => {
  class HttpError extends Error {
    readonly status = 503;
  }
  const refused = Object.assign(new Error('connect ECONNREFUSED'), { code: 'ECONNREFUSED' });
  it.each<[string, Error, string]>([
    ['timeout', new DOMException('my own patience', 'TimeoutError'), 'my own patience'],
    ['validation_error', new TypeError('x is not a function'), 'x is not'],
    ['http_error', new HttpError('overloaded'), 'overloaded'],
    ['http_error', new Error('Connection error.', { cause: refused }), 'Connection error.'],
    ['agent_error', new Error('llm-key-0123 does not fit'), '[key] does not fit'],
  ])('is a %s', async (category, thrown, message) => {
    const { completed, graded } = await execute(
      running(async () => {
        throw thrown;
      }),
    );
    expect(completed).toEqual([{ status: 'failure', errCategory: category, errMessage: expect.stringContaining(message) }]);
    expect(graded).toEqual([
      { status: 'failure', errCategory: category, errMessage: expect.stringContaining(message), samples: {} },
    ]);
  });

  it('of the policy is an http_error', async () => {
    const { completed } = await execute(backendOf(), {}, async () => new Response('no room', { status: 500 }));
    expect(completed[0]).toMatchObject({ errCategory: 'http_error', errMessage: expect.stringContaining('500: no room') });
  });
});

describe('what a local backend is given', () => {
  const folder = mkdtempSync(join(tmpdir(), 'backend-'));
  const core = new URL('../index.ts', import.meta.url).href;
  const file = join(folder, 'entry.mts');
  writeFileSync(
    file,
    `import { defineWorkflow, defineGrader } from ${JSON.stringify(core)};
     export const flow = defineWorkflow(async (ctx) => { await ctx.model().generate({ messages: ctx.prompt }); });
     export const judge = defineGrader(() => 0.25);`,
  );

  it('may be named as module:export', async () => {
    const backend = new LocalBackend({ workflow: `${file}:flow`, grader: `${file}:judge` });
    expect((await execute(backend)).graded[0]!.samples['default']!.reward).toBe(0.25);
    expect(backend.health()).toMatchObject({ concurrency: { max_concurrent: 4 } });
  });

  it('is refused without a colon, at once and all of them', () => {
    const backend = (): LocalBackend => new LocalBackend({ workflow: 'rollout', grader: 'judge:' });
    expect(backend).toThrow(/workflow: invalid import path "rollout".*grader: invalid import path "judge:"/);
  });

  it('is refused where the module does not export it, with what it does export', async () => {
    const backend = new LocalBackend({ workflow: `${file}:missing`, grader: `${join(folder, 'nowhere.mts')}:x` });
    await expect(backend.start()).rejects.toThrow(
      /does not export "missing"; it exports flow, judge; also: cannot import .*nowhere/,
    );
    await expect(new LocalBackend({ workflow: 'node:fs:x' }).start()).rejects.toThrow('invalid import path');
  });

  it('is refused where it is no workflow or grader, and where nobody here could play a role', () => {
    expect(() => new LocalBackend({ workflow: () => 1 })).toThrow(/expected a workflow, found .*Function/);
    expect(() => backendOf({ grader: 5 })).toThrow('expected a grader, found 5');
    const roles = { judge: { default: async () => 'fine' } };
    expect(() => backendOf({ workflow: defineWorkflow({ roles, trainable: [], run: async () => {} }) })).toThrow('role "judge"');
    expect(() => backendOf({ workflow: defineWorkflow({ isolation: 'process', run: async () => {} }) })).toThrow('a process per');
    expect(() => backendOf({ capacity: 0 })).toThrow('capacity is 0');
    expect(() => backendOf({ longestSec: Number.NaN })).toThrow('longestSec is NaN');
  });

  it('is set up before the first rollout and torn down once', async () => {
    const told: string[] = [];
    const backend = backendOf({
      workflow: defineWorkflow({
        setup: () => void told.push('setup'),
        teardown: () => void told.push('teardown'),
        run: async () => void told.push('run'),
      }),
    });
    await backend.start();
    await execute(backend);
    await backend[Symbol.asyncDispose]();
    await backend[Symbol.asyncDispose]();
    expect(told).toEqual(['setup', 'run', 'teardown']);
  });
});
