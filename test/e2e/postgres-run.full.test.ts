/** Runs whose rollouts are in PostgreSQL: trained, killed, resumed, looked at, marked, compared and verified as with a file. */
import { cp, readdir, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { RunEvent } from '../../src/core/events.ts';
import { train } from '../../src/training/train.ts';
import { ShownRun } from '../../src/view/shown-run.ts';
import { serveView } from '../../src/view/view-server.ts';
import { killedAt, saidIn, sharedTrainyard, started, trainyard } from '../cli/command.ts';
import { viewKeyOf } from '../fixtures/view-key.ts';
import { databaseFor, needsPostgres } from '../postgres/server.ts';
import { rows } from '../workers/site.ts';
import { useSmallHome } from './small-run.ts';

const PASSWORD = 'PLANTED-7d21';
const STEPS = 2;
const home = useSmallHome();
let database: Awaited<ReturnType<typeof databaseFor>>;
/** With a password, which the server does not ask for. */
let url: string;
const printed: string[] = [];
const at = (name: string): string => join(home.dir, name);
const weights = (run: string): Promise<Buffer> => readFile(at(`${run}/checkpoints/step-00000${STEPS}/model.safetensors`));
const recordIn = async (run: string) => JSON.parse(await readFile(at(`${run}/run.json`), 'utf8'));

async function command(...args: readonly string[]) {
  const ended = await sharedTrainyard(...args);
  printed.push(ended.stdout, ended.stderr);
  return ended;
}

describe('a run with its store in PostgreSQL', needsPostgres, () => {
  beforeAll(async () => {
    database = await databaseFor();
    const parsed = new URL(database.url);
    parsed.password = PASSWORD;
    url = parsed.href;
    const small = { entry: home.entry, steps: STEPS, group: 4, groupsPerStep: 2, evalEvery: 0 };
    await train({ ...small, run: at('file') });
  });
  afterAll(() => database[Symbol.asyncDispose]());

  it('ends with the bytes of a run in a file, and says where its rollouts are', async () => {
    const { code, stdout, stderr } = await command(...home.flags(at('database'), STEPS), '--eval-every', '0', '--store', url);
    expect(stderr).toBe('');
    expect(code).toBe(0);
    expect((await weights('database')).equals(await weights('file'))).toBe(true);
    expect(stdout).toContain('Every rollout is in postgres://');
    expect((await recordIn('database')).settings.store).toMatch(/^postgres(ql)?:\/\/\w+@/);
    expect(await readdir(at('database'))).not.toContain('store.sqlite');
  });

  it('was killed, is resumed by its directory alone, and ends with the same bytes', async () => {
    await killedAt('"type":"step-end"', [...home.flags(at('killed'), STEPS), '--eval-every', '0', '--store', url, '--json']);
    const { code } = await command('train', '--resume', at('killed'));
    expect(code).toBe(0);
    expect((await weights('killed')).equals(await weights('file'))).toBe(true);
    const file = await command('train', '--resume', at('file'), '--store', url);
    expect(file).toMatchObject({ code: 2, stderr: expect.stringContaining('begun with --store not given') });
  });

  it('is shown, marked, compared, replayed, exported and verified', async () => {
    const run = at('database');
    const lines = saidIn(await command('show', run, '--json'));
    const strip = (all: readonly object[]) => all.map((line) => JSON.stringify(line)).sort();
    expect(strip(lines)).toEqual(strip(saidIn(await command('show', at('file'), '--json'))));
    const { rolloutId } = lines[0];
    expect(saidIn(await command('curate', run, rolloutId, '--reason', 'a tool was down', '--json'))).toMatchObject([
      { rolloutId },
    ]);
    expect((await command('curate', run, '--store', url)).stdout).toContain('a tool was down');
    expect((await command('diff', run, at('file'), '--store', url)).stdout).toContain('no difference');
    expect((await command('replay', run, rolloutId, '--grade', '--store', url)).stdout).toContain('As recorded');
    expect((await command('export', run, '--format', 'jsonl', '--to', at('rows.jsonl'), '--store', url)).code).toBe(0);
    const verified = await command('verify', run, '--store', url);
    expect(verified.stdout).toContain(`steps: ${STEPS}, different: 0`);
    expect(verified.code).toBe(0);
  });

  it('is found by its id where its directory is not; what needs the directory says so; an unknown id makes nothing', async () => {
    const { id } = await recordIn('database');
    const shown = saidIn(await command('show', id, '--store', url, '--json'));
    expect(shown.length).toBeGreaterThan(STEPS * 8 - 1);
    expect((await command('curate', id, '--store', url)).stdout).toContain('1 exclusion');
    for (const args of [
      ['verify', id],
      ['diff', id, at('file')],
      ['replay', id, shown[0].rolloutId],
    ]) {
      const { code, stderr } = await command(...args, '--store', url);
      expect({ code, stderr }).toMatchObject({ code: 2, stderr: expect.stringContaining('only the rollouts of a run') });
    }
    const runs = () => rows('SELECT FROM trainyard.runs', database.url);
    const before = await runs();
    expect((await command('show', 'nobody', '--store', url)).stderr).toMatch(/FILE_NOT_FOUND.* holds no run "nobody"/);
    expect(await runs()).toEqual(before);
    await cp(at('database'), at('lost'), { recursive: true });
    await using empty = await databaseFor();
    const lost = await command('train', '--resume', at('lost'), '--store', empty.url);
    expect(lost.stderr).toMatch(/FILE_NOT_FOUND.* holds no run/);
  });

  it('is viewed while it goes on, and marked from the page', async () => {
    const run = at('viewed');
    await using shown = new ShownRun('0', run);
    const seen: number[] = [];
    const settings = { entry: home.entry, steps: STEPS, group: 4, groupsPerStep: 2, evalEvery: 0, run, store: url };
    const looks: Promise<unknown>[] = [];
    await train(settings, (event: RunEvent) => {
      if (event.type === 'step-end') looks.push(shown.matching('').then(({ length }) => seen.push(length)));
    });
    await Promise.all(looks);
    expect(seen[0]).toBeGreaterThan(0);
    await new Promise((resolve) => setTimeout(resolve, 350));
    const all = await shown.matching('');
    expect(all.length).toBeGreaterThanOrEqual(STEPS * 8);
    expect(await shown.info()).toMatchObject({ kind: 'train', state: 'done', steps: STEPS, rollouts: all.length });
    const [{ rolloutId }] = all as [(typeof all)[0]];
    await shown.mark({ rolloutIds: [rolloutId], reason: 'from the page' });
    expect((await shown.rollout(rolloutId)).row.excluded).toBe('from the page');
    expect(await shown.tokens(rolloutId)).toBeInstanceOf(Object);
    await using byId = new ShownRun('1', (await recordIn('viewed')).id, url);
    expect((await byId.matching('')).map((row) => row.rolloutId)).toEqual(all.map((row) => row.rolloutId));
    let link = '';
    await using server = await serveView({ runs: [shown, byId], onLink: (next) => (link ||= next) });
    const headers = await viewKeyOf(link);
    const ask = async (path: string) => (await fetch(`${server.origin}${path}`, { headers })).text();
    const told = await ask('/api/runs');
    expect(JSON.parse(told)).toMatchObject([{ rollouts: all.length }, { kind: 'serve', rollouts: all.length }]);
    const listed = await ask('/api/runs/1/rollouts?filter=excluded');
    printed.push(told, listed);
    expect(JSON.parse(listed)).toMatchObject({ total: all.length });
  });

  it('keeps evaluations and what is served there, too', async () => {
    const flags = ['eval', home.entry, '--run', at('measured'), '--store', url];
    expect((await command(...flags)).stdout).toContain('Every rollout is in postgres://');
    expect(saidIn(await command('eval', '--resume', at('measured'), '--json'))[0]).toMatchObject({ resumedAt: 5 });
    const serving = ['serve', '--run', at('served'), '--store', url, '--json'];
    const { child, ended, first } = await started<{ baseURL: string; apiKey: string; id: string }>(serving);
    const { baseURL, apiKey, id } = first;
    const body = JSON.stringify({ model: 'policy', messages: [{ role: 'user', content: 'hi' }], max_tokens: 4 });
    const headers = { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' };
    expect((await fetch(`${baseURL}/chat/completions`, { method: 'POST', headers, body })).status).toBe(200);
    child.kill('SIGINT');
    const { stdout: said, stderr } = await ended;
    printed.push(said, stderr);
    for (const run of [at('served'), id]) {
      expect(saidIn(await command('show', run, ...(run === id ? ['--store', url] : []), '--json'))).toMatchObject([
        { rolloutId: 'local' },
      ]);
    }
  });

  it.each([
    ['mysql://u:PLANTED-7d21@localhost/x'],
    ['postgres://u:PLANTED-7d21@localhost'],
    ['postgres://u:PLANTED-7d21@[/x'],
    ['PLANTED-7d21'],
  ])('refuses %s by the name of the flag', async (wrong) => {
    for (const args of [
      ['train', home.entry],
      ['eval', home.entry],
      ['serve'],
      ['show', 'x'],
      ['view', 'x'],
      ['diff', 'x', 'y'],
    ]) {
      const { code, stderr } = await command(...args, '--store', wrong);
      expect({ code, stderr }).toMatchObject({ code: 2, stderr: expect.stringContaining('--store: expected the URL') });
    }
  });

  it('keeps a password nowhere', async () => {
    const config = await home.write('own.config.mjs', `export default { entry: 'agent.ts', store: process.env.OWN_STORE };\n`);
    process.env['OWN_STORE'] = url;
    const shown = await trainyard('train', '--config', config, '--print-config');
    delete process.env['OWN_STORE'];
    expect(shown.stdout).toMatch(/^store +postgres/m);
    printed.push(shown.stdout, shown.stderr);
    await rm(config);
    expect(printed.join('')).not.toContain(PASSWORD);
    for (const name of await readdir(home.dir, { recursive: true, withFileTypes: true })) {
      if (!name.isFile() || name.name === 'seen.txt') continue;
      expect((await readFile(join(name.parentPath, name.name))).includes(PASSWORD), name.name).toBe(false);
    }
  });
});
