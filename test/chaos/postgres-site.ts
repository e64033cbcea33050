/**
 * The store of runs under faults in PostgreSQL, with external workers if wanted; every process is behind a line of its own, which fails. A
 * server of its own is killed too, as if the power had failed; one that is given by its URL is only cut off. The check at the end goes around
 * the lines.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { openStore } from '../../src/store/open.ts';
import { type PostgresServer, startPostgres } from '../postgres/server.ts';
import { idOf, type StoreSite } from './chaos.ts';
import { faultProxy } from './fault-proxy.ts';
import { type Fault, LONGEST_FAULT_MS, lineFault } from './faults.ts';

export async function postgresSite(workers: number, given?: string): Promise<StoreSite & AsyncDisposable> {
  const server = given === undefined ? await startPostgres() : undefined;
  const direct = new URL(given ?? server!.url());
  const line = () => faultProxy(Number(direct.port || 5432), direct.hostname);
  const own = await line();
  const others = await Promise.all(Array.from({ length: workers }, line));
  const flags = [own, ...others].map(({ port }) => {
    const behind = new URL(direct);
    [behind.hostname, behind.port] = ['127.0.0.1', `${port}`];
    return ['--store', behind.href];
  });
  return {
    name: workers === 0 ? 'PostgreSQL' : `PostgreSQL with ${workers} workers`,
    workers,
    coordinatorFlags: flags[0]!,
    workerFlags: (i) => flags[i + 1]!,
    faults: [
      // Twice: a line fails in several ways.
      ...[lineFault('coordinator', [own]), lineFault('coordinator', [own])],
      ...(workers === 0 ? [] : [lineFault('worker', others), lineFault('worker', others)]),
      ...(server === undefined ? [] : [serverFault(server)]),
    ],
    open: (run) => openStore(direct.href, idOf(run)),
    async [Symbol.asyncDispose]() {
      await Promise.all([own, ...others].map((proxy) => proxy[Symbol.asyncDispose]()));
      await server?.[Symbol.asyncDispose]();
    },
  };
}

function serverFault(server: PostgresServer): Fault {
  return async (random) => {
    await server.kill();
    await sleep(random.uniform() * LONGEST_FAULT_MS);
    await server.start();
    return 'kill PostgreSQL';
  };
}
