/** The program in docs/reference/tinker.md, run as it stands there against a server of our own. */
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, it } from 'vitest';
import { ROOT, useScratch } from '../cli/command.ts';
import { API_KEY, useServer } from '../e2e/tinker-server.ts';

const home = useScratch();
const used = useServer(home);

it('learns what it sampled', async () => {
  const page = await readFile(join(ROOT, 'docs/reference/tinker.md'), 'utf8');
  const path = await home.write('client.ts', /```ts\n([\s\S]*?)```/.exec(page)![1]!);
  const env = { ...process.env, TINKER_BASE_URL: used.server.baseURL, TINKER_API_KEY: API_KEY };
  const { stdout } = await promisify(execFile)(process.execPath, ['--conditions=trainyard-source', path], { cwd: ROOT, env });
  const losses = Array.from(stdout.matchAll(/^\d+ (\S+)$/gm), ([, loss]) => Number(loss));
  expect(losses).toHaveLength(3);
  expect(losses[2]).toBeLessThan(losses[0]!);
});
