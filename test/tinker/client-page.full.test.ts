/** The program in docs/reference/tinker-client.md, run as it stands there against a server of our own. */
import { spawn } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { ROOT, scratch } from '../cli/command.ts';
import { API_KEY, type ServerProcess, startServer } from '../e2e/tinker-server.ts';

let home: Awaited<ReturnType<typeof scratch>>;
let server: ServerProcess;
beforeAll(async () => {
  home = await scratch();
  server = await startServer(home.dir);
});
afterAll(async () => {
  await server.kill();
  await home.remove();
});

it('learns what it sampled', async () => {
  const page = await readFile(join(ROOT, 'docs/reference/tinker-client.md'), 'utf8');
  const [, program] = /```ts\n([\s\S]*?)```/.exec(page)!;
  const path = await home.write('client.ts', program!);
  const child = spawn(process.execPath, ['--conditions=trainyard-source', path], {
    cwd: ROOT,
    env: { ...process.env, TINKER_BASE_URL: server.baseURL, TINKER_API_KEY: API_KEY },
  });
  let said = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => {
      said += text;
    });
  }
  const code = await new Promise((resolve) => child.on('close', resolve));
  expect({ code, said }).toMatchObject({ code: 0 });
  const losses = said
    .trim()
    .split('\n')
    .map((line) => Number(line.split(' ')[1]));
  expect(losses).toHaveLength(3);
  expect(losses[2]).toBeLessThan(losses[0]!);
});
