/** A source of tasks that never ends must end in words and not in a crash. */
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { expect, it } from 'vitest';

it('a source that never ends, or is too large for the memory, ends in words', async () => {
  const script = `
    import { readTasks } from ${JSON.stringify(new URL('./tasks.ts', import.meta.url).href)};
    const rows = (function* () { for (let i = 0; ; i++) yield { prompt: 'question ' + i + ' lorem ipsum'.repeat(10_000) }; })();
    await readTasks(rows).catch((error) => console.log(error.code, error.message, error.hint));`;
  const args = ['--max-old-space-size=200', '--input-type=module', '-e', script];
  const { stdout } = await promisify(execFile)(process.execPath, args);
  expect(stdout).toMatch(/^DATASET_INVALID the list: the first \d+ rows take more than \d+ MiB of memory .*--max-old-space-size/);
}, 30_000);
