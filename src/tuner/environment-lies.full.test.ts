/** An environment service that lies: every answer is refused in words, in bounded time and memory, and nothing of it becomes a task. */
import { createServer, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { gzipSync } from 'node:zlib';
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest';
import { readTasks } from '../dataset/tasks.ts';
import { EnvironmentClient, environmentTasks } from './environment.ts';

let server: Server;
let url = '';
let asked: string[] = [];
let answer: (response: ServerResponse) => void = (response) => response.end();

beforeAll(async () => {
  server = createServer((request, response) => {
    asked.push(request.url ?? '');
    request.resume().on('end', () => answer(response));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
});
afterEach(() => {
  asked = [];
  server.closeAllConnections();
});
afterAll(() => server.close());

const tasks = (timeoutMs?: number) => readTasks(environmentTasks({ url, envType: 'maze', timeoutMs }));
const data = (value: unknown) => (response: ServerResponse) => response.end(JSON.stringify({ success: true, data: value }));

it.each([
  ['no list', data({ a: 1 }), 'expected a list of task ids'],
  ['a list of lists', data([['a']]), 'expected a list of task ids'],
  ['an empty text as an id', data(['a', '']), 'expected a list of task ids'],
  ['nothing', (response: ServerResponse) => response.end('{"success":true}'), 'expected a list of task ids'],
  ['no object', (response: ServerResponse) => response.end('[1,2]'), 'expected {success, data}'],
  ['no tasks', data([]), 'holds no task'],
  ['one task twice', data(['a', 'b', 'a']), 'row 3: id "a" is already used on row 1'],
  ['an id that paints a terminal', data(['\u001b[31m']), 'row 1: id: expected 1 to 200 printable characters'],
  ['half a character', (response: ServerResponse) => response.end('{"data":["\\ud800"]}'), 'surrogate'],
  ['deep nesting', (response: ServerResponse) => response.end(`{"data":${'['.repeat(1e5)}${']'.repeat(1e5)}}`), 'nested deeper'],
  ['no JSON', (response: ServerResponse) => response.end('{"success":true,"data":['), 'answered no JSON'],
])('that answers %s', async (_, lie, message) => {
  answer = lie;
  await expect(tasks()).rejects.toMatchObject({ code: 'DATASET_INVALID', message: expect.stringContaining(message) });
  expect(asked).toEqual(['/get_env_profile']);
});

it('that sends the caller elsewhere: nobody goes there', async () => {
  for (const status of [301, 302, 307, 308]) {
    answer = (response) => response.writeHead(status, { location: `${url}/elsewhere` }).end();
    await expect(tasks()).rejects.toThrow(`HTTP ${status}, and redirects are not followed`);
  }
  expect(asked).not.toContain('/elsewhere');
});

it('that answers without end, also packed', async () => {
  let sent = 0;
  const endless = (response: ServerResponse): void => {
    const more = (): void => {
      while (!response.destroyed && response.write(Buffer.alloc(2 ** 20, 0x20))) sent += 2 ** 20;
      if (!response.destroyed) response.once('drain', more);
    };
    more();
  };
  answer = endless;
  await expect(tasks()).rejects.toThrow('answered more than 64 MiB');
  expect(sent).toBeLessThan(256 * 2 ** 20);
  const bomb = gzipSync(Buffer.alloc(80 * 2 ** 20, 0x20), { level: 1 });
  answer = (response) => response.writeHead(200, { 'content-encoding': 'gzip' }).end(bomb);
  await expect(tasks()).rejects.toThrow('answered more than 64 MiB');
});

it('that drips, or closes in the middle, is asked four times at most', async () => {
  answer = (response) => {
    const drip = setInterval(() => response.write(' '), 20);
    response.on('close', () => clearInterval(drip));
  };
  await expect(tasks(60)).rejects.toThrow('no answer in 4 attempts: no answer within 60 ms');
  expect(asked).toHaveLength(4);
  asked = [];
  answer = (response) => {
    response.writeHead(200, { 'content-length': 100 }).write('{"success":true');
    setImmediate(() => response.destroy());
  };
  await expect(tasks()).rejects.toThrow('no answer in 4 attempts');
  expect(asked).toHaveLength(4);
}, 20_000);

it('a password in the URL is refused, and not repeated', () => {
  const make = (): unknown => new EnvironmentClient({ url: 'http://me:hunter2@127.0.0.1:1', envType: 'maze' });
  expect(make).toThrow('without a user name or password');
  expect(make).not.toThrow('hunter2');
});
