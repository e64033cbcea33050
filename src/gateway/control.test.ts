import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { scriptedEngine } from '../../packages/testing/src/trajectories.ts';
import { bearer, call, MINIMAL } from '../../test/fixtures/gateway/callers.ts';
import { ANSWER, renderer, say, specOf } from '../../test/fixtures/gateway/streams.ts';
import { Gateway, type GatewayOptions } from './gateway.ts';
import { GATEWAY_LIMITS } from './wire-protocol.ts';

const chat = MINIMAL['chat/completions']!;
const sessionDefaults = {
  sampling: { temperature: 1, topP: 1, topK: 0, maxTokens: 64 },
  limits: { turns: 4, tokens: 1000, deadlineMs: 5000 },
  seed: 1,
};
const HOUR = 3_600_000;

interface Opened {
  readonly rolloutId: string;
  readonly baseURL: string;
  readonly apiKey: string;
  readonly roles: Record<string, string>;
}

function start(options: Partial<GatewayOptions> = {}) {
  const time = { now: 1_000_000 };
  const engine = scriptedEngine({ vocabSize: 1024, contextLength: 4096, reply: () => say(ANSWER) });
  const clock = { now: () => time.now };
  const gateway = new Gateway({ engine, renderer, modelName: 'policy', sessionDefaults, clock, ...options });
  const admin = bearer(gateway.key('admin'));
  const openOne = async (body?: object) => (await call(gateway, 'POST', '/sessions', admin, body)).body as unknown as Opened;
  const ask = ({ rolloutId, apiKey }: Opened) =>
    call(gateway, 'POST', `/r/${rolloutId}/v1/chat/completions`, bearer(apiKey), chat);
  const list = async () => (await call(gateway, 'GET', '/sessions', admin)).body['sessions'];
  return { gateway, time, admin, openOne, ask, list };
}

describe('a session over HTTP', () => {
  it('is opened, called, listed, read and sealed', async () => {
    const { gateway, time, admin, openOne, ask, list } = start();
    const opened = await openOne({ rolloutId: 'a-1', roles: { judge: { trainable: false } } });
    expect(opened).toMatchObject({ rolloutId: 'a-1', baseURL: 'http://trainyard.invalid/r/a-1/v1' });
    expect((await ask(opened)).status).toBe(200);
    expect((await ask({ ...opened, apiKey: opened.roles['judge']! })).status).toBe(200);
    time.now += 2500;
    expect(await list()).toEqual([{ rolloutId: 'a-1', turns: 2, tokens: 2 * say(ANSWER).length, idleSeconds: 2, openCalls: 0 }]);
    const detail = (await call(gateway, 'GET', '/sessions/a-1', admin)).body;
    expect(detail).toMatchObject({
      rolloutId: 'a-1',
      unanswered: [],
      turns: [
        {
          index: 0,
          role: 'default',
          thread: 'default',
          after: null,
          fork: null,
          sampledTokens: say(ANSWER).length,
          stopReason: 'stop',
        },
        { index: 1, role: 'judge', dialect: 'chat', ignored: [], formatError: null, response: { content: 'It costs $81. 🙂' } },
      ],
    });
    expect((await call(gateway, 'DELETE', '/sessions/a-1', admin)).body).toEqual(detail);
    expect((await ask(opened)).status).toBe(410);
    expect((await call(gateway, 'GET', '/sessions/a-1', admin)).status).toBe(404);
    expect((await call(gateway, 'DELETE', '/sessions/a-1', admin)).status).toBe(404);
    expect(await list()).toEqual([]);
  });

  it('has a name of its own where none was given, and one session at a time', async () => {
    const { gateway, admin, openOne } = start();
    const [one, other] = [await openOne(), await openOne({})];
    expect(one.rolloutId).not.toBe(other.rolloutId);
    const again = await call(gateway, 'POST', '/sessions', admin, { rolloutId: one.rolloutId });
    expect([again.status, again.code]).toEqual([409, 'rollout_open']);
    expect(gateway.openSessions).toBe(2);
  });

  it.each([
    { rolloutId: '' },
    { rolloutId: '..' },
    { rolloutId: 'a/b' },
    { rolloutId: 'x'.repeat(129) },
    { rolloutId: 7 },
    { purpose: 'test' },
    { roles: { a: { trainable: 'yes' } } },
    { sampling: { temperature: 0 } },
    [],
    'null',
    '{',
  ])('is not opened with %j', async (body) => {
    const { gateway, admin } = start();
    const told = await call(gateway, 'POST', '/sessions', admin, body);
    expect([told.status, told.code]).toEqual([400, 'invalid_request']);
    expect(gateway.openSessions).toBe(0);
  });

  it('is not opened by a gateway that has no settings for it', async () => {
    const engine = scriptedEngine({ vocabSize: 1024, contextLength: 64, reply: () => [] });
    const gateway = new Gateway({ engine, renderer, modelName: 'policy' });
    expect((await call(gateway, 'POST', '/sessions', bearer(gateway.key('admin')))).status).toBe(404);
  });

  it('ends at its deadline, however busy', async () => {
    const { time, openOne, ask } = start();
    const opened = await openOne();
    time.now += 4000;
    expect((await ask(opened)).status).toBe(200);
    time.now += 2000;
    expect(await ask(opened)).toMatchObject({ status: 410, code: 'rollout_ended' });
  });
});

describe('sessions that nobody uses', () => {
  it('expire one by one after the idle time, and are forgotten', async () => {
    const limits = { ...sessionDefaults.limits, deadlineMs: 10 * HOUR };
    const { gateway, time, openOne, ask, list } = start({ sessionDefaults: { ...sessionDefaults, limits } });
    const [used, unused] = [await openOne(), await openOne()];
    time.now += HOUR / 2;
    expect((await ask(used)).status).toBe(200);
    time.now += HOUR / 2 + 1;
    expect((await ask(unused)).status).toBe(410);
    expect((await ask(used)).status).toBe(200);
    expect(gateway.openSessions).toBe(1);
    expect(await list()).toMatchObject([{ rolloutId: used.rolloutId }]);
  });

  it('that were abandoned make room for new ones; those in use do not', async () => {
    const { gateway, time, admin, openOne } = start();
    for (let i = 0; i < GATEWAY_LIMITS.openSessions; i++) await openOne();
    const full = await call(gateway, 'POST', '/sessions', admin);
    expect([full.status, full.code, full.headers.get('retry-after')]).toEqual([429, 'too_many_sessions', '1']);
    // One of this process is not counted, nor refused.
    gateway.open(specOf('own')).seal();
    time.now += HOUR + 1;
    expect((await call(gateway, 'POST', '/sessions', admin)).status).toBe(201);
    expect(gateway.openSessions).toBe(1);
  });

  it('are not idle because the clock of the system was set', async () => {
    const time = { now: 0, elapsed: 0 };
    const { openOne, ask } = start({ clock: { now: () => time.now, elapsed: () => time.elapsed } });
    const opened = await openOne();
    time.now += 2 * HOUR;
    expect((await ask(opened)).status).toBe(200);
    time.elapsed += HOUR + 1;
    expect((await ask(opened)).status).toBe(410);
  });

  it('are swept without anyone asking', async () => {
    const { gateway, openOne } = start({ idleMs: 100, clock: { now: Date.now } });
    await openOne();
    expect(gateway.openSessions).toBe(1);
    await expect.poll(() => gateway.openSessions).toBe(0);
  });

  it('but have an owner in this process last as long as their deadline, and a call under way is use', async () => {
    const { promise: heldBack, resolve: goOn } = Promise.withResolvers<void>();
    const reply = async () => {
      await heldBack;
      return say(ANSWER);
    };
    const { gateway, time } = start({ engine: scriptedEngine({ vocabSize: 1024, contextLength: 4096, reply }) });
    const session = gateway.open(specOf('r1', { limits: { turns: 4, tokens: 1000, deadlineMs: 3 * HOUR } }));
    time.now += 2 * HOUR;
    const first = call(gateway, 'POST', '/r/r1/v1/chat/completions', bearer(session.model().apiKey), chat);
    await sleep(0);
    time.now += 4 * HOUR;
    const seen = () => call(gateway, 'GET', '/sessions/r1', bearer(gateway.key('viewer')));
    expect((await seen()).body).toMatchObject({ openCalls: 1 });
    goOn();
    expect((await first).status).toBe(200);
    time.now += 3 * HOUR + 1;
    expect((await seen()).status).toBe(404);
    expect(session.turns.length).toBe(1);
  });
});

describe('a gateway whose engine is starting', () => {
  it('is healthy but not ready, and says so to callers until it is', async () => {
    const { promise, resolve } = Promise.withResolvers<void>();
    const { gateway, openOne, ask } = start({ ready: promise });
    const opened = await openOne();
    expect((await call(gateway, 'GET', '/health')).status).toBe(200);
    expect(await call(gateway, 'GET', '/ready')).toMatchObject({ status: 503, code: 'not_ready' });
    expect(await ask(opened)).toMatchObject({ status: 503, code: 'not_ready' });
    resolve();
    await promise;
    expect(await call(gateway, 'GET', '/ready')).toMatchObject({ status: 200, body: { status: 'ready' } });
    expect((await ask(opened)).status).toBe(200);
    expect((await call(gateway, 'GET', '/health')).status).toBe(200);
  });

  it('that does not start is never ready, and says why', async () => {
    const { gateway } = start({ ready: Promise.reject(new Error('no weights')) });
    await sleep(0);
    expect(await call(gateway, 'GET', '/ready')).toMatchObject({ status: 503, message: expect.stringContaining('no weights') });
  });
});
