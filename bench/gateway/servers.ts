/**
 * Starts the processes of this benchmark and talks to them: each child says its port when it is ready, answers one order at a time,
 * and ends when the channel closes. Portkey's gateway is started as its users start it and ended by a signal.
 */
import { type ChildProcess, fork, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { Connection } from './connection.ts';
import { PORTKEY } from './packages.ts';
import type { Door, Order } from './served.ts';

const READY_WITHIN_MS = 60_000;
/** Of the times in /proc; the same on every Linux that Node runs on. */
const MICROSECONDS_PER_TICK = 10_000;

export class Server implements Disposable {
  readonly port: number;
  readonly #child: ChildProcess;

  constructor(port: number, child: ChildProcess) {
    this.port = port;
    this.#child = child;
  }

  /** CPU time so far, microseconds; not a number where the system does not tell. */
  get cpu(): number {
    try {
      const [, after = ''] = readFileSync(`/proc/${this.#child.pid}/stat`, 'latin1').split(') ');
      const fields = after.split(' ');
      return (Number(fields[11]) + Number(fields[12])) * MICROSECONDS_PER_TICK;
    } catch {
      return Number.NaN;
    }
  }

  async order<T>(order: Order | { readonly kind: 'let go' }): Promise<T> {
    this.#child.send(order);
    const [answer] = (await once(this.#child, 'message')) as [T];
    return answer;
  }

  open(count: number): Promise<readonly Door[]> {
    return this.order({ kind: 'open', count });
  }

  [Symbol.dispose](): void {
    if (this.#child.connected) this.#child.disconnect();
    else this.#child.kill();
  }
}

/** `name` is a file of this folder. */
export async function startChild(name: string, ...args: readonly (string | number)[]): Promise<Server> {
  const child = fork(fileURLToPath(new URL(`./${name}.ts`, import.meta.url)), args.map(String));
  const failed = once(child, 'exit').then(() => Promise.reject(new Error(`${name} ended before it was ready`)));
  const [port] = (await Promise.race([once(child, 'message'), failed])) as [number];
  failed.catch(() => undefined);
  return new Server(port, child);
}

export async function startPortkey(): Promise<Server> {
  const port = await freePort();
  const child = spawn(process.execPath, [PORTKEY, `--port=${port}`], { stdio: 'ignore' });
  const until = Date.now() + READY_WITHIN_MS;
  while (!(await answers(port))) {
    if (child.exitCode !== null || Date.now() > until) throw new Error('Portkey did not come up');
    await sleep(100);
  }
  return new Server(port, child);
}

async function answers(port: number): Promise<boolean> {
  const connection = new Connection(port);
  try {
    await connection.ask('GET / HTTP/1.1\r\nhost: localhost\r\n', Buffer.alloc(0));
    return true;
  } catch {
    return false;
  } finally {
    connection.close();
  }
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}
