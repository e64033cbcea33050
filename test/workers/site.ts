/** A coordinator and workers as processes of their own that share a PostgreSQL, for tests that disturb them. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { expect } from 'vitest';
import { ROOT, start, trainyard } from '../cli/command.ts';
import { type Home, smallHome } from '../e2e/small-run.ts';

const STEPS = 2;
/** What differs between workers is in their environment: the code is the same everywhere. */
export const ENTRY = `
import { setTimeout as sleep } from 'node:timers/promises';
import { defineWorkflow } from 'trainyard';
import inner, { grader as graded } from './agent.ts';
export default defineWorkflow(async (ctx) => {
  if (process.env['POISON'] === ctx.task.id) process.kill(process.pid, 'SIGKILL');
  await sleep(Number(process.env['SLOW_MS'] ?? 0));
  return await inner.run(ctx);
});
export const grader = graded;
`;

export type Started = ReturnType<typeof start>;
type Environment = Readonly<Record<string, string>>;

export interface StartOptions {
  readonly env?: Environment;
  /** Default: the site's. */
  readonly url?: string;
  readonly flags?: readonly string[];
  /** Before the command: `ip netns exec …`. */
  readonly within?: readonly string[];
}

export class WorkersSite implements AsyncDisposable {
  readonly home: Home;
  readonly entry: string;
  readonly url: string;
  readonly #started: Started[] = [];

  private constructor(home: Home, entry: string, url: string) {
    [this.home, this.entry, this.url] = [home, entry, url];
  }

  /** With the run `alone`, in one process, to compare with. */
  static async open(url: string): Promise<WorkersSite> {
    const home = await smallHome();
    const site = new WorkersSite(home, await home.write('shared.ts', ENTRY), url);
    expect(await trainyard(...site.flags('alone'))).toMatchObject({ code: 0, stderr: '' });
    return site;
  }

  at(name: string): string {
    return join(this.home.dir, name);
  }

  weights(run: string): Promise<Buffer> {
    return readFile(this.at(`${run}/checkpoints/step-00000${STEPS}/model.safetensors`));
  }

  async expectSameAsAlone(run: string): Promise<void> {
    expect((await this.weights(run)).equals(await this.weights('alone'))).toBe(true);
  }

  flags(run: string): string[] {
    return [...this.home.flags(this.at(run), STEPS).toSpliced(1, 1, this.entry), '--eval-every', '0', '--json'];
  }

  worker({ env = {}, url = this.url, flags = [], within }: StartOptions = {}): Started {
    return this.#start(['worker', '--store', url, '--json', '--concurrency', '4', ...flags], env, within);
  }

  /** With a lease of two seconds. */
  train(run: string, options: StartOptions = {}): Started {
    return this.coordinator([...this.flags(run), '--workers', 'external'], options);
  }

  coordinator(args: readonly string[], { env = {}, url = this.url, within }: StartOptions = {}): Started {
    return this.#start([...args, '--store', url], { TRAINYARD_LEASE_SECONDS: '2', ...env }, within);
  }

  #start(args: readonly string[], env: Environment, within: readonly string[] = []): Started {
    const exports = Object.entries(env).map(([name, value]) => `export ${name}='${value}'`);
    const started = start(args, ROOT, [...exports, `set -- ${within.join(' ')} "$@"`].join('; '));
    this.#started.push(started);
    return started;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const { child } of this.#started) child.kill('SIGKILL');
    await this.home.remove();
  }
}

export async function rows<Row extends pg.QueryResultRow>(sql: string, url: string): Promise<Row[]> {
  const client = new pg.Client({ connectionString: url });
  client.on('error', () => {});
  await client.connect();
  try {
    return (await client.query<Row>(sql)).rows;
  } finally {
    await client.end();
  }
}

export async function until<T>(look: () => Promise<T | undefined>): Promise<T> {
  for (;;) {
    const found = await look().catch(() => undefined);
    if (found !== undefined) return found;
    await sleep(50);
  }
}

/** Resolves when workers have taken so many rollouts. */
export const taken = (count: number, url: string): Promise<true> =>
  until(async () => (await rows('SELECT FROM trainyard.attempts', url)).length >= count || undefined);
