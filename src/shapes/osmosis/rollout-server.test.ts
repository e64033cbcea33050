import { request as httpRequest } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { until } from '../../../test/fixtures/gateway/streams.ts';
import {
  type Callback,
  CONTROLLER_KEY,
  type Controller,
  send,
  startController,
} from '../../../test/fixtures/rollout-server/controller.ts';
import type { WorkflowContext } from '../../core/contracts.ts';
import { defineGrader, defineWorkflow } from '../../core/define.ts';
import type { ExecutionBackend, Grading } from './execution.ts';
import { LocalBackend, type LocalBackendOptions } from './local-backend.ts';
import { createRolloutServer, type RolloutServer, type RolloutServerOptions } from './rollout-server.ts';

const quick = { firstMs: 1, longestMs: 4 };
const ask = async (ctx: WorkflowContext): Promise<undefined> => void (await ctx.model().generate({ messages: ctx.prompt }));
const forever = async (ctx: WorkflowContext): Promise<undefined> => await sleep(60_000, undefined, { signal: ctx.signal });
const local = (run = ask, more: Partial<LocalBackendOptions> = {}): LocalBackend =>
  new LocalBackend({ workflow: defineWorkflow(run), workflowConfig: {}, grader: defineGrader(() => 0.5), ...more });

let controller: Controller;
const servers: RolloutServer[] = [];
const warnings: string[] = [];
beforeEach(async () => {
  controller = await startController();
});
afterEach(async () => {
  for (const server of servers.splice(0)) await server[Symbol.asyncDispose]();
  warnings.length = 0;
  await controller[Symbol.asyncDispose]();
});

async function serve(backend: ExecutionBackend = local(), more: Partial<RolloutServerOptions> = {}) {
  const warn = (text: string): void => void warnings.push(text);
  const server = createRolloutServer({ backend, patience: quick, drainMs: 50, warn, ...more });
  servers.push(server);
  const { origin } = await server.listen();
  return { server, origin };
}

/** A server that was asked for the rollout r1, and the callbacks that were taken. */
async function rollout(backend?: ExecutionBackend, callbacks = 2) {
  const served = await serve(backend);
  const reply = await send(served.origin, '/rollout', controller.begin('r1').body);
  return { ...served, reply, callbacks: await controller.heard('r1', callbacks) };
}

const posted = ({ kind, status }: Callback): string => `${kind} ${status}`;
const said = ({ kind, body }: Callback): string => `${kind} ${body.status}`;

describe('POST /rollout', () => {
  it('is taken at once; then come one completion and one grade, with the key', async () => {
    const { reply, callbacks } = await rollout();
    expect(reply).toMatchObject({ status: 202, body: {} });
    expect(callbacks.map(({ kind }) => kind)).toEqual(['completion', 'grader']);
    for (const { authorization } of callbacks) expect(authorization).toBe(`Bearer ${CONTROLLER_KEY}`);
    const ending = { status: 'success', rollout_id: 'r1', err_message: null, err_category: null };
    expect(callbacks[0]!.body).toEqual({ ...ending, extra_fields: null });
    const { samples, sample, ...rest } = callbacks[1]!.body;
    expect(rest).toEqual(ending);
    expect(sample).toEqual(samples!['default']);
    expect(sample).toMatchObject({ label: '$81', reward: 0.5, remove_sample: false, metrics: {}, extra_fields: {} });
    expect(sample!.messages.map(({ role }) => role)).toEqual(['user', 'assistant']);
  });

  it('calls the policy with the controller’s key where it was given no other', async () => {
    const { origin } = await serve();
    const { llm_api_key: key, ...body } = controller.begin('r1').body as { llm_api_key: string };
    expect((await send(origin, '/rollout', { ...body, llm_api_key: null, controller_api_key: key })).status).toBe(202);
    for (const { body: heard, authorization } of await controller.heard('r1', 2)) {
      expect([heard.status, authorization]).toEqual(['success', `Bearer ${key}`]);
    }
  });

  it('goes on when its client is gone', async () => {
    const { origin } = await serve();
    const text = JSON.stringify(controller.begin('r1').body);
    const request = httpRequest(`${origin}/rollout`, { method: 'POST', headers: { 'content-type': 'application/json' } });
    request.on('error', () => undefined);
    request.end(text, () => setTimeout(() => request.destroy(), 0));
    expect(await controller.heard('r1', 2)).toHaveLength(2);
  });

  it('names the rollout where the caller did not', async () => {
    const { origin } = await serve();
    const { body } = controller.begin('unused', { rollout_id: null, chat_completions_url: 'http://127.0.0.1:9/v1' });
    const reply = await send(origin, '/rollout', body);
    expect(reply.status).toBe(202);
    const id = reply.body['rollout_id'] as string;
    expect((await controller.heard(id, 2))[0]!.body).toMatchObject({ status: 'failure', err_category: 'http_error' });
  });

  it('is 429 with Retry-After while full, and 409 while the same rollout is under way', async () => {
    const { origin } = await serve(local(forever, { capacity: 1 }));
    const { body } = controller.begin('r1');
    expect((await send(origin, '/rollout', body)).status).toBe(202);
    const again = await send(origin, '/rollout', body);
    expect(again).toMatchObject({ status: 409, body: { detail: expect.stringContaining('under way') } });
    const full = await send(origin, '/rollout', controller.begin('r2').body);
    expect(full).toMatchObject({ status: 429, body: { detail: 'rollout queue is full; retry later' } });
    expect(full.headers.get('retry-after')).toBe('5');
  });

  it('is 422 with everything that is wrong', async () => {
    const { origin } = await serve();
    const wrong = { rollout_id: '../x', llm_api_key: '', initial_messages: [], agent_timeout_sec: 'soon' };
    const { status, body } = await send(origin, '/rollout', controller.begin('r1', wrong).body);
    expect(status).toBe(422);
    const fields = (body['detail'] as { loc: string[] }[]).map(({ loc }) => loc[1]);
    expect(fields.toSorted()).toEqual(Object.keys(wrong).toSorted());
  });

  it('is 422 for an id that is no single part of a path, a timeout that is no time, and what is no JSON object', async () => {
    const { origin } = await serve();
    const text = JSON.stringify(controller.begin('r1').body);
    const withField = (name: string, json: string): string => text.replace(/}$/, `,"${name}":${json}}`);
    const ids = ['../x', 'a/b', 'a\\b', '.', '..', 'a\0b', 'a\nb', '', 'ü'].map((id) =>
      withField('rollout_id', JSON.stringify(id)),
    );
    const timeouts = ['NaN', 'Infinity', '-Infinity', '1e999', '"5"'].flatMap((seconds) =>
      ['agent_timeout_sec', 'grader_timeout_sec'].map((name) => withField(name, seconds)),
    );
    for (const bad of [...ids, ...timeouts, '{"a":', '[1]', '['.repeat(300)]) {
      expect((await send(origin, '/rollout', bad)).status, bad).toBe(422);
    }
  });

  it('is 422 where a URL leads to where nobody may send it, with the field', async () => {
    const { origin } = await serve();
    const { body } = controller.begin('r1', {
      chat_completions_url: 'http://169.254.169.254/v1',
      completion_callback_url: 'file:///etc/passwd',
      grader_callback_url: `${origin}/rollout`,
    });
    const reply = await send(origin, '/rollout', body);
    expect(reply.status).toBe(422);
    expect(JSON.stringify(reply.body)).toMatch(
      /chat_completions_url.*completion_callback_url.*grader_callback_url.*this server itself/,
    );
  });
});

describe('callbacks', () => {
  it('are tried again where the controller says later or hangs up, and taken once', async () => {
    controller.answers.push(500, 'cut', 429, 503, 200);
    await rollout();
    const tried = [500, 0, 429, 503, 200].map((status) => `completion ${status}`);
    expect(controller.callbacks.map(posted)).toEqual([...tried, 'grader 200']);
  });

  it('are given up after five attempts, and the grade is still told', async () => {
    controller.answers.push(500, 502, 504, 500, 500);
    const { callbacks } = await rollout(undefined, 1);
    expect(callbacks.map(({ kind }) => kind)).toEqual(['grader']);
    expect(controller.callbacks).toHaveLength(6);
    expect(warnings).toEqual(['rollout r1: the completion callback was not taken: it answered 500']);
  });

  it.each([400, 401, 302])('are not repeated after %s', async (status) => {
    controller.answers.push(status);
    await rollout(undefined, 1);
    expect(controller.callbacks.map(posted)).toEqual([`completion ${status}`, 'grader 200']);
  });

  /** A backend whose rollouts do this. */
  const backendThat = (execute: ExecutionBackend['execute']): ExecutionBackend => ({
    start: async () => {},
    hasCapacity: () => true,
    execute,
    status: () => ({ status: 'unknown', reward: null, errMessage: null }),
    cancel: () => ({}),
    health: () => ({ status: 'ok' }),
    [Symbol.asyncDispose]: async () => {},
  });
  const success = { status: 'success', errMessage: null, errCategory: null } as const;
  const graded = (reward: number, more: object = {}): Grading => {
    const sample = { messages: [], label: null, reward, removed: false, metrics: {}, extraFields: {}, ...more };
    return { ...success, samples: { a: sample } };
  };

  it('of a backend that breaks down before it said anything are two failures, once each', async () => {
    const { callbacks } = await rollout(backendThat(() => Promise.reject(new Error('the secret of the house'))));
    expect(callbacks.map(said)).toEqual(['completion failure', 'grader failure']);
    for (const { body } of callbacks) expect(body.err_message).toBe('Internal server error');
    expect(warnings[0]).toContain('the secret of the house');
  });

  it('of a backend that breaks down after success contradict nothing', async () => {
    const backend = backendThat(async (_, hooks) => {
      await hooks.completed(success);
      throw new Error('later');
    });
    expect((await rollout(backend)).callbacks.map(said)).toEqual(['completion success', 'grader failure']);
  });

  it('are one of each kind and in order, however often a backend tells', async () => {
    const backend = backendThat(async (_, hooks) => {
      await Promise.all([hooks.graded(graded(1)), hooks.completed({ ...success, status: 'failure' }), hooks.graded(graded(0))]);
    });
    const { server } = await rollout(backend);
    await server[Symbol.asyncDispose]();
    expect(controller.callbacks.map(said)).toEqual(['completion success', 'grader success']);
    expect(controller.callbacks[1]!.body.samples!['a']!.reward).toBe(1);
  });

  it('deliver the reward without what is no JSON, and warn once for each', async () => {
    const loop: Record<string, unknown> = {};
    loop['self'] = loop;
    const grading = graded(0.5, {
      messages: [{ role: 'user', content: 1n }],
      metrics: { fine: 2, nan: Number.NaN, deep: { x: Number.POSITIVE_INFINITY } },
      extraFields: { big: 1n, run: () => 1, loop, ok: [1, 'a'] },
    });
    const { callbacks } = await rollout(backendThat((_, hooks) => hooks.graded(grading)));
    const kept = { metrics: { fine: 2 }, extra_fields: { ok: [1, 'a'] } };
    expect(callbacks[1]!.body.sample).toEqual({ messages: [], label: null, reward: 0.5, remove_sample: false, ...kept });
    const dropped = ['messages', 'nan, deep', 'big, run, loop'];
    expect(warnings).toEqual(dropped.map((names) => expect.stringContaining(names)));
  });

  it.each([
    ['a failed grading', { ...graded(1), status: 'failure' as const }],
    ['a removed sample', graded(1, { removed: true })],
    ['a reward that is no number', graded(Number.NaN)],
  ])('carry no reward for %s', async (_, grading) => {
    const { callbacks } = await rollout(backendThat((_request, hooks) => hooks.graded(grading)));
    expect(callbacks[1]!.body.sample!.reward).toBeNull();
  });
});

describe('the other routes', () => {
  it('say how it stands and cancel by exactly one selector', async () => {
    const { origin } = await serve(local(forever));
    expect(await send(origin, '/health')).toMatchObject({
      status: 200,
      body: { status: 'ok', concurrency: { max_concurrent: null, queued: 0, running: 0 } },
    });
    const unknown = { rollout_id: 'nobody', status: 'unknown', reward: null, err_message: null };
    expect((await send(origin, '/rollout/nobody/status')).body).toEqual(unknown);
    await send(origin, '/rollout', controller.begin('r1').body);
    await until(() => controller.gateway.openSessions > 0);
    expect((await send(origin, '/rollout/r1/status')).body['status']).toBe('running');
    for (const wrong of [{}, { ids: ['r1'], all: true }, { ids: [], prefix: 'r' }, { all: false }, { prefix: '' }]) {
      expect((await send(origin, '/rollout/cancel', wrong)).status).toBe(422);
    }
    expect((await send(origin, '/rollout/cancel', { prefix: 'r' })).body).toEqual({ dispositions: { r1: 'cancelled_running' } });
    const callbacks = await controller.heard('r1', 2);
    expect(callbacks.map(({ body }) => body.err_message)).toEqual(Array(2).fill('the rollout was cancelled'));
    expect((await send(origin, '/rollout/r1/status')).body['status']).toBe('cancelled');
  });
});

describe('access', () => {
  const token = 'a-token-of-16-chars-or-more';

  it('takes the token on every route but health', async () => {
    const { origin } = await serve(local(), { token });
    const { body } = controller.begin('r1');
    const authorization = `Bearer ${token}x`;
    for (const [path, wanted] of [
      ['/rollout', body],
      ['/rollout/cancel', { all: true }],
      ['/rollout/r1/status', undefined],
    ] as const) {
      const { status, headers, body: refusal } = await send(origin, path, wanted, { authorization });
      expect([status, headers.get('www-authenticate'), typeof refusal['detail']]).toEqual([401, 'Bearer', 'string']);
    }
    expect((await send(origin, '/health')).status).toBe(200);
    expect((await send(origin, '/rollout', body, { authorization: `bearer ${token}` })).status).toBe(202);
  });

  it('needs a good token beyond loopback', async () => {
    const open = createRolloutServer({ backend: local() });
    await expect(open.listen({ host: '0.0.0.0' })).rejects.toThrow('no token was given');
    await expect(createRolloutServer({ backend: local(), token: 'short' }).listen()).rejects.toThrow('16 or more');
  });

  it('beyond loopback does not reach this machine, unless that is allowed', async () => {
    for (const [allowedHosts, expected] of [
      [undefined, 422],
      [['127.0.0.1'], 202],
    ] as const) {
      const server = createRolloutServer({ backend: local(), token, allowedHosts, patience: quick });
      servers.push(server);
      const { origin } = await server.listen({ host: '0.0.0.0' });
      const { body } = controller.begin(`r${expected}`);
      expect((await send(origin, '/rollout', body, { authorization: `Bearer ${token}` })).status).toBe(expected);
    }
    await controller.heard('r202', 2);
  });
});

describe('a rollout server', () => {
  it('is a function that needs no socket, and listens only when told to', async () => {
    const server = createRolloutServer({ backend: local() });
    const response = await server.fetch('http://rollouts.example/health');
    expect([response.status, response.headers.get('content-type')]).toEqual([200, 'application/json']);
    const { body } = controller.begin('r1');
    const post = await server.fetch('http://rollouts.example/rollout', { method: 'POST', body: JSON.stringify(body) });
    expect(post.status).toBe(422);
  });

  it('finds what is wrong with its backend before it listens', async () => {
    const server = createRolloutServer({ backend: new LocalBackend({ workflow: './nowhere.ts:x' }) });
    await expect(server.listen()).rejects.toMatchObject({ code: 'ENTRY_UNLOADABLE' });
  });

  it('waits for what is under way when it is closed, before anything else of its owner closes', async () => {
    const told: string[] = [];
    const workflow = defineWorkflow({
      run: async (ctx) => {
        await ask(ctx);
        await sleep(50);
        told.push('run');
      },
      teardown: () => void told.push('teardown'),
    });
    const { origin, server } = await serve(local(ask, { workflow }), { drainMs: 5000 });
    await send(origin, '/rollout', controller.begin('r1').body);
    const closing = server[Symbol.asyncDispose]();
    expect((await send(origin, '/rollout', controller.begin('r2').body)).status).toBe(503);
    await closing;
    expect(told).toEqual(['run', 'teardown']);
    expect(controller.callbacks.map(({ body }) => `${body.rollout_id} ${body.status}`)).toEqual(['r1 success', 'r1 success']);
    await expect(send(origin, '/health')).rejects.toThrow();
  });

  it('cancels what does not end in time, and says so', async () => {
    const { origin, server } = await serve(local(forever), { drainMs: 20 });
    await send(origin, '/rollout', controller.begin('r1').body);
    await server[Symbol.asyncDispose]();
    expect(controller.callbacks.map(({ body }) => body.err_message)).toEqual(Array(2).fill('the rollout was cancelled'));
  });
});
