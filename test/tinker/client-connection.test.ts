/**
 * The connection to a Tinker server that plays a script: every documented outcome of a future, and servers that are away, busy,
 * wrong or lying.
 */
import { createServer } from 'node:net';
import { describe, expect } from 'vitest';
import { type Accepted, type Submission, TinkerConnection } from '../../src/engines/tinker/client/connection.ts';
import { refusal } from '../fixtures/refusal.ts';
import {
  type Answer,
  failure,
  scripted as it,
  KEY,
  reset,
  type Script,
  ScriptedServer,
} from '../fixtures/tinker/scripted-server.ts';

const work: Submission = { verb: 'optim_step', purpose: 'train', body: { seq_id: 1 }, repeatable: true };

const DONE: Answer = { json: { metrics: {} } };
const htmlPage: Answer = { raw: `<html><body>Sign in\u0000 to ${KEY}</body></html>`, type: 'text/html' };
const LARGE: Answer = { json: { status: 'complete_metadata', response_payload_size: 10 } };
const GONE: Answer = { json: { detail: 'gone' }, status: 410 };
const failed = (error: string, category: string): Answer => ({ json: { error, category } });
const hang: Answer = () => undefined;
const halfABody: Answer = (response) => {
  response.writeHead(200, { 'content-type': 'application/json', 'content-length': '100' });
  response.write('{"metrics"');
  setTimeout(() => response.socket?.destroy(), 5);
};

/** These answers to the polls of a future, one after another; the last one again and again. */
function polls(...answers: readonly Answer[]): Script {
  return ({ verb }, count) => (verb === 'retrieve_future' ? answers[Math.min(count, answers.length) - 1] : undefined);
}

/** These answers to submissions; then the ordinary one, and results at once. */
function submissions(...answers: readonly Answer[]): Script {
  return ({ verb }, count) => {
    if (verb === 'retrieve_future') return DONE;
    return verb === 'optim_step' ? answers[count - 1] : undefined;
  };
}

async function resultOf(connection: TinkerConnection, submission: Submission = work): Promise<unknown> {
  const accepted: Accepted = await connection.submit(submission);
  return accepted.result();
}

const RESULT = { kind: 'json', value: { metrics: {} } };

describe('a future', () => {
  it.for([
    ['try_again', { json: { type: 'try_again', queue_state: 'paused_capacity' } }],
    ['408', { json: { queue_state: 'active' }, status: 408 }],
    ['complete_metadata', LARGE],
    ['410 (forgotten)', GONE],
    ['404 (forgotten)', { json: { detail: 'Future not found' }, status: 404 }],
    ['400 from a proxy', { json: { detail: 'bad' }, status: 400 }],
    ['429', { json: { detail: 'slow down' }, status: 429 }],
    ['500', { json: { detail: 'oops' }, status: 500 }],
    ['502 in HTML', { ...htmlPage, status: 502 }],
    ['402', { json: { detail: 'unpaid' }, status: 402 }],
    ['a reset', reset],
    ['half a body', halfABody],
  ] satisfies [string, Answer][])('comes through after %s', async ([what, answer], { connection, server }) => {
    server.script = polls(answer, DONE);
    expect(await resultOf(connection)).toEqual(RESULT);
    const asked = server.of('retrieve_future').map(({ json }) => json['allow_metadata_only']);
    // One that is known to be large is asked for whole.
    expect(asked).toEqual([true, what !== 'complete_metadata']);
  });

  it('that is protobuf is given as bytes', async ({ connection, server }) => {
    const bytes = Buffer.from([1, 2, 255]);
    server.script = polls({ raw: bytes, type: 'application/x-protobuf' });
    expect(await resultOf(connection)).toEqual({ kind: 'protobuf', bytes });
    expect(server.of('retrieve_future')[0]?.headers).toMatchObject({
      accept: expect.stringContaining('application/x-protobuf'),
      'x-tinker-request-type': 'OptimStep',
      'x-tinker-request-iteration': '0',
    });
  });

  /** With how often the request is sent, and its result asked for; each time the same body is sent. */
  it.for([
    ['only ever is metadata', LARGE, 'POLICY_GARBLED', /metadata/, 1, 2],
    ['failed by its user', failed('rank too large', 'user'), 'POLICY_REFUSED', /rank too large/, 1, 1],
    ['failed at the server', failed('worker died', 'server'), 'TRAINER_FAILED', /worker died/, 1, 1],
    ['failed somehow', failed('who knows', 'else'), 'TRAINER_FAILED', /who knows/, 1, 1],
    ['failed for want of its model', failed('Model m-1 not loaded', 'unknown'), 'POLICY_LOST', /not loaded/, 1, 1],
    ['is 400 again and again', { json: { detail: 'no such loss' }, status: 400 }, 'POLICY_REFUSED', /no such loss/, 1, 4],
    ['the server keeps forgetting', GONE, 'POLICY_LOST', /gone/, 3, 3],
  ] satisfies [string, Answer, string, RegExp, number, number][])(
    'that %s is an error',
    async ([_, answer, code, message, sent, asked], { connection, server }) => {
      server.script = polls(answer);
      await expect(resultOf(connection)).rejects.toMatchObject(failure(code, message));
      expect(server.of('optim_step').map(({ body }) => body.toString())).toEqual(Array(sent).fill('{"seq_id":1}'));
      expect(server.of('retrieve_future')).toHaveLength(asked);
    },
  );

  it('of sampling fails as the engine’s', async ({ server, connection }) => {
    server.script = polls(failed('worker died', 'server'));
    const sample = { ...work, verb: 'asample', purpose: 'sample' } as const;
    await expect(resultOf(connection, sample)).rejects.toMatchObject(failure('ENGINE_FAILED'));
  });

  it('whose model is unknown when the request is sent again is lost', async ({ server, connection }) => {
    server.script = ({ verb }, count) => {
      if (verb === 'retrieve_future') return GONE;
      return verb === 'optim_step' && count > 1 ? { json: { detail: 'unknown model' }, status: 404 } : undefined;
    };
    await expect(resultOf(connection)).rejects.toMatchObject(failure('POLICY_LOST'));
  });

  it('is never sent again to a server that would do the work twice', async ({ connection, server }) => {
    server.script = polls(GONE);
    await expect(resultOf(connection, { ...work, repeatable: false })).rejects.toMatchObject(failure('POLICY_LOST'));
    expect(server.of('optim_step')).toHaveLength(1);
  });

  it('ends as cancelled when the connection is closed', async ({ server, connection }) => {
    server.script = polls(hang);
    const accepted = await connection.submit(work);
    const result = expect(accepted.result()).rejects.toMatchObject(failure('CANCELLED'));
    const before = Date.now();
    await connection[Symbol.asyncDispose]();
    await result;
    // Not when the poll's own time is up.
    expect(Date.now() - before).toBeLessThan(20_000);
  });
});

describe('a submission', () => {
  it.for([
    ['a reset', reset],
    ['half a body', halfABody],
    ['429', { json: {}, status: 429, headers: { 'retry-after': '0' } }],
    ['503', { json: {}, status: 503 }],
  ] satisfies [string, Answer][])('is sent again after %s, unchanged', async ([_, answer], { connection, server }) => {
    server.script = submissions(answer);
    expect(await resultOf(connection)).toEqual(RESULT);
    expect(server.of('optim_step').map(({ body }) => body.toString())).toEqual(['{"seq_id":1}', '{"seq_id":1}']);
  });

  it.for([
    ['a reset', reset, 1],
    ['500', { json: {}, status: 500 } as Answer, 1],
    ['429', { json: {}, status: 429 } as Answer, 2],
  ] as const)(
    'that must not arrive twice is sent again only where it cannot have: %s',
    async ([_, answer, times], { connection, server }) => {
      server.script = submissions(answer);
      const outcome = await resultOf(connection, { ...work, repeatable: false }).catch((thrown: { code: string }) => thrown.code);
      expect(outcome).toEqual(times === 1 ? 'POLICY_LOST' : RESULT);
      expect(server.of('optim_step')).toHaveLength(times);
    },
  );

  it('waits as long as Retry-After says', async ({ server }) => {
    server.script = submissions({ json: {}, status: 429, headers: { 'retry-after': '1' } });
    await using connection = await TinkerConnection.open({ baseURL: server.url, apiKey: KEY, patienceMs: 60_000 });
    const before = Date.now();
    await connection.submit(work);
    expect(Date.now() - before).toBeGreaterThanOrEqual(990);
  });

  it('gives up at once where the server wants to be asked after patience has run out', async ({ server, connection }) => {
    server.script = submissions({ json: {}, status: 429, headers: { 'retry-after': '3600' } });
    await expect(connection.submit(work)).rejects.toMatchObject(
      failure('POLICY_UNREACHABLE', 'it wants to be asked again in 3600 s'),
    );
  });

  it.for([
    [401, { detail: 'bad key' }, 'POLICY_REFUSED', /bad key/],
    [403, { detail: 'no' }, 'POLICY_REFUSED', /403/],
    [400, { detail: 'seq_id missing' }, 'POLICY_REFUSED', /seq_id missing/],
    [409, { error: 'seq_id reused' }, 'POLICY_REFUSED', /seq_id reused/],
    [422, { detail: [{ loc: ['body', 'x'], msg: 'wrong' }] }, 'POLICY_REFUSED', /wrong/],
    [404, { detail: 'Model not found' }, 'POLICY_LOST', /Model not found/],
  ] as const)('that is answered %i %j is %s', async ([status, json, code, message], { connection, server }) => {
    server.script = submissions({ status, json });
    await expect(connection.submit(work)).rejects.toMatchObject({ code, message: expect.stringMatching(message) });
    expect(server.of('optim_step')).toHaveLength(1);
  });

  it.for([
    ['HTML', htmlPage],
    ['a number', { json: 7 }],
    ['no request_id', { json: { status: 'pending' } }],
    ['HTML as 404', { ...htmlPage, status: 404 }],
  ] satisfies [string, Answer][])(
    'that is answered with %s is garbled, and no message shows the key',
    async ([_, answer], { server, connection }) => {
      server.script = submissions(answer);
      const thrown = await connection.submit(work).catch((error: Error) => error);
      expect(thrown).toMatchObject(failure('POLICY_GARBLED'));
      expect(JSON.stringify([thrown, (thrown as Error).message])).not.toContain(KEY);
    },
  );

  it('shows how a strange body begins, in printable characters', async ({ server, connection }) => {
    server.script = submissions(htmlPage);
    await expect(connection.submit(work)).rejects.toThrow('it begins: <html><body>Sign in to ***</body></html>');
  });

  it('is never redirected', async ({ connection, server }) => {
    const elsewhere: Answer = { json: {}, status: 307, headers: { location: 'http://127.0.0.1:1/' } };
    server.script = submissions(elsewhere);
    await expect(connection.submit(work)).rejects.toMatchObject(failure('POLICY_REFUSED', /redirect/));
    expect(server.of('optim_step')).toHaveLength(1);
  });
});

describe('a server in trouble', () => {
  it('is waited for no longer than patience, and the trouble is told once', async ({ server, connection, troubles }) => {
    server.script = submissions(...Array<Answer>(100).fill({ json: { detail: 'oops' }, status: 500 }));
    const many = Array.from({ length: 5 }, () => connection.submit(work).catch((error: { code: string }) => error.code));
    expect(await Promise.all(many)).toEqual(Array(5).fill('POLICY_UNREACHABLE'));
    expect(troubles).toEqual([expect.stringMatching(/oops/)]);
  });

  it('is told of again when it is over', async ({ server, connection, troubles }) => {
    server.script = submissions(reset);
    await connection.submit(work);
    expect(troubles).toHaveLength(2);
    expect(troubles[1]).toMatch(/answers again/);
  });

  it('that is not there is unreachable, and the message names it', async () => {
    await using server = await ScriptedServer.start();
    const { port } = server;
    await server[Symbol.asyncDispose]();
    const opening = TinkerConnection.open({ baseURL: `http://127.0.0.1:${port}`, apiKey: KEY, patienceMs: 200 });
    await expect(opening).rejects.toMatchObject(failure('POLICY_UNREACHABLE', `127.0.0.1:${port}`));
  });

  it('is gone on with when it comes back at the same address', async () => {
    const first = await ScriptedServer.start();
    const { port, url } = first;
    await using connection = await TinkerConnection.open({ baseURL: url, apiKey: KEY, patienceMs: 5000 });
    await first[Symbol.asyncDispose]();
    const result = resultOf(connection);
    await new Promise((resolve) => setTimeout(resolve, 200));
    await using _second = await ScriptedServer.start(polls(DONE), port);
    expect(await result).toEqual(RESULT);
  });

  it('that never finishes a reply of its own is not read for ever', async ({ server, connection }) => {
    const endless: Answer = (response) => {
      response.writeHead(200, { 'content-type': 'application/json' });
      const chunk = Buffer.alloc(4 * 1024 * 1024, 0x20);
      const write = (): void => {
        while (!response.destroyed && response.write(chunk));
        if (!response.destroyed) response.once('drain', write);
      };
      write();
    };
    server.script = submissions(endless);
    await expect(connection.submit(work)).rejects.toMatchObject(failure('POLICY_GARBLED', /bytes/));
  });

  it('that accepts and says nothing is cancelled at once by the signal', async () => {
    await using silent = createServer((socket) => socket.resume().on('error', () => undefined));
    const controller = new AbortController();
    const { promise, resolve } = Promise.withResolvers<void>();
    silent.listen(0, '127.0.0.1', resolve);
    await promise;
    const baseURL = `http://127.0.0.1:${(silent.address() as { port: number }).port}`;
    const opening = TinkerConnection.open({ baseURL, apiKey: KEY, signal: controller.signal });
    setTimeout(() => controller.abort(), 20);
    await expect(opening).rejects.toMatchObject(failure('CANCELLED'));
  });
});

describe('a connection', () => {
  it.each(['', 'ftp://host', 'http://user:pass@host', 'nonsense'])('is not opened to %j', async (baseURL) => {
    const opening = TinkerConnection.open({ baseURL, apiKey: KEY });
    await expect(opening).rejects.toMatchObject(failure('USAGE'));
  });

  it('is not opened to something that is no Tinker server', async () => {
    const nothing: Script = () => ({ json: { detail: 'Not Found' }, status: 404 });
    await using server = await ScriptedServer.start(nothing);
    const opening = TinkerConnection.open({ baseURL: server.url, apiKey: KEY });
    await expect(opening).rejects.toThrow(refusal('POLICY_REFUSED', /no Tinker API/, /TINKER_BASE_URL/));
  });

  it('keeps the path of its base URL and says the models of the server', async () => {
    const models = { supported_models: [{ model_name: 'a', max_context_length: 64 }, { model_name: 'b' }] };
    await using server = await ScriptedServer.start(({ verb }) => {
      if (verb.endsWith('create_session')) return { json: { session_id: 's-9' } };
      return verb.endsWith('get_server_capabilities') ? { json: models } : undefined;
    });
    await using connection = await TinkerConnection.open({ baseURL: `${server.url}/services/prod/`, apiKey: KEY });
    expect(connection.sessionId).toBe('s-9');
    expect(connection.address).toBe(`${server.url}/services/prod`);
    expect((await connection.capabilities()).offered).toEqual([
      { name: 'a', contextLength: 64 },
      { name: 'b', contextLength: undefined },
    ]);
    expect(server.asked.every(({ verb }) => verb.startsWith('/services/prod'))).toBe(true);
  });

  it('makes a sampling session in a new session where the server has forgotten the old one', async ({ server, connection }) => {
    server.script = ({ verb, json }) => {
      if (verb === 'create_session') return { json: { session_id: 'session-2' } };
      return json['session_id'] === 'session-1' ? { json: { detail: 'Session not found' }, status: 404 } : undefined;
    };
    expect(await connection.createSamplingSession({ baseModel: 'tiny' })).toBe('sampling-1');
    expect(connection.sessionId).toBe('session-2');
  });

  it('says that a base model is unknown where the session is not', async ({ connection, server }) => {
    const script: Script = ({ verb }) =>
      verb === 'create_sampling_session' ? { json: { detail: 'no such base model' }, status: 404 } : undefined;
    server.script = script;
    const made = connection.createSamplingSession({ baseModel: 'huge' });
    await expect(made).rejects.toMatchObject(failure('POLICY_REFUSED', /no such base model/));
    expect(server.of('create_session')).toHaveLength(1);
  });
});
