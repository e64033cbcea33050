/**
 * `trainyard tinker` in a process of its own, as its users start it, and our client of it. Ends with a signal.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import type { LlamaConfig } from '../../src/engines/embedded/model/config.ts';
import { TinkerConnection } from '../../src/engines/tinker/client/connection.ts';
import { TinkerEngine } from '../../src/engines/tinker/client/tinker-engine.ts';
import { TinkerTrainer } from '../../src/engines/tinker/client/tinker-trainer.ts';
import type { Stall } from './stalls.ts';

const fromHere = (path: string): string => fileURLToPath(new URL(path, import.meta.url));

interface Serving {
  readonly type: string;
  readonly baseURL: string;
  readonly apiKey: string;
  readonly baseModel: string;
}

export class Served implements AsyncDisposable {
  readonly serving: Serving;
  readonly #child: ChildProcess;

  private constructor(child: ChildProcess, serving: Serving) {
    this.#child = child;
    this.serving = serving;
  }

  static async start(model: string, state: string, threads: number): Promise<Served> {
    const node = ['--conditions=trainyard-source', '--import', fromHere('./stalls.ts'), fromHere('../../src/cli/main.ts')];
    const args = ['tinker', '--json', '--model', model, '--state', state, '--port', '0', '--threads', String(threads)];
    const child = spawn(process.execPath, [...node, ...args], { stdio: ['ignore', 'pipe', 'inherit', 'ipc'] });
    const ended = once(child, 'exit').then(([code]) => Promise.reject(new Error(`trainyard tinker ended with ${code}`)));
    ended.catch(() => undefined);
    const lines = createInterface({ input: child.stdout! });
    const [line] = (await Promise.race([once(lines, 'line'), ended])) as [string];
    lines.on('line', (later) => console.log(`server: ${later}`));
    return new Served(child, JSON.parse(line) as Serving);
  }

  /** Of the server's event loop, since the last call. */
  async longestStall(): Promise<Stall> {
    this.#child.send('stall');
    const [longest] = (await once(this.#child, 'message')) as [Stall];
    return longest;
  }

  /** Milliseconds that the server has computed so far. */
  async computedMs(): Promise<number> {
    this.#child.send('computed');
    const [ms] = (await once(this.#child, 'message')) as [number];
    return ms;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const ended = once(this.#child, 'exit');
    this.#child.kill('SIGTERM');
    await ended;
  }
}

export interface Client extends AsyncDisposable {
  readonly engine: TinkerEngine;
  readonly trainer: TinkerTrainer;
}

export async function connect(
  { baseURL, apiKey, baseModel }: Serving,
  { vocabSize, contextLength }: LlamaConfig,
): Promise<Client> {
  const connection = await TinkerConnection.open({ baseURL, apiKey });
  const samplingSessionId = await connection.createSamplingSession({ baseModel });
  const engine = new TinkerEngine({ connection, vocabSize, contextLength, samplingSessionId, policyVersion: 0 });
  const onPublished = (id: string, version: number): void => engine.serve(id, version);
  const trainer = new TinkerTrainer({ connection, baseModel, loraRank: 32, seed: 1, vocabSize, contextLength, onPublished });
  const dispose = async (): Promise<void> => {
    await trainer[Symbol.asyncDispose]();
    await connection[Symbol.asyncDispose]();
  };
  return { engine, trainer, [Symbol.asyncDispose]: dispose };
}
