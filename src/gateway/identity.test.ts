import { describe, expect, it } from 'vitest';
import { scriptedEngine } from '../../packages/testing/src/trajectories.ts';
import { bearer, call, MINIMAL } from '../../test/fixtures/gateway/callers.ts';
import { ANSWER, open, renderer, say, specOf } from '../../test/fixtures/gateway/streams.ts';
import { DIALECTS, Gateway, listen } from './gateway.ts';
import { CAPABILITIES, ROUTES } from './wire-protocol.ts';

const chat = MINIMAL['chat/completions']!;
const ended = '/r/r1/v1/chat/completions';

describe.each(Object.entries(DIALECTS))('a call of %s', (path, dialect) => {
  const body = MINIMAL[path]!;
  const post = (gateway: Gateway, where: string, headers: object) => call(gateway, 'POST', where, headers, body);

  it.each(['/r/r1/v1/', '/r/r1/', '/r/r1/v1/v1/', '/v1/', '/'])('finds its rollout by key at %s', async (prefix) => {
    const { gateway, session } = open();
    const { status } = await post(gateway, `${prefix}${path}?beta=true`, bearer(session.model('judge').apiKey));
    expect(status).toBe(200);
    expect(session.turns).toMatchObject([{ role: 'judge', thread: 'judge', request: { dialect: dialect.name } }]);
  });

  it.each([
    { authorization: 'KEY' },
    { authorization: 'bearer KEY' },
    { authorization: 'BEARER  KEY' },
    { 'x-api-key': 'KEY' },
    { 'x-goog-api-key': 'KEY' },
    { authorization: 'Bearer KEY', 'x-api-key': 'KEY' },
  ])('takes its key from %j', async (template) => {
    const { gateway, session } = open();
    const key = session.model().apiKey;
    const headers = Object.fromEntries(Object.entries(template).map(([name, value]) => [name, value.replace('KEY', key)]));
    const { status } = await post(gateway, `/v1/${path}`, headers);
    expect(status).toBe(template.authorization === 'KEY' ? 401 : 200);
  });

  it('is refused in the dialect’s shape without a key that is right, and leaves nothing', async () => {
    const { gateway, session } = open();
    const { apiKey } = session.model();
    const other = gateway.open(specOf('r2')).model().apiKey;
    const cases: readonly (readonly [number, string, object, string?])[] = [
      [401, 'no key', {}],
      [401, 'Basic', { authorization: `Basic ${Buffer.from(`u:${apiKey}`).toString('base64')}` }],
      [401, 'an empty Bearer', { authorization: 'Bearer ' }],
      [401, 'one character more', bearer(`${apiKey}x`)],
      [401, 'one character less', bearer(apiKey.slice(0, -1))],
      [401, 'a key in the query', {}, `?key=${apiKey}&api_key=${apiKey}`],
      [404, 'a key of another live rollout', bearer(other)],
      [400, 'two keys', { ...bearer(apiKey), 'x-api-key': other }],
      [400, 'two Authorization headers', { authorization: `Bearer ${apiKey}, Bearer ${apiKey}` }],
      [400, 'a key with letters that no key has', { 'x-api-key': 'ty-clé' }],
      [400, 'a key with a blank', { 'x-api-key': 'ty a' }],
      [403, 'another rollout in the header', { ...bearer(apiKey), 'x-rollout-id': 'r2' }],
      [403, 'no known rollout in the header', { ...bearer(apiKey), 'x-rollout-id': 'r3' }],
      [400, 'a thread without a name', { ...bearer(apiKey), 'x-sample-id': '' }],
      [400, 'a thread with a long name', { ...bearer(apiKey), 'x-sample-id': 'x'.repeat(129) }],
      [400, 'a thread that cannot be printed', { ...bearer(apiKey), 'x-sample-id': 'caf\u00e9' }],
      [403, 'a key for graders', bearer(gateway.key('grader', { rollout: 'r1' }))],
      [403, 'a key for viewers', bearer(gateway.key('viewer'))],
      [403, 'a key for admins', bearer(gateway.key('admin'))],
    ];
    for (const [status, what, headers, query = ''] of cases) {
      const told = await post(gateway, `/r/r1/v1/${path}${query}`, headers);
      expect(told.status, what).toBe(status);
      expect(told.message, what).not.toBe('');
      expect(Object.keys(dialect.failure({ status, code: '', message: '', hint: undefined, param: undefined }))).toEqual(
        Object.keys(told.body),
      );
    }
    expect(session.turns).toEqual([]);
  });
});

describe('the rollout of a call', () => {
  it('is the key’s: its own path after the seal, and after another session was opened, is 410', async () => {
    const { gateway, session } = open();
    const old = session.model().apiKey;
    session.seal();
    expect(await call(gateway, 'POST', ended, bearer(old), chat)).toMatchObject({ status: 410, code: 'rollout_ended' });
    const again = gateway.open(specOf('r1'));
    expect(await call(gateway, 'POST', ended, bearer(old), chat)).toMatchObject({ status: 410, code: 'rollout_ended' });
    expect((await call(gateway, 'POST', ended, bearer(again.model().apiKey), chat)).status).toBe(200);
    expect(again.turns.length).toBe(1);
  });

  it('of a key for the whole run is said by path or header, which must agree', async () => {
    const { gateway, session } = open();
    gateway.open(specOf('r2')).seal();
    const other = gateway.open(specOf('another one/ü'));
    const run = bearer(gateway.key('agent', { role: 'planner' }));
    const status = async (path: string, headers: object) =>
      (await call(gateway, 'POST', path, { ...run, ...headers }, chat)).status;
    expect(await status('/v1/chat/completions', { 'x-rollout-id': 'r1' })).toBe(200);
    expect(await status('/r/r1/v1/chat/completions', {})).toBe(200);
    expect(await status('/r/r1/chat/completions', { 'x-rollout-id': 'r1' })).toBe(200);
    expect(await status('/r/another%20one%2F%C3%BC/v1/chat/completions', {})).toBe(200);
    expect(await status('/v1/chat/completions', {})).toBe(400);
    expect(await status('/r/r1/chat/completions', { 'x-rollout-id': 'r2' })).toBe(403);
    expect(await status('/r/r2/chat/completions', {})).toBe(410);
    expect(await status('/r/nobody/chat/completions', {})).toBe(404);
    expect(await status('/v1/chat/completions', { 'x-rollout-id': 'nobody' })).toBe(404);
    expect(await status('/r/%zz/v1/chat/completions', {})).toBe(400);
    expect(session.turns.map(({ role, thread }) => [role, thread])).toEqual(Array(3).fill(['planner', 'planner']));
    expect(other.turns.length).toBe(1);
  });

  it('has threads that x-sample-id names; the role stays the key’s', async () => {
    const { gateway, session } = open({ spec: { roles: { judge: { trainable: false } } } });
    const own = session.model();
    const post = (key: string, sample: string) =>
      call(gateway, 'POST', '/v1/chat/completions', { ...bearer(key), 'x-sample-id': sample, 'x-rollout-id': 'r1' }, chat);
    expect((await post(own.apiKey, 'branch 7')).status).toBe(200);
    expect((await post(own.apiKey, 'default')).status).toBe(200);
    expect((await post(gateway.key('agent'), 'judge')).status).toBe(200);
    expect(await post(own.apiKey, 'judge')).toMatchObject({ status: 403, code: 'identity_conflict' });
    const seats = session.turns.map(({ role, thread }) => `${role}: ${thread}`);
    expect(seats).toEqual(['default: branch 7', 'default: default', 'default: judge']);
  });

  it('is open when a key is made for it', () => {
    const { gateway, session } = open();
    expect(() => gateway.key('agent', { rollout: 'r9' })).toThrow('not open');
    session.seal();
    expect(() => gateway.key('agent', { rollout: 'r1' })).toThrow('not open');
  });
});

describe('the routes', () => {
  const sessionDefaults = {
    sampling: specOf('').sampling,
    limits: { turns: 4, tokens: 1000, deadlineMs: 60_000 },
    seed: 1,
  };
  const start = () => {
    const engine = scriptedEngine({ vocabSize: 1024, contextLength: 4096, reply: () => say(ANSWER) });
    return new Gateway({ engine, renderer, modelName: 'org/policy', sessionDefaults });
  };

  it.each(ROUTES.map((route) => [`${route.method} ${route.path}`, route] as const))(
    '%s is for those it names and nobody else',
    async (_, { method, path, who, model }) => {
      const gateway = start();
      for (const capability of [...CAPABILITIES, undefined]) {
        const session = gateway.open(specOf('r1'));
        const key = capability && gateway.key(capability, model ? { rollout: 'r1' } : {});
        const where = `${model ? '/r/r1/v1' : ''}/${path.replace('{rollout+}', 'r1').replace('{id+}', 'org%2Fpolicy')}`;
        const isDone = who.length === 0 || (capability !== undefined && who.includes(capability));
        const told = await call(
          gateway,
          method,
          where,
          key ? bearer(key) : {},
          method === 'POST' ? (MINIMAL[path] ?? {}) : undefined,
        );
        const expected = isDone ? /^20[01]$/ : capability === undefined ? /^401$/ : /^403$/;
        expect(`${told.status}`, capability).toMatch(expected);
        session.seal();
      }
    },
  );

  it('refuse other methods, naming those they take', async () => {
    const gateway = start();
    const sessions = await call(gateway, 'PATCH', '/sessions');
    expect([sessions.status, sessions.headers.get('allow')]).toEqual([405, 'GET, HEAD, POST']);
  });

  const nowhere = '/ /v1/v1/v1/chat/completions /v1/chat /v1/chat/completions/ /v1/sessions /v1/health /v2/chat/completions';
  const elsewhere = '/r//v1/models /r/r1 /r/r1/sessions /sessions/ /models/ /__proto__ /constructor';
  it.each([...nowhere.split(' '), ...elsewhere.split(' ')])('are not %s', async (path) => {
    const gateway = start();
    const told = await call(gateway, 'GET', path, bearer(gateway.key('admin')));
    expect([told.status, told.code]).toEqual([404, 'not_found']);
  });

  it.each([
    '/v1beta/models/policy:generateContent',
    '/r/r1/v1beta/models/policy:streamGenerateContent',
    '/r/r1/v1/v1beta/models/policy:streamGenerateContent',
    '/v1/models/policy%3AcountTokens',
  ])('are not Gemini’s, which is told in one sentence (%s)', async (path) => {
    const gateway = start();
    const told = await call(gateway, 'POST', path, bearer(gateway.key('agent')));
    expect([told.status, told.code]).toEqual([404, 'not_found']);
    expect(JSON.stringify(told.body)).toContain('Gemini’s API is not spoken here: use a client of OpenAI’s or Anthropic’s API');
  });

  it('list the one model, and know no other', async () => {
    const gateway = start();
    const run = bearer(gateway.key('agent'));
    expect((await call(gateway, 'GET', '/v1/models', run)).body).toMatchObject({ data: [{ id: 'org/policy' }] });
    expect((await call(gateway, 'GET', '/models/org%2Fpolicy', run)).body).toMatchObject({ id: 'org/policy' });
    expect((await call(gateway, 'GET', '/v1/models/org/policy', run)).body).toMatchObject({ id: 'org/policy' });
    expect((await call(gateway, 'GET', '/v1/models/gpt-6', run)).status).toBe(404);
  });
});

it('a gateway that listens elsewhere takes its token as an admin key', async () => {
  const { gateway } = open();
  const token = 'correct-horse-battery';
  await using bound = await listen(gateway, { host: '0.0.0.0', token });
  const ask = async (key: string) => (await fetch(`${bound.origin}/sessions`, { headers: { 'x-api-key': key } })).status;
  expect([await ask(token), await ask(`${token}x`), await ask(gateway.key('agent'))]).toEqual([200, 401, 403]);
});
