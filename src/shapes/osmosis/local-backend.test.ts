import { chmodSync, existsSync, mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import OpenAI from 'openai';
import { describe, expect, it } from 'vitest';
import { ask, backendOf, execute, policy, request, running } from '../../../test/fixtures/rollout-server/local-rollouts.ts';
import { currentRollout } from '../../core/context.ts';
import type { GraderInput, WorkflowContext } from '../../core/contracts.ts';
import { defineGrader, defineWorkflow } from '../../core/define.ts';
import { LocalBackend } from './local-backend.ts';

/** A grader that gives 1 and keeps what it was shown. */
function seeing() {
  const seen: GraderInput[] = [];
  return { seen, grader: defineGrader((input) => seen.push(input)) };
}

describe('a rollout of a local backend', () => {
  it('runs the workflow as an ambient rollout without the label, then grades each conversation by its name', async () => {
    const metadata = { row: 7, nested: { a: [1] } };
    let seen: GraderInput | undefined;
    let shown: object = {};
    const run = async (ctx: WorkflowContext) => {
      shown = {
        ambient: currentRollout()?.rolloutId,
        metadata: ctx.metadata,
        all: JSON.stringify([ctx.task, ctx.prompt, ctx.config]),
      };
      await ask(ctx);
      await ask(ctx, 'helper');
      return { metrics: { calls: 2 }, metadata: { note: 'kept' } };
    };
    const grader = defineGrader((input) => {
      seen = input;
      return { value: 0.5, byThread: { helper: 0.25 }, parts: { length: 3 } };
    });
    const { order, graded, sample } = await execute(running(run, { grader }), { metadata });
    expect(shown).toEqual({ ambient: 'r1', metadata, all: expect.not.stringContaining('secret-label') });
    expect(order).toEqual(['completed', 'graded']);
    expect(seen!.task).toMatchObject({ answer: 'secret-label', prompt: [{ role: 'user', content: 'hello' }], metadata });
    expect(seen!.threads['helper']).toEqual([
      { role: 'user', content: 'hello' },
      { role: 'assistant', content: '1 heard' },
    ]);
    expect(seen!.turns.map(({ thread }) => thread)).toEqual(['default', 'helper']);
    expect(graded[0]).toMatchObject({ status: 'success', errMessage: null, samples: { helper: { reward: 0.25 } } });
    expect(sample).toMatchObject({ reward: 0.5, label: 'secret-label', metrics: { calls: 2, length: 3 } });
    expect(sample).toMatchObject({ extraFields: { note: 'kept' } });
  });

  it('shows a grader each conversation as it was sent, as in a run, or as the workflow kept what it did not send', async () => {
    const mine = [{ role: 'user' as const, content: 'as I had it' }];
    const { seen, grader } = seeing();
    const run = async (ctx: WorkflowContext) => {
      await ask(ctx);
      await ask(ctx, 'mine');
      return { threads: { mine, unsent: mine } };
    };
    const { graded } = await execute(running(run, { grader }));
    expect(seen[0]!.threads).toMatchObject({
      mine: [{}, { role: 'assistant', content: '1 heard' }],
      unsent: mine,
      default: [{}, { role: 'assistant', content: '1 heard' }],
    });
    expect(Object.keys(graded[0]!.samples).toSorted()).toEqual(['default', 'mine', 'unsent']);
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

  it('sends the identity of its rollout and conversation with every call', async () => {
    const sent: string[] = [];
    const fetch: typeof policy = async (input, init) => {
      const { headers } = new Request(input, init);
      sent.push(['x-rollout-id', 'x-sample-id', 'authorization'].map((name) => headers.get(name)).join(' '));
      return await policy(input, init);
    };
    const backend = running((ctx) => Promise.all([ask(ctx, 'a'), ask(ctx, 'b')]).then(() => undefined));
    await Promise.all([execute(backend, { rolloutId: 'x' }, fetch), execute(backend, { rolloutId: 'y' }, fetch)]);
    expect(sent.toSorted()).toEqual(['x a', 'x b', 'y a', 'y b'].map((thread) => `${thread} Bearer llm-key-0123`));
  });

  const chunk = (content: string, finish_reason?: string): string =>
    `data: ${JSON.stringify({ choices: [{ index: 0, delta: { content }, finish_reason }] })}\n\n`;
  const readWhole = async (response: Response) => void (await response.text());
  const readToItsMark = async ({ body }: Response) => {
    const reader = body!.getReader();
    for (let text = ''; !text.includes('data: [DONE]'); ) text += new TextDecoder().decode((await reader.read()).value);
    await reader.cancel();
  };
  it.each([
    ['whose client stops reading at its end mark', [`${chunk('streamed', 'stop')}data: [DONE]\n\n`], readToItsMark, 'streamed'],
    [
      'to its real end where the policy says the mark of an end',
      [chunk('I am done. data: [DONE]'), chunk(' but there is more', 'stop'), 'data: [DONE]\n\n'],
      readWhole,
      'I am done. data: [DONE] but there is more',
    ],
  ])('records a stream %s', async (_, parts, read, content) => {
    async function* open() {
      for (const part of parts) yield new TextEncoder().encode(part);
      if (read === readToItsMark) await new Promise(() => undefined);
    }
    const headers = { 'content-type': 'text/event-stream' };
    const fetch = async (): Promise<Response> => new Response(ReadableStream.from(open()) as never, { headers });
    const backend = running(async (ctx) => {
      const { fetch: own, baseURL } = ctx.model();
      const body = JSON.stringify({ messages: ctx.prompt, stream: true });
      await read(await own(`${baseURL}/chat/completions`, { method: 'POST', body }));
    });
    const { sample } = await execute(backend, {}, fetch);
    expect(sample!.messages.at(-1)).toEqual({ role: 'assistant', content });
  });

  const event = (value: object): string => `: ping\n\ndata: ${JSON.stringify(value)}\n\n`;
  const delta = (fields: object, finish: string | null = null): string =>
    event({ id: 'c1', model: 'm', choices: [{ index: 0, delta: fields, finish_reason: finish }] });
  const streamOnly =
    (...parts: string[]): typeof fetch =>
    async (input, init) => {
      const { stream } = (await new Request(input, init).json()) as { stream?: boolean };
      if (stream !== true) return new Response('{"detail":"stream=true is required"}', { status: 400 });
      return new Response(parts.join(''), { headers: { 'content-type': 'text/event-stream' } });
    };
  const call = { index: 0, id: 'x', function: { name: 'look', arguments: '{"a"' } };
  it('asks a controller for a stream even if the agent does not, and gives the agent the sum', async () => {
    const usage = { prompt_tokens: 1, completion_tokens: 2, total_tokens: 3 };
    const rest = { index: 0, function: { arguments: ':1}' } };
    const asked = streamOnly(
      delta({ role: 'assistant', content: 'I ' }),
      delta({ content: 'look', tool_calls: [call] }),
      delta({ tool_calls: [rest] }, 'tool_calls'),
      event({ id: 'c1', choices: [], usage }),
      'data: [DONE]\n\n',
    );
    let heard: unknown;
    const backend = running(async (ctx) => {
      heard = await new OpenAI(ctx.model().openai()).chat.completions.create({
        model: 'm',
        messages: [{ role: 'user', content: 'hi' }],
      });
    });
    const { sample } = await execute(backend, {}, asked);
    const tool_calls = [{ id: 'x', type: 'function', function: { name: 'look', arguments: '{"a":1}' } }];
    const message = { role: 'assistant', content: 'I look', tool_calls };
    expect(heard).toMatchObject({ object: 'chat.completion', choices: [{ message, finish_reason: 'tool_calls' }], usage });
    expect(sample!.messages.at(-1)).toEqual(message);
  });

  it.each([
    ['ends early', [delta({ content: 'half an' })], /ended before the answer did/],
    ['says nothing', ['data: [DONE]\n\n'], /ended before the answer did/],
    ['ends without a reason', [delta({ content: 'half an' }), 'data: [DONE]\n\n'], /ended before the answer did/],
    ['is withheld by a filter', [delta({ content: 'half' }, 'content_filter')], /no whole completion.*content_filter/],
    ['has a gap in its calls', [delta({ tool_calls: [{ ...call, index: 1 }] }, 'tool_calls')], /no whole completion/],
    ['calls a tool without a name', [delta({ tool_calls: [{ index: 0 }] }, 'tool_calls')], /answered tool calls that are not/],
    ...[
      ...['__proto__', '0', -1, 0.5, 30_000_000, undefined].map((index) => ({ tool_calls: [{ ...call, index }] })),
      { tool_calls: [{ ...call, function: { name: 'look', arguments: {} } }] },
      { content: [{ type: 'text', text: 'half' }] },
      { content: 5 },
    ].map((fields): [string, string[], RegExp] => [
      `says ${JSON.stringify(fields)}`,
      [delta(fields), delta({}, 'stop')],
      /an event of another form/,
    ]),
    ['reports an error', ['event: error\ndata: {"detail":"engine lost"}\n\ndata: [DONE]\n\n'], /engine lost/],
    ['does not end', [`data: ${'x'.repeat(17 * 2 ** 20)}`], /more than 16777216 characters/],
  ])('fails where a stream %s, asked for or not', async (_, parts, message) => {
    const summing = await execute(running(ask), {}, streamOnly(...parts));
    expect(summing.completed[0]).toMatchObject({ status: 'failure', errCategory: 'http_error' });
    expect(summing.completed[0]!.errMessage).toMatch(message);
    expect('id' in []).toBe(false);
    let heard = '';
    const passing = running(async (ctx) => {
      const { fetch: own, baseURL } = ctx.model();
      const body = JSON.stringify({ messages: ctx.prompt, stream: true });
      heard = await (await own(`${baseURL}/chat/completions`, { method: 'POST', body })).text();
    });
    await execute(passing, {}, streamOnly(...parts));
    expect(heard).toMatch(message);
  });

  it('gives an agent a refusal in place of a text, as it is said', async () => {
    const { sample } = await execute(
      backendOf(),
      {},
      streamOnly(delta({ content: '', refusal: 'I ' }), delta({ refusal: 'will not' }, 'stop')),
    );
    expect(sample!.messages.at(-1)).toEqual({ role: 'assistant', content: 'I will not' });
  });

  it('asks a controller in the agent’s own words, with its own settings, and gives the agent the ids and thoughts of the answer', async () => {
    const sent: object[] = [];
    const asked: typeof fetch = async (input, init) => {
      sent.push((await new Request(input, init).clone().json()) as object);
      const parts = [
        delta({ reasoning_content: 'Hm.' }),
        delta({ tool_calls: [call] }),
        delta({}, 'tool_calls'),
        'data: [DONE]\n\n',
      ];
      return await streamOnly(...parts)(input, init);
    };
    const own = { model: 'm', top_p: 0.5, seed: 7, chat_template_kwargs: { deep: true }, metadata: { a: 'b' } };
    const messages = [
      { role: 'developer', content: [{ type: 'text', text: 'Be brief.' }] },
      { role: 'user', content: 'hi' },
    ];
    const heard: unknown[] = [];
    const backend = running(async (ctx) => {
      const client = new OpenAI(ctx.model().openai());
      for (const stream of [false, true]) {
        const said = await client.chat.completions.create({ ...own, messages, stream } as never);
        if (stream) for await (const chunk of said as unknown as AsyncIterable<object>) heard.push(chunk);
        else heard.push(said);
      }
    });
    const { sample } = await execute(backend, {}, asked);
    expect(sent).toEqual(Array(2).fill({ ...own, messages, stream: true, stream_options: { include_usage: true } }));
    expect(JSON.stringify(heard).match(/"id":"x"/g)).toHaveLength(2);
    expect(JSON.stringify(heard).match(/"reasoning_content":"Hm."/g)).toHaveLength(2);
    expect(sample!.messages.at(-1)).toMatchObject({ tool_calls: [{ id: 'x' }], reasoning: 'Hm.' });
  });

  it('gives an agent the policy’s own refusal, with its status and what it asks for', async () => {
    const error = { code: 'context_length_exceeded', message: 'maximum context length is 8' };
    const { seen, grader } = seeing();
    const asking = async (ctx: WorkflowContext) => {
      const { fetch: own, baseURL, generate } = ctx.model();
      const asked = { method: 'POST', body: JSON.stringify({ messages: ctx.prompt }) };
      const response = await own(`${baseURL}/chat/completions`, asked);
      const thrown = await generate({ messages: ctx.prompt }).catch(({ code }) => code as string);
      return {
        output: [
          response.status,
          response.headers.get('retry-after'),
          ((await response.json()) as { error: { code: string } }).error.code,
          thrown,
        ] as never,
      };
    };
    const headers = { 'retry-after': '7' };
    await execute(running(asking, { grader }), {}, async () => Response.json({ error }, { status: 429, headers }));
    expect(seen[0]!.output).toEqual([429, '7', 'context_length_exceeded', 'CONTEXT_OVERFLOW']);
  });

  it.each(['HTTP://Policy.Example:80/v1/', 'http://policy.example/v1/chat/completions', 'http://policy.example'])(
    'knows its policy at %s',
    async (chatCompletionsUrl) => {
      const backend = running(async (ctx) => {
        await new OpenAI(ctx.model().openai()).chat.completions.create({
          model: 'm',
          messages: [{ role: 'user', content: 'hi' }],
        });
      });
      expect((await execute(backend, { chatCompletionsUrl })).sample!.messages).toHaveLength(2);
    },
  );

  it('leaves no folder behind when it is closed', async () => {
    let folder: string | null = null;
    const backend = running(async (ctx) => {
      folder = ctx.artifactsDir;
      await ask(ctx);
    });
    await execute(backend);
    expect(existsSync(folder!)).toBe(true);
    await backend[Symbol.asyncDispose]();
    expect(existsSync(dirname(folder!))).toBe(false);
  });

  it('asks nothing of the policy any more once it has ended', async () => {
    const { promise: asked, resolve: begin } = Promise.withResolvers<void>();
    let late: Promise<unknown> | undefined;
    const backend = running(async (ctx) => {
      await ask(ctx);
      late = asked.then(() => ask(ctx));
      late.catch(() => undefined);
    });
    const { sample } = await execute(backend);
    begin();
    await expect(late).rejects.toThrow('has ended');
    expect(sample!.messages).toHaveLength(2);
  });

  it('that the workflow rejected has its samples removed and no reward', async () => {
    const rejecting = running(async (ctx) => {
      await ask(ctx);
      ctx.reject('no good');
    });
    const { completed, graded, sample } = await execute(rejecting);
    expect(completed[0]!.status).toBe('success');
    expect(graded[0]).toMatchObject({ status: 'success', errMessage: expect.stringContaining('no good') });
    expect(sample).toMatchObject({ removed: true, reward: null });
  });

  it('has a folder of its own, or none where none can be made', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'artifacts-'));
    const seen: (string | null)[] = [];
    const keep = async (ctx: WorkflowContext): Promise<void> => void seen.push(ctx.artifactsDir);
    await execute(running(keep, { artifacts: folder }));
    const file = join(folder, 'a-file');
    writeFileSync(file, '');
    chmodSync(file, 0o400);
    const { completed } = await execute(running(keep, { artifacts: file }));
    expect(seen).toEqual([join(folder, 'r1'), null]);
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

  const thrower = (): never => {
    throw new Error('broken');
  };
  it.each<[string, object, object, object, string]>([
    ['with neither label nor metadata', {}, { label: null }, {}, 'neither label nor metadata'],
    ['without a grader', { grader: undefined }, {}, {}, 'no grader'],
    ['of a grader that throws', { grader: defineGrader(thrower) }, {}, { errCategory: 'agent_error' }, 'broken'],
    ['of NaN', { grader: defineGrader(() => Number.NaN) }, {}, { errCategory: 'validation_error' }, 'NaN'],
    ['of a text', { grader: defineGrader(() => '1' as never) }, {}, { errCategory: 'validation_error' }, 'expected a number'],
    [
      'for a thread that is not there',
      { grader: defineGrader(() => ({ value: 1, byThread: { ghost: 1 } })) },
      {},
      { errCategory: 'validation_error' },
      'ghost',
    ],
  ])('%s is a failure that says why, never 0', async (_, options, more, failure, message) => {
    const { completed, graded, sample } = await execute(backendOf(options), more);
    expect(completed.map(({ status }) => status)).toEqual(['success']);
    expect(graded[0]).toMatchObject({ status: 'failure', errMessage: expect.stringContaining(message), ...failure });
    expect(sample!.reward).toBeNull();
  });

  it('is given by what the workflow returned where its model calls went past us', async () => {
    const grader = defineGrader(({ output, task, messages }) => (messages.length === 0 && output === task.answer ? 1 : 0));
    const { graded } = await execute(running(async () => 'secret-label', { grader }));
    expect(graded[0]).toMatchObject({ status: 'success', samples: { default: { messages: [], reward: 1 } } });
  });

  it.each([
    0.75,
    { value: 0.75, byTurn: [0.5, 1] },
    { value: 0.75, byTurn: { 0: 1 } },
    { value: 0.75, byTurn: { 'some-completion': 1 } },
  ])('is the workflow’s own one number where there is no grader: %j', async (reward) => {
    const { graded } = await execute(running(async () => ({ reward }), { grader: undefined }));
    expect(graded).toMatchObject([{ status: 'success', samples: { default: { reward: 0.75 } } }]);
  });

  it('changes nothing of what was said', async () => {
    const grader = defineGrader(({ threads }) => {
      (threads['default'] as unknown[]).length = 0;
      return 1;
    });
    expect((await execute(backendOf({ grader }))).sample!.messages).toHaveLength(2);
  });

  it('is not asked for where nobody wants to hear of it', async () => {
    expect((await execute(backendOf(), { grading: false })).order).toEqual(['completed']);
  });

  it('of taken-out conversations is none', async () => {
    const threads = ['a', 'b', 'constructor'];
    const grader = defineGrader(() => ({ value: 1, untrained: ['a'], byThread: { b: 0.5 } }));
    const backend = running((ctx) => Promise.all(threads.map((thread) => ask(ctx, thread))).then(() => undefined), { grader });
    expect((await execute(backend)).graded[0]!.samples).toMatchObject({
      a: { removed: true, reward: null },
      b: { removed: false, reward: 0.5 },
      constructor: { removed: false, reward: 1 },
    });
  });

  it('survives metrics and metadata that are no JSON, which are left out and told once each', async () => {
    const broken = { metrics: { good: 1, bad: Number.NaN }, metadata: { big: 1n, fn: () => 1, fine: 'yes' } };
    const { sample, warnings } = await execute(running((ctx) => ask(ctx).then(() => broken)));
    expect(sample).toMatchObject({ reward: 1, metrics: { good: 1 } });
    expect(sample!.extraFields).toEqual({ fine: 'yes' });
    expect(warnings).toEqual([expect.stringContaining('big, fn'), expect.stringContaining('bad')]);
  });
});

describe('a failure', () => {
  const throwing = (thrown: Error) => async () => {
    throw thrown;
  };
  const refused = Object.assign(new Error('connect ECONNREFUSED'), { code: 'ECONNREFUSED' });
  it.each<[string, (ctx: WorkflowContext) => Promise<unknown>, string]>([
    ['timeout', throwing(new DOMException('my own patience', 'TimeoutError')), 'my own patience'],
    ['validation_error', throwing(new TypeError('x is not a function')), 'x is not'],
    ['http_error', throwing(Object.assign(new Error('overloaded'), { status: 503 })), 'overloaded'],
    ['http_error', throwing(new Error('Connection error.', { cause: refused })), 'Connection error.'],
    ['agent_error', throwing(new Error('llm-key-0123 does not fit')), '[key] does not fit'],
    ['validation_error', async () => ({ threads: { mine: 'a text' } }), 'threads'],
    // Tokens are where the policy is.
    ['validation_error', (ctx) => ctx.model().generate({ promptIds: [1, 2] }), 'promptIds'],
  ])('is a %s', async (errCategory, run, message) => {
    const { completed, graded } = await execute(running(run));
    const failure = { status: 'failure', errCategory, errMessage: expect.stringContaining(message) };
    expect(completed).toEqual([failure]);
    expect(graded).toEqual([{ ...failure, samples: {} }]);
  });

  it('of the policy that the workflow passes over is one, as in a run', async () => {
    let calls = 0;
    const broken = async () => new Response('no room', { status: ++calls > 1 ? 500 : 429 });
    const swallowing = running(async (ctx) => {
      for (let i = 0; i < 2; i++) await ask(ctx).catch(() => undefined);
      return { output: 'done' };
    });
    const { completed, graded } = await execute(swallowing, {}, broken);
    expect(completed[0]).toMatchObject({
      status: 'failure',
      errCategory: 'http_error',
      errMessage: expect.stringContaining('no room'),
    });
    expect(graded).toMatchObject([{ status: 'failure', samples: {} }]);
    const recovering = running(async (ctx) => {
      await ask(ctx).catch(() => undefined);
      await ask(ctx);
    });
    calls = 0;
    const passing: typeof fetch = (input, init) => (calls === 0 ? broken() : policy(input, init));
    expect((await execute(recovering, {}, passing)).sample).toMatchObject({ reward: 1 });
  });

  it('of the policy is an http_error', async () => {
    const { completed } = await execute(backendOf(), {}, async () => new Response('no room', { status: 500 }));
    expect(completed[0]).toMatchObject({ errCategory: 'http_error', errMessage: expect.stringContaining('500: no room') });
  });
});

describe('what a local backend is given', () => {
  const folder = mkdtempSync(join(tmpdir(), 'backend-'));
  const core = new URL('../../index.ts', import.meta.url).href;
  const file = join(folder, 'entry.mts');
  writeFileSync(
    file,
    `import { defineWorkflow, defineGrader } from ${JSON.stringify(core)};
     export const flow = defineWorkflow(async (ctx) => { await ctx.model().generate({ messages: ctx.prompt }); });
     export const judge = defineGrader(() => 0.25);`,
  );

  it('may be named as module:export', async () => {
    const backend = new LocalBackend({ workflow: `${file}:flow`, grader: `${file}:judge` });
    expect((await execute(backend)).sample!.reward).toBe(0.25);
    expect(backend.health()).toMatchObject({ concurrency: { max_concurrent: 4 } });
  });

  it('is refused where the module does not export it, with what it does export', async () => {
    const backend = new LocalBackend({ workflow: `${file}:missing`, grader: `${join(folder, 'nowhere.mts')}:x` });
    await expect(backend.start()).rejects.toThrow(
      /does not export "missing"; it exports flow, judge; also: cannot import .*nowhere/,
    );
    await expect(new LocalBackend({ workflow: 'node:fs:x' }).start()).rejects.toThrow('invalid import path');
  });

  const run = async () => {};
  const withDefault = defineWorkflow({ roles: { judge: { default: async () => 'fine' } }, trainable: [], run });
  it.each<[object, RegExp]>([
    [{ workflow: 'rollout', grader: 'judge:' }, /workflow: invalid import path "rollout".*grader: invalid import path "judge:"/],
    [{ workflow: () => 1 }, /expected a workflow, found .*Function/],
    [{ grader: 5 }, /expected a grader, found 5/],
    [{ workflow: withDefault }, /role "judge"/],
    [{ workflow: defineWorkflow({ isolation: 'process', run }) }, /a process per/],
    [{ capacity: 0 }, /capacity is 0/],
    [{ longestSec: Number.NaN }, /longestSec is NaN/],
  ])('is refused at once where it is %j', (options, message) => {
    expect(() => backendOf(options)).toThrow(message);
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
    const failing = backendOf({
      workflow: defineWorkflow({ name: 'mine', setup: () => Promise.reject(new Error('no disk')), run }),
    });
    await expect(failing.start()).rejects.toThrow('the setup of workflow mine failed: no disk');
  });
});
