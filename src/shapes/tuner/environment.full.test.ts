/** A real HTTP service with the routes of AgentScope's env_service: as it should be, and one that lies. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { gzipSync } from 'node:zlib';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { jsonOf, type LocalServer, localServer } from '../../../test/fixtures/local-server.ts';
import { refuses } from '../../../test/fixtures/refusal.ts';
import { readTasks } from '../../tasks/tasks.ts';
import { EnvironmentClient, environmentTasks } from './environment.ts';

let server: LocalServer;
let url = '';
let asked: { readonly route: string; readonly body: Record<string, unknown> }[] = [];
/** What a route answers, where it is not the usual. */
let special: Record<string, (response: ServerResponse, nth: number) => void> = {};

const usual: Record<string, unknown> = {
  get_env_profile: ['a', 'b', 3],
  create: { state: [{ role: 'user', content: 'go' }], info: { instance_id: 'theirs' } },
  step: { state: [{ role: 'user', content: 'next' }], reward: 0.5, is_terminated: true, info: {} },
  evaluate: 0.75,
  release: true,
  get_info: ['tool'],
};

async function serve(request: IncomingMessage, response: ServerResponse, body: Buffer): Promise<void> {
  const route = request.url?.slice(1) ?? '';
  asked.push({ route, body: jsonOf(body) });
  const nth = asked.filter((call) => call.route === route).length;
  const own = special[route];
  if (own !== undefined) return own(response, nth);
  response.setHeader('content-type', 'application/json').end(JSON.stringify({ success: true, data: usual[route] }));
}

beforeEach(async () => {
  [asked, special] = [[], {}];
  server = await localServer(serve);
  url = server.origin;
});
afterEach(() => server[Symbol.asyncDispose]());

const routes = () => asked.map(({ route }) => route);
const client = (more: object = {}) => new EnvironmentClient({ url, envType: 'maze', ...more });

it('lists its tasks as rows', async () => {
  const tasks = await readTasks(environmentTasks({ url, envType: 'maze', split: 'dev' }));
  expect(tasks[2]).toEqual({ id: '3', prompt: [], metadata: { task_id: '3', env_type: 'maze', split: 'dev' } });
  expect(asked).toEqual([{ route: 'get_env_profile', body: { env_type: 'maze', params: { split: 'dev' }, messages: {} } }]);
});

it('creates, steps, evaluates, and releases when the scope is left, also by an error', async () => {
  const episode = async () => {
    await using environment = await client().create('a', { hard: true });
    expect(environment.state).toEqual([{ role: 'user', content: 'go' }]);
    expect(await environment.step({ role: 'assistant', content: 'left' })).toMatchObject({ reward: 0.5, isTerminated: true });
    expect(await environment.evaluate()).toBe(0.75);
    expect(await environment.getInfo()).toEqual(['tool']);
    throw new Error('lost');
  };
  await expect(episode()).rejects.toThrow('lost');
  expect(routes()).toEqual(['create', 'step', 'evaluate', 'get_info', 'release']);
  const instances = new Set(asked.map(({ body }) => body['instance_id']));
  expect([...instances]).toEqual([expect.stringMatching(/^[0-9a-f]{32}$/)]);
  expect(asked[0]?.body).toMatchObject({ env_type: 'maze', task_id: 'a', params: { hard: true } });
});

it('asks again after errors of the server, and not after errors of the caller', async () => {
  special['evaluate'] = (response, nth) =>
    nth < 3 ? response.writeHead(503).end('busy') : response.end('{"success":true,"data":1}');
  const environment = await client().create('a');
  expect(await environment.evaluate()).toBe(1);
  special['get_info'] = (response) => response.writeHead(404).end('no such instance');
  await expect(environment.getInfo()).rejects.toThrow('HTTP 404: no such instance');
  expect(routes().filter((route) => route === 'evaluate')).toHaveLength(3);
  expect(routes().filter((route) => route === 'get_info')).toHaveLength(1);
});

it('never takes a step twice', async () => {
  special['step'] = (response) => response.destroy();
  const environment = await client().create('a');
  const message = expect.stringContaining('1 attempt');
  await expect(environment.step('left')).rejects.toMatchObject({ code: 'WORKFLOW_FAILED', message });
  expect(routes()).toEqual(['create', 'step']);
});

it('releases what was created without an answer', async () => {
  special['create'] = (response) => response.end('{"success":true,"data":"odd"}');
  await expect(client().create('a')).rejects.toThrow('expected a state');
  expect(routes()).toEqual(['create', 'release']);
  expect(asked[1]?.body['instance_id']).toBe(asked[0]?.body['instance_id']);
});

it.each([null, '0.5', true])('never makes a score of %j', async (score) => {
  special['evaluate'] = data(score);
  const environment = await client().create('a');
  await expect(environment.evaluate()).rejects.toThrow('a finite number');
});

it('says what failed: not successful, not there, cancelled', async () => {
  special['get_env_profile'] = (response) => response.end('{"success":false,"data":"unknown env"}');
  await expect(client().taskIds()).rejects.toThrow('unknown env');
  const reason = new Error('the rollout was cut');
  await expect(client({ signal: AbortSignal.abort(reason) }).taskIds()).rejects.toThrow(reason);
  await server[Symbol.asyncDispose]();
  await refuses(readTasks(environmentTasks({ url, envType: 'maze' })), 'DATASET_INVALID', 'ECONNREFUSED', 'running');
  expect(() => client({ url: 'file:///etc/passwd' })).toThrow('expected http');
}, 20_000);

const tasks = (timeoutMs?: number) => readTasks(environmentTasks({ url, envType: 'maze', timeoutMs }));
/** What the service answers when it is asked for its tasks. */
const lie = (answer: (response: ServerResponse) => void): void => {
  special['get_env_profile'] = answer;
};
const data = (value: unknown) => (response: ServerResponse) => response.end(JSON.stringify({ success: true, data: value }));

it.each([
  ['no list', data({ a: 1 }), 'expected a list of task ids'],
  ['an empty text as an id', data(['a', '']), 'expected a list of task ids'],
  ['nothing', (response: ServerResponse) => response.end('{"success":true}'), 'expected a list of task ids'],
  ['no object', (response: ServerResponse) => response.end('[1,2]'), 'expected {success, data}'],
  ['an id that paints a terminal', data(['\u001b[31m']), 'row 1: id: expected 1 to 200 printable characters'],
  ['deep nesting', (response: ServerResponse) => response.end(`{"data":${'['.repeat(1e5)}${']'.repeat(1e5)}}`), 'nested deeper'],
  ['no JSON', (response: ServerResponse) => response.end('{"success":true,"data":['), 'answered no JSON'],
])('a service that answers %s is refused', async (_, answer, message) => {
  lie(answer);
  await expect(tasks()).rejects.toMatchObject({ code: 'DATASET_INVALID', message: expect.stringContaining(message) });
  expect(routes()).toEqual(['get_env_profile']);
});

it.each([301, 302, 307, 308])('a service that sends the caller elsewhere by %i: nobody goes there', async (status) => {
  lie((response) => void response.writeHead(status, { location: `${url}/elsewhere` }).end());
  await expect(tasks()).rejects.toThrow(`HTTP ${status}, and redirects are not followed`);
  expect(routes()).not.toContain('elsewhere');
});

it('a service that answers without end, also packed', async () => {
  let sent = 0;
  const endless = (response: ServerResponse): void => {
    const more = (): void => {
      while (!response.destroyed && response.write(Buffer.alloc(2 ** 20, 0x20))) sent += 2 ** 20;
      if (!response.destroyed) response.once('drain', more);
    };
    more();
  };
  lie(endless);
  await expect(tasks()).rejects.toThrow('answered more than 64 MiB');
  expect(sent).toBeLessThan(256 * 2 ** 20);
  const bomb = gzipSync(Buffer.alloc(80 * 2 ** 20, 0x20), { level: 1 });
  lie((response) => void response.writeHead(200, { 'content-encoding': 'gzip' }).end(bomb));
  await expect(tasks()).rejects.toThrow('answered more than 64 MiB');
});

it('a service that drips, or closes in the middle, is asked four times at most', async () => {
  lie((response) => {
    const drip = setInterval(() => response.write(' '), 20);
    response.on('close', () => clearInterval(drip));
  });
  await expect(tasks(60)).rejects.toThrow('no answer in 4 attempts: no answer within 60 ms');
  expect(asked).toHaveLength(4);
  asked = [];
  lie((response) => {
    response.writeHead(200, { 'content-length': 100 }).write('{"success":true');
    setImmediate(() => response.destroy());
  });
  await expect(tasks()).rejects.toThrow('no answer in 4 attempts');
  expect(asked).toHaveLength(4);
}, 20_000);

it('a password in the URL is refused, and not repeated', () => {
  const make = (): unknown => new EnvironmentClient({ url: 'http://me:hunter2@127.0.0.1:1', envType: 'maze' });
  expect(make).toThrow('without a user name or password');
  expect(make).not.toThrow('hunter2');
});
