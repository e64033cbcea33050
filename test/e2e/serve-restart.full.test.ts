/** A server that is killed or stopped, and started again in the same directory: open rollouts go on, token for token, with their keys. */
import { cp, readdir, stat } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { describe, expect, it, onTestFinished } from 'vitest';
import type { Message } from '../../src/core/types.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { started } from '../cli/command.ts';
import { temporaryFolder } from '../fixtures/folder.ts';
import { freePort } from '../interop/child.ts';

interface Opened {
  readonly baseURL: string;
  readonly apiKey: string;
}
interface Serving extends Opened {
  readonly origin: string;
  readonly adminKey: string;
  readonly flowKey: string;
  readonly restored: number;
}

async function scene() {
  const run = temporaryFolder();
  const port = await freePort();
  const begin = async () => {
    const command = await started<Serving>(['serve', '--json', '--threads', '1', '--run', run, '--port', `${port}`]);
    onTestFinished(() => void command.child.kill('SIGKILL'));
    const end = async (signal: NodeJS.Signals): Promise<number | null> => {
      command.child.kill(signal);
      return (await command.ended).code;
    };
    return { ...command.first, end };
  };
  return { run, begin };
}

const open = async ({ origin, adminKey }: Serving, rolloutId: string, groupId: string): Promise<Opened> => {
  const headers = { authorization: `Bearer ${adminKey}`, 'content-type': 'application/json' };
  const reply = await fetch(`${origin}/sessions`, { method: 'POST', headers, body: JSON.stringify({ rolloutId, groupId }) });
  expect(reply.status).toBe(201);
  return (await reply.json()) as Opened;
};

const post = ({ baseURL, apiKey }: Opened, messages: readonly Message[], more: Record<string, string> = {}) =>
  fetch(`${baseURL}/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json', ...more },
    body: JSON.stringify({ model: 'any', messages, max_tokens: 6 }),
  });

async function ask(at: Opened, messages: readonly Message[], more?: Record<string, string>): Promise<Message> {
  const reply = await post(at, messages, more);
  expect(reply.status).toBe(200);
  return ((await reply.json()) as { choices: { message: Message }[] }).choices[0]!.message;
}

const user = (content: string): Message => ({ role: 'user', content });

describe('open rollouts of a server', () => {
  it.each(['SIGKILL', 'SIGTERM'] as const)(
    'go on after %s and a new start, without a fork, each in its group',
    async (signal) => {
      const { run, begin } = await scene();
      const first = await begin();
      expect((await stat(join(run, 'open', 'secret'))).mode & 0o777).toBe(0o600);
      const [a, b, over] = await Promise.all(['a', 'b', 'over'].map((name) => open(first, name, 'g')));
      const asked = [user('How much is the lamp?')];
      const said = await ask(a!, asked);
      await ask(first, asked);
      await ask(over!, asked);
      const headers = { authorization: `Bearer ${first.adminKey}` };
      const ended = await fetch(`${first.origin}/sessions/over`, { method: 'DELETE', headers });
      expect(ended.status).toBe(200);
      const code = await first.end(signal);
      expect(code).toBe(signal === 'SIGTERM' ? 0 : null);

      const second = await begin();
      expect(second.restored).toBe(3);
      // A client that did not hear the answer asks again, and gets the same one; then the conversation goes on, with the old key.
      expect(await ask(a!, asked, { 'x-stainless-retry-count': '1' })).toEqual(said);
      await ask(a!, [...asked, said, user('Sure?')]);
      await ask(b!, asked);
      expect((await post(over!, asked)).status).toBe(410);
      expect((await post({ ...a!, apiKey: b!.apiKey }, asked)).status).toBe(404);
      // A later rollout of the same name has keys of its own.
      await open(second, 'over', 'g');
      expect((await post(over!, asked)).status).toBe(410);
      expect(await second.end('SIGINT')).toBe(0);

      expect((await readdir(join(run, 'open'))).filter((name) => name !== 'secret')).toEqual([]);
      await using store = await openSqliteStore(join(run, 'store.sqlite'));
      const kept = await store.query();
      expect(kept.map(({ rolloutId, groupId, turns }) => [rolloutId, groupId, turns.length]).toSorted()).toEqual([
        ['a', 'g', 2],
        ['b', 'g', 1],
        ['local', 'local', 1],
        ['over', 'g', 1],
      ]);
      const [before, after] = kept.find(({ rolloutId }) => rolloutId === 'a')!.turns;
      expect(after).toMatchObject({ index: 1, after: 0 });
      expect(after).not.toHaveProperty('fork');
      const known = [...before!.promptIds, ...before!.sampledIds];
      expect([...after!.promptIds.slice(0, known.length)]).toEqual(known);
    },
  );

  it.each(['SIGKILL', 'SIGTERM'] as const)(
    'keep the trajectories of agent flows over a restart, by %s: steps, names, generation ids, keys; complete ones are stored once',
    async (signal) => {
      const { run, begin } = await scene();
      const first = await begin();
      const flow = async (path: string, body: object): Promise<Record<string, unknown>> => {
        const headers = { authorization: `Bearer ${first.flowKey}`, 'content-type': 'application/json' };
        const reply = await fetch(`${first.origin}/${path}`, { method: 'POST', headers, body: JSON.stringify(body) });
        expect([path, reply.status]).toEqual([path, 200]);
        return (await reply.json()) as Record<string, unknown>;
      };
      const generated = (uid: string, content: string) =>
        flow('generate', { trajectory_uid: uid, prompt_uid: 'p', messages: [user(content)], max_tokens: 6 });
      const step = (uid: string, index: number, { generation_id, policy_version }: Record<string, unknown>, more = {}) =>
        flow('submit_steps', {
          steps: [{ trajectory_uid: uid, prompt_uid: 'p', step_index: index, generation_id, policy_version, ...more }],
        });

      const [one, two] = [await generated('t', 'How much is the lamp?'), await generated('t', 'And the chair?')];
      await step('t', 0, one, { reward: 0.25, metadata: { tool: 'search' } });
      await flow('t/p/v1/register_trajectory', { channel: 'val', metadata: { task_id: 'lamp' } });
      await step('done', 0, await generated('done', 'Hello?'), { reward: 1, is_last: true });
      const black = (await flow('init_trajectory', { prompt_uid: 'q' })) as Record<
        'trajectory_uid' | 'base_url' | 'api_key',
        string
      >;
      const agent = { baseURL: black.base_url, apiKey: black.api_key };
      await ask(agent, [user('Hi')]);
      await first.end(signal);

      const second = await begin();
      expect(second.restored).toBe(3);
      const steps = await fetch(`${second.origin}/t/p/v1/steps`, { headers: { authorization: `Bearer ${second.flowKey}` } });
      expect(await steps.json()).toMatchObject({ channel: 'val', complete: false, steps: [{ turn: 0, reward: 0.25 }] });
      // Repeated, as by a client that did not hear the answer.
      expect(await step('t', 0, one, { reward: 0.25, metadata: { tool: 'search' } })).toMatchObject({ duplicates: 1 });
      await step('t', 1, two, { reward: 0.5, is_last: true });
      await ask(agent, [user('Hi again')]);
      await flow(`${black.trajectory_uid}/q/v1/complete_trajectory`, { reward: 1 });
      expect(await second.end('SIGINT')).toBe(0);

      expect((await readdir(join(run, 'open'))).filter((name) => name !== 'secret')).toEqual([]);
      await using store = await openSqliteStore(join(run, 'store.sqlite'));
      expect(await store.read('t')).toMatchObject({
        ...{ groupId: 'p', taskId: 'lamp', purpose: 'eval' },
        grade: { reward: { value: 0.75, byTurn: { 0: 0.75, 1: 0.5 } } },
        metadata: { steps: { 0: { metadata: { tool: 'search' } } } },
      });
      expect(await store.read('done')).toMatchObject({ outcome: { kind: 'completed' }, grade: { reward: { value: 1 } } });
      expect(await store.read(black.trajectory_uid)).toMatchObject({ groupId: 'q', turns: [{ index: 0 }, { index: 1 }] });
      expect(await store.count()).toBe(3);
    },
  );

  it('stay open when a server cannot start', async () => {
    const { run, begin } = await scene();
    const first = await begin();
    const kept = await open(first, 'kept', 'g');
    await ask(kept, [user('Hello?')]);
    await first.end('SIGKILL');
    const other = createServer().listen(Number(new URL(first.origin).port), '127.0.0.1');
    expect(await begin()).toMatchObject({ type: 'error', code: 'USAGE' });
    await new Promise((resolve) => other.close(resolve));
    const second = await begin();
    expect(second.restored).toBe(2);
    await ask(kept, [user('Still there?')]);
    await second.end('SIGINT');
    await using store = await openSqliteStore(join(run, 'store.sqlite'));
    expect((await store.read('kept'))?.turns).toHaveLength(2);
  });

  it('are stored apart if one that was sealed, and not stored before a kill, has the name of a later one', async () => {
    const { run, begin } = await scene();
    const first = await begin();
    await ask(first, [user('Hello?')]);
    await first.end('SIGKILL');
    const [name] = (await readdir(join(run, 'open'))).filter((one) => one !== 'secret');
    const later = `${Number.parseInt(name!, 10) + 1}`;
    await cp(join(run, 'open', name!), join(run, 'open', `${later}.jsonl`));
    const second = await begin();
    expect(second.restored).toBe(1);
    await ask(second, [user('Hello?'), user('And?')]);
    await second.end('SIGINT');
    await using store = await openSqliteStore(join(run, 'store.sqlite'));
    const kept = await store.query();
    expect(kept.map(({ rolloutId, turns }) => [rolloutId, turns.length])).toEqual([
      ['local', 1],
      ['local-2', 2],
    ]);
  });

  it('lose nothing that was answered, however often the server is killed in the middle of calls', async () => {
    const { run, begin } = await scene();
    const rollouts = new Map<string, Opened>();
    const answered = new Map<string, number>();
    for (let life = 0; life < 3; life++) {
      const server = await begin();
      if (life === 0) for (const name of ['x', 'y', 'z', 'w']) rollouts.set(name, await open(server, name, name));
      const agents = Array.from(rollouts, async ([name, at]) => {
        for (let i = 0; ; i++) {
          const reply = await post(at, [user(`Question ${life}-${i}`)]).catch(() => undefined);
          const isWhole =
            reply?.status === 200 &&
            (await reply.text().then(
              () => true,
              () => false,
            ));
          if (!isWhole) return;
          answered.set(name, (answered.get(name) ?? 0) + 1);
        }
      });
      setTimeout(() => void server.end('SIGKILL'), 300 + 100 * life);
      await Promise.all(agents);
    }
    expect(await (await begin()).end('SIGINT')).toBe(0);
    await using store = await openSqliteStore(join(run, 'store.sqlite'));
    for (const [name, count] of answered) {
      const turns = (await store.read(name))?.turns ?? [];
      // At most one answer of each life was kept and not heard.
      expect([turns.length >= count, turns.length <= count + 3]).toEqual([true, true]);
    }
    expect([...answered.values()].reduce((sum, one) => sum + one, 0)).toBeGreaterThan(20);
  });
});
