import { appendFile, readdir, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { randomTrajectory } from '../../packages/testing/src/trajectories.ts';
import { sharedFolder } from '../../test/fixtures/folder.ts';
import { rawClient } from '../../test/fixtures/raw-socket.ts';
import { viewKeyOf } from '../../test/fixtures/view-key.ts';
import type { Listener } from '../http/http-server.ts';
import { takeLock } from '../store/files.ts';
import { openSqliteStore } from '../store/sqlite.ts';
import type { RolloutPage, RunInfo, TokenView } from './api.ts';
import { exportedFile } from './export-view.ts';
import { ShownRun } from './shown-run.ts';
import { serveView } from './view-server.ts';

const HOSTILE = '</script><script>alert(1)</script>\u2028<!--';

const home = sharedFolder();
let listener: Listener;
let runs: readonly ShownRun[];
let key: { readonly authorization: string };
const links: string[] = [];

beforeAll(async () => {
  const settings = { entry: 'agent.ts', model: join(home, 'gone') };
  await writeFile(join(home, 'run.json'), JSON.stringify({ settings }));
  await writeFile(join(home, 'events.jsonl'), `${JSON.stringify({ type: 'warning', code: 'X', message: HOSTILE })}\n`);
  await using store = await openSqliteStore(join(home, 'store.sqlite'));
  const logprobs = (turn: { sampledIds: Int32Array }) => new Float32Array(turn.sampledIds.length).fill(-1);
  for (let seed = 1; seed <= 12; seed++) {
    const rollout = randomTrajectory(seed, {
      groupId: 'g',
      purpose: 'train',
      grade: { kind: 'graded', reward: { value: seed / 10 } },
    });
    const turns = rollout.turns.map((turn) => ({
      ...turn,
      logprobs: logprobs(turn),
      promptIds: Int32Array.of(1, 2),
      trainable: true,
    }));
    await store.append({ ...rollout, turns, rolloutId: seed === 1 ? 'a/b?c#%' : rollout.rolloutId, output: HOSTILE });
  }
  runs = [new ShownRun('0', home), new ShownRun('1', join(home, 'nothing'))];
  listener = await serveView({ runs, onLink: (link) => links.push(link) });
  key = await viewKeyOf(links[0]!);
});
afterAll(async () => {
  await listener[Symbol.asyncDispose]();
  for (const run of runs) await run[Symbol.asyncDispose]();
});

const ask = (path: string, init: RequestInit = {}): Promise<Response> =>
  fetch(listener.origin + path, { redirect: 'manual', ...init, headers: { ...key, ...init.headers } });
const post = (path: string, body: unknown, headers: Record<string, string> = {}): Promise<Response> => {
  const own = { origin: listener.origin, 'content-type': 'application/json', ...headers };
  return ask(path, { method: 'POST', body: JSON.stringify(body), headers: own });
};
const json = async <T>(path: string): Promise<T> => (await (await ask(path)).json()) as T;

describe('who may see it', () => {
  it.each(['/api/runs', '/api/changes', '/api/runs/0/rollouts', '/nowhere'])('%s needs the key of a link', async (path) => {
    const { host, port } = new URL(listener.origin);
    const value = key.authorization.replace('Bearer ', '');
    const wrong = [
      {},
      { authorization: `${key.authorization}x` },
      { authorization: value },
      { cookie: `trainyard-${port}=${value}` },
    ];
    for (const headers of wrong) {
      const response = await fetch(listener.origin + path, { headers });
      expect(response.status, JSON.stringify([host, headers])).toBe(401);
      expect(await response.text()).toContain('trainyard view printed');
    }
    expect((await fetch(`${listener.origin}${path}?token=${value}`)).status).toBe(401);
  });

  it('the page itself is served to everybody, and holds nothing of a run', async () => {
    for (const path of ['/', '/page.js', '/page.css']) {
      const response = await fetch(listener.origin + path);
      expect([200, 404]).toContain(response.status);
      expect(await response.text()).not.toContain(home);
    }
  });

  it('a link works once, and another one comes when it was used', async () => {
    expect(links).toHaveLength(2);
    expect(links[0]).toMatch(/^http:\/\/127\.0\.0\.1:\d+\/#token=[\w-]{43}$/);
    expect(key.authorization).toMatch(/^Bearer [\w-]{43}$/);
    expect(key.authorization).not.toContain(links[0]!.split('=')[1]);
    await expect(viewKeyOf(links[0]!)).rejects.toThrow(/^401: .*was used before, or is not right/);
    await expect(viewKeyOf(`${listener.origin}/#token=wrong`)).rejects.toThrow('401');
    await expect(viewKeyOf(`${listener.origin}/#token=${key.authorization.slice(7)}`)).rejects.toThrow('401');
    // What only looks, such as a preview of links, uses nothing up.
    for (const method of ['GET', 'HEAD']) expect((await fetch(links[1]!, { method })).status).toBe(200);
    expect(links).toHaveLength(2);
    expect((await fetch(`${listener.origin}/api/runs`, { headers: await viewKeyOf(links[1]!) })).status).toBe(200);
    expect(links).toHaveLength(3);
  });

  it('no answer sets a cookie', async () => {
    for (const path of ['/', '/api/runs', '/nowhere']) expect((await ask(path)).headers.get('set-cookie')).toBeNull();
  });

  it('every answer forbids other scripts, frames and caches, and allows no other origin', async () => {
    for (const path of ['/', '/api/runs', '/nowhere']) {
      const { headers } = await ask(path);
      expect(headers.get('content-security-policy')).toContain("default-src 'none'; script-src 'self'; style-src 'self';");
      expect(headers.get('content-security-policy')).toContain("frame-ancestors 'none'");
      expect(headers.get('x-content-type-options')).toBe('nosniff');
      expect(headers.get('referrer-policy')).toBe('no-referrer');
      expect(headers.get('cache-control')).toBe('no-store');
      expect(headers.get('access-control-allow-origin')).toBeNull();
    }
  });

  it('beyond loopback it needs a token', async () => {
    const onLink = (): void => {};
    await expect(serveView({ runs, host: '0.0.0.0', onLink })).rejects.toMatchObject({ code: 'USAGE' });
    await expect(serveView({ runs, host: '0.0.0.0', token: 'short', onLink })).rejects.toMatchObject({ code: 'USAGE' });
  });

  it.each([
    '/api/runs/2',
    '/api/runs/-1/events',
    '/api/runs/%2e%2e%2f/events',
    '/api/runs/0/rollouts/..%2f..%2frun.json',
    '/api/runs/0/groups/x',
  ])('no file but the runs’ is reached: %s', async (path) => {
    const response = await ask(path);
    expect(response.status).toBe(404);
    expect(await response.json()).toMatchObject({ error: { message: expect.any(String) } });
  });
});

describe('what it shows', () => {
  it('lists runs, also one that cannot be shown', async () => {
    const [good, bad] = await json<readonly RunInfo[]>('/api/runs');
    expect(good).toMatchObject({ id: '0', kind: 'train', state: 'stopped', entry: 'agent.ts', rollouts: 12 });
    expect(bad?.problem).toContain('run.json');
  });

  it('says that a run goes on while its lock is held', async () => {
    const lock = takeLock(home);
    expect((await json<readonly RunInfo[]>('/api/runs'))[0]?.state).toBe('running');
    lock.close();
    expect((await json<readonly RunInfo[]>('/api/runs'))[0]?.state).toBe('stopped');
  });

  it('filters, sorts and pages rollouts', async () => {
    const page = await json<RolloutPage>(
      `/api/runs/0/rollouts?filter=${encodeURIComponent('reward>0.55')}&sort=-reward&from=1&count=2`,
    );
    expect(page).toMatchObject({ total: 12, read: 12, matching: 7, successes: 3, from: 1 });
    expect(page.meanReward).toBeCloseTo(0.9);
    expect(page.rows.map(({ reward }) => reward)).toEqual([1.1, 1]);
    for (const query of ['filter=rewrad', 'sort=size', 'from=-1', 'count=9999999', 'count=x']) {
      expect((await ask(`/api/runs/0/rollouts?${query}`)).status).toBe(400);
    }
  });

  it('shows a rollout of any id, and its tokens as ids where the tokenizer is gone', async () => {
    const path = `/api/runs/0/rollouts/${encodeURIComponent('a/b?c#%')}`;
    expect(await json(path)).toMatchObject({ row: { rolloutId: 'a/b?c#%', reward: 0.1 }, output: HOSTILE });
    const rich = (await json<RolloutPage>('/api/runs/0/rollouts?filter=tokens%3E0')).rows[0]!;
    const { rows, note } = await json<TokenView>(`/api/runs/0/rollouts/${rich.rolloutId}/tokens`);
    expect(note).toContain('Tokens are shown as ids');
    expect(rows[0]!.pieces).toEqual(rows[0]!.ids.map(String));
    expect(rows.reduce((sum, { mask }) => sum + mask.filter(Boolean).length, 0)).toBe(rich.tokens);
  });

  it('tells what is new, from where the client is, and costs nothing for one that never reads', async () => {
    using idle = await rawClient(listener.origin);
    idle.socket.pause();
    idle.send(`GET /api/changes HTTP/1.1\r\nhost: localhost\r\nauthorization: ${key.authorization}\r\n\r\n`);
    const gone = new AbortController();
    const reader = (await ask('/api/changes', { signal: gone.signal })).body!.getReader();
    const next = async (): Promise<string> => new TextDecoder().decode((await reader.read()).value);
    expect(await next()).toContain('"run":"0","state":"stopped","events":[],"from":1,"rollouts":12,"restart":true');
    await appendFile(join(home, 'events.jsonl'), `${JSON.stringify({ type: 'error', code: 'NO_SIGNAL', message: 'm' })}\n{"half`);
    const change = JSON.parse((await next()).replace('data: ', ''));
    expect(change).toMatchObject({ run: '0', state: 'failed', from: 1, rollouts: 12, events: [{ code: 'NO_SIGNAL' }] });
    gone.abort();
    expect((await ask('/api/runs')).status).toBe(200);
  });
});

describe('what it changes', () => {
  it('a POST without an origin, or of something else, is refused', async () => {
    const body = JSON.stringify({ rolloutIds: ['rollout-2'], reason: 'r' });
    expect(
      (await ask('/api/runs/0/marks', { method: 'POST', body, headers: { 'content-type': 'application/json' } })).status,
    ).toBe(403);
    expect((await post('/api/runs/0/marks', { rolloutIds: ['rollout-2'], reason: 'r', path: '/etc' })).status).toBe(400);
    expect((await post('/api/runs/0/marks', { rolloutIds: ['nobody'], reason: 'r' })).status).toBe(400);
  });

  it('marks what is excluded in the store, and takes it back', async () => {
    const marked = await post('/api/runs/0/marks', { rolloutIds: ['rollout-2'], reason: 'it leaks' });
    expect(await marked.json()).toMatchObject([{ rolloutId: 'rollout-2', excluded: true, reason: 'it leaks' }]);
    await using store = await openSqliteStore(join(home, 'store.sqlite'));
    expect(await store.marks()).toMatchObject([{ rolloutId: 'rollout-2', excluded: true }]);
    expect((await json<RolloutPage>('/api/runs/0/rollouts?filter=excluded~leak')).rows[0]?.excluded).toBe('it leaks');
    expect((await post('/api/runs/0/marks', { rolloutIds: ['rollout-2'], undo: true })).status).toBe(200);
    expect((await json<RolloutPage>('/api/runs/0/rollouts?filter=excluded')).matching).toBe(0);
  });

  it('gives what passes a filter as a file, and leaves none behind', async () => {
    const ours = async () =>
      (await readdir(tmpdir())).filter((name) => name.startsWith('trainyard-view-') && !name.includes('test'));
    const before = await ours();
    const response = await post('/api/runs/0/dataset', { format: 'jsonl', only: 'all', filter: 'reward>0.9 && tokens>0' });
    expect(response.headers.get('content-disposition')).toBe('attachment; filename="trainyard-rollouts.jsonl"');
    const lines = (await response.text())
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as { readonly reward: number });
    expect(lines.length).toBeGreaterThan(0);
    expect(lines.every(({ reward }) => reward > 0.9)).toBe(true);
    expect((await post('/api/runs/0/dataset', { format: 'jsonl', filter: 'reward>9' })).status).toBe(400);
    expect((await post('/api/runs/0/dataset', { format: '../x', filter: '' })).status).toBe(400);
    while ((await ours()).length > before.length) await sleep(5);
  });
});

it('an exported file holds hostile text as inert JSON, and allows only its own script and style', () => {
  const view = { takenAt: 1, answers: { '/api/runs': [HOSTILE] } };
  const file = exportedFile(view, 'const page = "</script>";', 'p{}');
  const [, data = ''] = /<script type="application\/json" id="trainyard-export">([^<]*)<\/script>/.exec(file) ?? [];
  expect(JSON.parse(data)).toEqual(view);
  expect(file).not.toContain('\u2028');
  expect(file.match(/<\/script>/g)).toHaveLength(2);
  expect(file).toMatch(/script-src 'sha256-[^']+'; style-src 'sha256-[^']+'/);
});
