import { execFile } from 'node:child_process';
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, it } from 'vitest';
import { sharedFolder } from '../../test/fixtures/folder.ts';

const source = JSON.stringify(new URL('./limits.ts', import.meta.url).href);
const folder = sharedFolder();

/** What a process printed that made folders of these kinds among the temporary files in `parent`, and was killed if that was asked. */
async function making(kinds: readonly string[], { parent = folder, isKilled = false } = {}): Promise<readonly string[]> {
  const script = `const { temporaryFolder } = await import(${source});
for (const kind of ${JSON.stringify(kinds)}) try { console.log(temporaryFolder(kind)); } catch ({ code, message, hint }) { console.log(code, message, hint); }
if (${isKilled}) process.kill(process.pid, 'SIGKILL');`;
  const env = { ...process.env, TMPDIR: parent };
  const running = promisify(execFile)(process.execPath, ['--input-type=module', '-e', script], { env });
  const { stdout } = await running.catch((thrown: { stdout: string }) => thrown);
  return stdout.trim().split('\n');
}

describe('a temporary folder', () => {
  it('that a killed process left is removed by the next one that makes such a folder, and no other is', async () => {
    const [left = '', other = ''] = await making(['kind', 'other'], { isKilled: true });
    writeFileSync(join(left, 'file'), 'text');
    const [made = '', again = ''] = await making(['kind', 'kind']);
    expect([left, other, made, again].map((path) => existsSync(path))).toEqual([false, true, true, true]);
    expect(made).not.toBe(again);
  });

  it('that cannot be made says where, and what to do', async () => {
    const [said] = await making(['kind'], { parent: join(folder, 'not there') });
    expect(said).toMatch(/^FILE_NOT_FOUND no temporary folder can be made in .*not there: ENOENT.* set TMPDIR to a folder/);
  });
});
