/** The real `trainyard tinker` in a process of its own, at a port that it can be started at again. */
import { join } from 'node:path';
import { afterAll, beforeAll } from 'vitest';
import { started } from '../cli/command.ts';

export const API_KEY = 'tml-test-0123456789abcdef';

export interface ServerProcess {
  readonly baseURL: string;
  readonly port: number;
  /** kill -9. */
  kill(): Promise<void>;
}

/** Without a port: any free one. The same folder gives a server that knows what an earlier one saved. */
export async function startServer(folder: string, port = 0): Promise<ServerProcess> {
  const flags = ['--port', `${port}`, '--api-key', API_KEY, '--state', join(folder, 'state'), '--threads', '1', '--json'];
  const { child, ended, first } = await started<{ readonly baseURL: string }>(['tinker', ...flags]);
  const { baseURL } = first;
  return {
    baseURL,
    port: Number(new URL(baseURL).port),
    kill: async () => {
      child.kill('SIGKILL');
      await ended;
    },
  };
}

/** One for all tests of a file, which may put another in its place. */
export function useServer(home: { readonly dir: string }): { server: ServerProcess } {
  const used = {} as { server: ServerProcess };
  beforeAll(async () => {
    used.server = await startServer(home.dir);
  });
  afterAll(() => used.server.kill());
  return used;
}
