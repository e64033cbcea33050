/** The key of `trainyard tinker`, where nobody chose one. */
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { scratch, start } from './command.ts';

async function keyOf(state: string): Promise<string> {
  const { child, ended, stdout } = start(
    ['tinker', '--state', state, '--threads', '1', '--json'],
    undefined,
    'unset TINKER_API_KEY',
  );
  while (!stdout().includes('\n')) await new Promise((resolve) => setTimeout(resolve, 10));
  child.kill('SIGKILL');
  await ended;
  return (JSON.parse(stdout().split('\n')[0]!) as { readonly apiKey: string }).apiKey;
}

it('is the state folder’s: the same after a restart, another elsewhere, readable by nobody else', async () => {
  const home = await scratch();
  try {
    const first = await keyOf(join(home.dir, 'a'));
    expect(first).toMatch(/^tml-[0-9a-f]{32}$/);
    expect(await keyOf(join(home.dir, 'a'))).toBe(first);
    expect(await keyOf(join(home.dir, 'b'))).not.toBe(first);
    expect((await stat(join(home.dir, 'a', 'api-key'))).mode & 0o777).toBe(0o600);
  } finally {
    await home.remove();
  }
});
