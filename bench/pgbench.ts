/**
 * The least that PostgreSQL could do: `pgbench` with one plain INSERT of so many bytes a row, one transaction each, from as many clients as a
 * small server handles well. What stores and queues are measured against. Needs a server that this process has started.
 */
import { execFile } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { binaries, type PostgresServer } from '../test/postgres/server.ts';

const CLIENTS = 8;

export interface Measured {
  readonly perSecond: number;
  readonly ratioToFloor: number;
}

/** Rows a second. */
export async function plainInserts({ port }: PostgresServer, bytes: number, seconds: number): Promise<number> {
  const folder = await mkdtemp(join(tmpdir(), 'trainyard-pgbench-'));
  try {
    const script = join(folder, 'insert.sql');
    await writeFile(script, `INSERT INTO plain (bytes) VALUES (decode('${'07'.repeat(bytes)}', 'hex'));\n`);
    const at = ['-h', '127.0.0.1', '-p', String(port), '-U', 'postgres'];
    const call = promisify(execFile);
    const table = `CREATE TABLE IF NOT EXISTS plain (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, bytes bytea);
      ALTER TABLE plain ALTER bytes SET STORAGE EXTERNAL; TRUNCATE plain`;
    await call(join(binaries()!, 'psql'), [...at, '-c', table, 'postgres']);
    const flags = ['-n', '-f', script, '-c', String(CLIENTS), '-T', String(seconds)];
    const { stdout } = await call(join(binaries()!, 'pgbench'), [...at, ...flags, 'postgres']);
    return Number(/tps = ([\d.]+)/.exec(stdout)?.[1]);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** Prints both and their ratio. */
export function besideFloor(name: string, perSecond: number, floor: number): Measured {
  const ratioToFloor = perSecond / floor;
  console.log(`${name}: ${perSecond.toFixed(0)}/s, its floor ${floor.toFixed(0)}/s, ratio ${ratioToFloor.toFixed(2)}`);
  return { perSecond: Math.round(perSecond), ratioToFloor: Number(ratioToFloor.toFixed(3)) };
}
