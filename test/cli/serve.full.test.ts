/** `trainyard serve`: a URL for any agent; what it did is shown while it happens and kept when it ends. */
import { once } from 'node:events';
import { mkdir, writeFile } from 'node:fs/promises';
import { type AddressInfo, createServer } from 'node:net';
import { join } from 'node:path';
import OpenAI from 'openai';
import { describe, expect, it } from 'vitest';
import { saidIn, started, trainyard, useScratch } from './command.ts';

const home = useScratch();

interface Serving {
  readonly origin: string;
  readonly baseURL: string;
  readonly apiKey: string;
}

const SERVE = ['serve', '--json', '--threads', '1', '--run'];

/** Serves, lets the agent at it, then Ctrl-C. */
async function served(agent: (serving: Serving) => Promise<void>, ...flags: readonly string[]) {
  const { child, ended, first } = await started<Serving>([...SERVE, join(home.dir, 'served'), ...flags]);
  await agent(first);
  child.kill('SIGINT');
  return await ended;
}

const ask = async ({ baseURL, apiKey }: Serving): Promise<void> => {
  const client = new OpenAI({ baseURL, apiKey });
  const messages = [{ role: 'user' as const, content: 'How much is the lamp?' }];
  const first = await client.chat.completions.create({ model: 'any', messages, max_tokens: 4 });
  const next = { role: 'user' as const, content: 'Sure?' };
  await client.chat.completions.create({ model: 'any', messages: [...messages, first.choices[0]!.message, next], max_tokens: 4 });
};

describe('trainyard serve', () => {
  it('captures what an agent does, says so turn by turn, and keeps every session, also in a directory that has some', async () => {
    const first = await served(ask);
    expect(first.code).toBe(0);
    const lines = saidIn(first);
    expect(lines.map(({ type }) => type)).toEqual(['serving', 'turn', 'turn', 'served']);
    expect(lines.slice(1, 3).map(({ index, after }) => [index, after])).toEqual([
      [0, null],
      [1, 0],
    ]);
    const token = 'a-token-of-an-admin';
    const second = await served(
      async (serving) => {
        const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' };
        const opened = await fetch(`${serving.origin}/sessions`, { method: 'POST', headers, body: '{"rolloutId":"mine"}' });
        await ask((await opened.json()) as Serving);
        await ask(serving);
      },
      '--token',
      token,
    );
    expect(second.code).toBe(0);
    const rollouts = saidIn(await trainyard('show', join(home.dir, 'served'), '--json'));
    expect(rollouts.map(({ rolloutId, turns, samples }) => [rolloutId, turns, samples]).toSorted()).toEqual([
      ['local', 2, 1],
      ['local-2', 2, 1],
      ['mine', 2, 1],
    ]);
  });

  it('goes on without the reader of its output, and open rollouts go on after its terminal was closed', async () => {
    const run = join(home.dir, 'unread');
    const { child, ended, first: serving } = await started<Serving>([...SERVE, run]);
    child.stdout.destroy();
    await ask(serving);
    child.kill('SIGHUP');
    expect(await ended).toMatchObject({ code: 0, stderr: 'The reader of the output has left; serving goes on\n' });
    const again = await started([...SERVE, run]);
    expect(again.first).toMatchObject({ restored: 1 });
    again.child.kill('SIGINT');
    expect((await again.ended).code).toBe(0);
    expect(JSON.parse((await trainyard('show', run, '--json')).stdout)).toMatchObject({ rolloutId: 'local', turns: 2 });
  });

  it('says in one line what it refused, and serves nobody else’s directory', async () => {
    const run = join(home.dir, 'refusing');
    const ended = await served(async ({ baseURL }) => {
      await fetch(`${baseURL}/chat/completions`, { method: 'POST' });
      const second = await trainyard('serve', '--run', join(home.dir, 'served'));
      expect([second.code, second.stderr]).toEqual([1, expect.stringContaining('another process is using')]);
    });
    expect(ended.stdout).toContain('"type":"refused","status":401');
    await mkdir(run);
    await writeFile(join(run, 'run.json'), '{}');
    const inside = await trainyard('serve', '--run', run);
    expect([inside.code, inside.stderr]).toEqual([2, expect.stringContaining('holds a run')]);
  });

  it('says what to do about a port that is taken', async () => {
    const server = createServer().listen(0, '127.0.0.1');
    await once(server, 'listening');
    const { port } = server.address() as AddressInfo;
    const { code, stderr } = await trainyard('serve', '--port', `${port}`, '--run', join(home.dir, 'taken'));
    server.close();
    expect([code, stderr]).toEqual([2, expect.stringContaining('is taken\n  give another port')]);
  });

  it('refuses an address that others can reach without a token, before anything else', async () => {
    const { code, stderr } = await trainyard('serve', '--host', '0.0.0.0', '--run', join(home.dir, 'open'));
    expect([code, stderr]).toEqual([2, expect.stringContaining('no token was given')]);
  });
});
