/**
 * The store of runs under faults in PostgreSQL, behind a line that fails. A server of its own is killed too, as if the power had failed; one that
 * is given by its URL is only cut off. The check at the end goes around the line.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { openStore } from '../../src/store/open.ts';
import { type PostgresServer, startPostgres } from '../postgres/server.ts';
import { type Fault, idOf, LONGEST_FAULT_MS, type Site } from './chaos.ts';
import { type FaultProxy, faultProxy, lineFaults } from './fault-proxy.ts';

export type StoreSite = Pick<Site, 'storeFlags' | 'faults' | 'open'> & AsyncDisposable;

export async function postgresSite(given?: string): Promise<StoreSite> {
  const server = given === undefined ? await startPostgres() : undefined;
  const direct = new URL(given ?? server!.url());
  const proxy = await faultProxy(Number(direct.port || 5432), direct.hostname);
  const behind = new URL(direct);
  [behind.hostname, behind.port] = ['127.0.0.1', `${proxy.port}`];
  return {
    storeFlags: ['--store', behind.href],
    faults: [lineFault(proxy), ...(server === undefined ? [] : [serverFault(server)])],
    open: (run) => openStore(direct.href, idOf(run)),
    async [Symbol.asyncDispose]() {
      await proxy[Symbol.asyncDispose]();
      await server?.[Symbol.asyncDispose]();
    },
  };
}

function lineFault(proxy: FaultProxy): Fault {
  return {
    kind: 'line',
    async make(random) {
      const { mode, cut, milliseconds } = lineFaults(Math.floor(random.uniform() * 2 ** 31), LONGEST_FAULT_MS).next().value;
      proxy.set(mode);
      if (cut) proxy.cut();
      await sleep(milliseconds);
      proxy.set({ kind: 'pass' });
      return true;
    },
  };
}

function serverFault(server: PostgresServer): Fault {
  return {
    kind: 'kill the server',
    async make(random) {
      await server.kill();
      await sleep(random.uniform() * LONGEST_FAULT_MS);
      await server.start();
      return true;
    },
  };
}
