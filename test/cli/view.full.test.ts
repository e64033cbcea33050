/** `trainyard view` and `train --view` as processes of their own. */
import { existsSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { viewKeyOf } from '../fixtures/view-key.ts';
import { ROOT, start, trainyard, useScratch } from './command.ts';

const home = useScratch();

/** Built by `npm run build:page`; where it was not, these stand for it: the page itself has its own tests. */
async function withPage(): Promise<void> {
  const folder = join(ROOT, 'dist/page');
  if (existsSync(join(folder, 'page.js'))) return;
  await mkdir(folder, { recursive: true });
  await writeFile(join(folder, 'page.css'), '');
  await writeFile(join(folder, 'page.js'), '');
}

const isServed = (link: string): Promise<boolean> =>
  fetch(new URL('/', link)).then(
    () => true,
    () => false,
  );

/** The link that a command printed on stderr. */
async function linkOf({ child }: Pick<ReturnType<typeof start>, 'child'>): Promise<string> {
  let said = '';
  child.stderr.on('data', (text: string) => {
    said += text;
  });
  while (!said.includes('token=')) await sleep(20);
  return /http:\S+/.exec(said)![0];
}

it('train --view shows the run while it goes on, leaves stdout to events, and says how to see it again', async () => {
  await withPage();
  const flags = ['--steps', '1', '--group', '2', '--groups-per-step', '1', '--eval-tasks', '2', '--json', '--view'];
  const training = start(['train', 'examples/shop/agent.ts', '--run', join(home.dir, 'shown'), ...flags]);
  const link = await linkOf(training);
  const headers = await viewKeyOf(link);
  expect(await (await fetch(new URL('/api/runs', link), { headers })).json()).toMatchObject([{ state: 'running' }]);
  const { code, stdout, stderr } = await training.ended;
  expect([code, JSON.parse(stdout.trim().split('\n').at(-1)!).type]).toEqual([0, 'done']);
  expect(stderr).toContain('trainyard view');
  while (await isServed(link)) await sleep(50);
});

it('a killed command leaves no view behind', async () => {
  await withPage();
  const training = start(['train', 'examples/shop/agent.ts', '--run', join(home.dir, 'killed'), '--view', '--json']);
  const link = await linkOf(training);
  expect(await isServed(link)).toBe(true);
  training.child.kill('SIGKILL');
  await training.ended;
  while (await isServed(link)) await sleep(50);
});

it.each([
  ['a path that is none', 'does not exist', ['nowhere']],
  ['a folder without runs', 'holds no run', ['examples']],
  ['an address beyond loopback without a token', 'no token was given', ['RUN', '--host', '0.0.0.0']],
  ['a filter without a file', '--export', ['RUN', '--filter', 'success']],
  ['a file of another kind', '.html', ['RUN', '--export', 'page.txt']],
])('%s is refused with exit code 2', async (_, found, args) => {
  await withPage();
  const run = join(home.dir, 'shown');
  const ended = await trainyard('view', ...args.map((word) => (word === 'RUN' ? run : word)));
  expect(ended).toMatchObject({ code: 2, stderr: expect.stringContaining(found) });
});
