/** The key of `trainyard tinker`, where nobody chose one. */
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { started, useScratch } from './command.ts';

const home = useScratch();

async function keyOf(state: string): Promise<string> {
  const flags = ['tinker', '--state', state, '--threads', '1', '--json'];
  const { child, ended, first } = await started<{ readonly apiKey: string }>(flags, undefined, 'unset TINKER_API_KEY');
  child.kill('SIGKILL');
  await ended;
  return first.apiKey;
}

it('is the state folder’s: the same after a restart, another elsewhere, readable by nobody else', async () => {
  const first = await keyOf(join(home.dir, 'a'));
  expect(first).toMatch(/^tml-[0-9a-f]{32}$/);
  expect(await keyOf(join(home.dir, 'a'))).toBe(first);
  expect(await keyOf(join(home.dir, 'b'))).not.toBe(first);
  expect((await stat(join(home.dir, 'a', 'api-key'))).mode & 0o777).toBe(0o600);
});
