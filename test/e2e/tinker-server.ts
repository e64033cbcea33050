/** The real `trainyard tinker` in a process of its own, at a port that it can be started at again. */
import { join } from 'node:path';
import { start } from '../cli/command.ts';

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
  const { child, ended, prints, stdout } = start(['tinker', ...flags]);
  await prints('\n');
  const { baseURL } = JSON.parse(stdout().split('\n')[0]!) as { readonly baseURL: string };
  return {
    baseURL,
    port: Number(new URL(baseURL).port),
    kill: async () => {
      child.kill('SIGKILL');
      await ended;
    },
  };
}
