/** What only a file can show: processes killed while writing, two of them at once, a full disk, and files that are not ours. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { copyFileSync, existsSync, mkdtempSync, readFileSync, rmSync, statSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { manifestOf, randomTrajectory } from '../../packages/testing/src/trajectories.ts';
import type { RaceSettings } from '../../test/fixtures/store-open-race.ts';
import { writtenBy } from '../../test/fixtures/store-writer.ts';
import { LogSync, openSqliteStore } from './sqlite.ts';
import { openStoreFile } from './sqlite-file.ts';

const WRITER = fileURLToPath(new URL('../../test/fixtures/store-writer.ts', import.meta.url));
const RACER = new URL('../../test/fixtures/store-open-race.ts', import.meta.url);

let folder: string;
let path: string;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'trainyard-sqlite-'));
  path = join(folder, 'store.db');
});

afterEach(() => {
  rmSync(folder, { recursive: true });
});

interface Writer {
  readonly process: ChildProcess;
  /** Everything printed up to the end of the process. */
  readonly ended: Promise<readonly string[]>;
}

/** `onLine` gets the number of lines printed so far. */
function startWriter(command: readonly string[], onLine: (lines: number, child: ChildProcess) => void = () => {}): Writer {
  const [program, ...rest] = command;
  const child = spawn(program!, rest, { stdio: ['ignore', 'pipe', 'inherit'] });
  let printed = '';
  child.stdout.setEncoding('utf8').on('data', (chunk: string) => {
    printed += chunk;
    onLine(printed.split('\n').length - 1, child);
  });
  const ended = once(child, 'close').then(() => printed.split('\n').slice(0, -1));
  return { process: child, ended };
}

function writerCommand(name: string, count: number, ...more: readonly string[]): readonly string[] {
  return [process.execPath, WRITER, path, name, String(count), ...more];
}

async function expectIntact(acknowledged: readonly string[]): Promise<void> {
  const database = new DatabaseSync(path);
  expect(database.prepare('PRAGMA integrity_check').all()).toEqual([{ integrity_check: 'ok' }]);
  expect(database.prepare('PRAGMA foreign_key_check').all()).toEqual([]);
  database.close();

  await using store = await openSqliteStore(path);
  const kept = await store.query();
  const ids = new Set(kept.map((trajectory) => trajectory.rolloutId));
  expect(acknowledged.filter((id) => !ids.has(id))).toEqual([]);
  for (const trajectory of kept) {
    const [name, n] = trajectory.rolloutId.split('/');
    expect(trajectory).toEqual(writtenBy(name!, Number(n)));
  }
}

describe('a writing process', () => {
  it('loses nothing it acknowledged when it is killed, time after time', async () => {
    const acknowledged: string[] = [];
    for (const [round, killAfter] of [1, 30, 100, 7, 250, 60].entries()) {
      const { ended, process: child } = startWriter(writerCommand(`round-${round}`, 1_000_000), (lines, running) => {
        if (lines >= killAfter) running.kill('SIGKILL');
      });
      const printed = await ended;
      expect(child.signalCode).toBe('SIGKILL');
      expect(printed.length).toBeGreaterThanOrEqual(killAfter);
      acknowledged.push(...printed);
      await expectIntact(acknowledged);
    }
  });

  it('shares the file with others, from creating it to the last append', async () => {
    const names = ['one', 'two', 'three'];
    const printed = await Promise.all(names.map((name) => startWriter(writerCommand(name, 80)).ended));
    expect(printed.map((lines) => lines.length)).toEqual([80, 80, 80]);
    await expectIntact(printed.flat());
  });

  it.skipIf(process.platform === 'win32')('fails only the append that does not fit on the disk', async () => {
    // A limit on file size is the full disk an ordinary user can make. 4096 blocks are 2 or 4 MiB, the oversized one is 32.
    const command = ['sh', '-c', 'ulimit -f 4096; exec "$@"', 'sh', ...writerCommand('small', 40, String(2 ** 23))];
    const { ended, process: child } = startWriter(command);
    const printed = await ended;
    expect(child.exitCode).toBe(0);
    expect(printed.filter((line) => !line.startsWith('small/'))).toEqual(['refused STORE_FAILED']);
    expect(printed).toHaveLength(41);
    await expectIntact(printed.filter((line) => line.startsWith('small/')));
  });
});

describe('opening', () => {
  async function makeStore(): Promise<void> {
    await using store = await openSqliteStore(path);
    await Promise.all(Array.from({ length: 20 }, (_, seed) => store.append(randomTrajectory(seed))));
    await store.commit(manifestOf(1, ['rollout-1']));
  }

  function change(sql: string): void {
    const database = new DatabaseSync(path);
    database.exec(sql);
    database.close();
  }

  async function expectRefused(message: RegExp): Promise<void> {
    const before = readFileSync(path);
    await expect(openSqliteStore(path)).rejects.toMatchObject({
      code: 'STORE_FORMAT',
      message: expect.stringMatching(message),
      hint: expect.stringMatching(/\w/),
    });
    expect(readFileSync(path).equals(before)).toBe(true);
  }

  it.each([
    ['a long text', 'not a database at all\n'.repeat(1_000)],
    ['a short text', 'short'],
    ['zeros', '\0'.repeat(8_192)],
  ])('refuses %s and leaves it as it is', async (_, content) => {
    writeFileSync(path, content);
    await expectRefused(/not a SQLite database, expected a Trainyard store/);
  });

  it.each([0.9, 0.5, 0.1, 0.002])('refuses a store cut to %f of its length', async (share) => {
    await makeStore();
    truncateSync(path, Math.floor(statSync(path).size * share));
    await expectRefused(/malformed/);
  });

  it.each([2, 4])('refuses another format version, such as %i, saying which it found and which it reads', async (version) => {
    await makeStore();
    change(`PRAGMA user_version = ${version}`);
    await expectRefused(new RegExp(`found store format version ${version}, expected 3`));
  });

  it('refuses the database of another application', async () => {
    change('CREATE TABLE notes (text)');
    await expectRefused(/another application \(id 0, version 0, 1 tables/);
    change('PRAGMA application_id = 77; DROP TABLE notes');
    await expectRefused(/another application \(id 77/);
  });

  it('refuses an empty file whose write-ahead log still holds data, and does not delete the log', async () => {
    await using store = await openSqliteStore(path);
    await store.append(randomTrajectory(1));
    const orphan = join(folder, 'orphan.db');
    copyFileSync(`${path}-wal`, `${orphan}-wal`);
    await expect(openSqliteStore(orphan)).rejects.toMatchObject({ code: 'STORE_FORMAT', message: expect.stringMatching(/-wal/) });
    expect(statSync(`${orphan}-wal`).size).toBeGreaterThan(0);
  });

  it('creates a store once when many open it at the same instant', async () => {
    const threads = 4;
    const arrived = new Int32Array(new SharedArrayBuffer(4 * 25));
    const problems: string[] = [];
    const ends = Array.from({ length: threads }, (_, thread) => {
      const settings: RaceSettings = { folder, thread, threads, arrived };
      return once(
        new Worker(RACER, { workerData: settings }).on('message', (problem) => problems.push(problem)),
        'exit',
      );
    });
    await Promise.all(ends);
    expect(problems).toEqual([]);
    for (const round of arrived.keys()) {
      await using store = await openSqliteStore(join(folder, `race-${round}.db`));
      expect(await store.count()).toBe(threads);
    }
  });

  it('takes an empty file as a new store', async () => {
    writeFileSync(path, '');
    await using store = await openSqliteStore(path);
    expect(await store.count()).toBe(0);
  });

  it('fails with STORE_FAILED where there is no folder, or a folder in place of the file', async () => {
    await expect(openSqliteStore(join(folder, 'missing', 'store.db'))).rejects.toMatchObject({ code: 'STORE_FAILED' });
    await expect(openSqliteStore(folder)).rejects.toMatchObject({ code: 'STORE_FAILED' });
  });
});

describe('reading', () => {
  it('never returns a trajectory with a flipped bit', async () => {
    {
      await using store = await openSqliteStore(path);
      await store.append(writtenBy('marked', 2));
      await store.append(randomTrajectory(3, { output: 'MARKED-TEXT' }));
    }
    const bytes = readFileSync(path);
    const at = bytes.indexOf('MARKED-TEXT');
    expect(at).toBeGreaterThan(0);
    bytes[at] = bytes[at]! ^ 1;
    writeFileSync(path, bytes);

    await using store = await openSqliteStore(path);
    const damage = { code: 'STORE_FORMAT', message: expect.stringMatching(/digest/) };
    await expect(store.read('rollout-3')).rejects.toMatchObject(damage);
    await expect(store.query()).rejects.toMatchObject(damage);
    expect(await store.read('marked/2')).toEqual(writtenBy('marked', 2));
  });

  it('sees what another open store on the same file acknowledged, and commits no step twice', async () => {
    await using one = await openSqliteStore(path);
    await using two = await openSqliteStore(path);
    await one.append(randomTrajectory(1));
    expect(await two.read('rollout-1')).toEqual(randomTrajectory(1));
    await two.commit(manifestOf(1, ['rollout-1']));
    await expect(one.commit(manifestOf(1, []))).rejects.toMatchObject({ code: 'STORE_CONFLICT' });
    expect(await one.manifests()).toEqual([manifestOf(1, ['rollout-1'])]);
  });
});

describe('durability', () => {
  /** Transactions in the write-ahead log: a frame that ends one carries the size of the database, in its second word. */
  function transactionsIn(log: Buffer): number {
    const frame = 24 + log.readUInt32BE(8);
    let transactions = 0;
    for (let at = 32; at + frame <= log.length; at += frame) {
      if (log.readUInt32BE(at + 4) !== 0) transactions += 1;
    }
    return transactions;
  }

  it('writes what is asked for together in one transaction', async () => {
    await using store = await openSqliteStore(path);
    const before = transactionsIn(readFileSync(`${path}-wal`));
    const many = Array.from({ length: 64 }, (_, seed) => randomTrajectory(seed, { turns: [], output: 'x' }));
    await Promise.all(many.map((trajectory) => store.append(trajectory)));
    expect(transactionsIn(readFileSync(`${path}-wal`)) - before).toBe(1);
    await store.append(randomTrajectory(100));
    await store.append(randomTrajectory(101));
    expect(transactionsIn(readFileSync(`${path}-wal`)) - before).toBe(3);
  });

  it('leaves only the sync after a commit to us, on a new file and on an old one', async () => {
    for (const _ of ['new', 'old']) {
      const database = await openStoreFile(path);
      expect(database.prepare('PRAGMA synchronous').get()).toEqual({ synchronous: 1 });
      expect(database.prepare('PRAGMA journal_mode').get()).toEqual({ journal_mode: 'wal' });
      expect(database.prepare('PRAGMA fullfsync').get()).toEqual({ fullfsync: 1 });
      database.close();
    }
  });

  it('syncs the very log that SQLite writes, and gives its handle back', async () => {
    await expect(new LogSync(join(folder, 'no-such-store')).later()).rejects.toThrow('ENOENT');
    const store = await openSqliteStore(path);
    const log = new LogSync(path);
    await store.append(randomTrajectory(1));
    await log.later();
    log.now();
    log.close();
    log.close();
    await store[Symbol.asyncDispose]();
    expect(existsSync(`${path}-wal`)).toBe(false);
  });
});
