import { type ChildProcess, spawn } from 'node:child_process';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { sharedFolder } from '../../test/fixtures/folder.ts';
import type { Order } from '../../test/fixtures/grader/obedient.ts';
import { eventually, living, saidIn } from '../../test/fixtures/grader/processes.ts';

const program = fileURLToPath(new URL('../../test/fixtures/grader/parent.ts', import.meta.url));
const folder = sharedFolder();

function startParent(workers: number, orders: readonly Order[], nodeArguments: readonly string[] = []): ChildProcess {
  const given = [...nodeArguments, program, 'obedient', String(workers), ...orders.map((order) => JSON.stringify(order))];
  return spawn(process.execPath, given, { stdio: ['ignore', 'pipe', 'inherit'] });
}

async function linesOf(parent: ChildProcess): Promise<readonly unknown[]> {
  let text = '';
  for await (const chunk of parent.stdout!.setEncoding('utf8')) text += chunk;
  return text
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as unknown);
}

describe('the death of the process that opened the pool', () => {
  for (const order of ['never resolve', 'loop forever', 'print forever', 'print now and then'] as const) {
    it(`by SIGKILL ends its graders and what they spawned, while they ${order}`, async () => {
      const pidFile = join(folder, order);
      const parent = startParent(1, [{ do: order, pidFile }]);
      const said = await saidIn(pidFile);
      expect(living(said)).toHaveLength(2);
      parent.kill('SIGKILL');
      expect(await eventually(() => living(said).length === 0)).toBe(true);
    });
  }

  it('by SIGKILL ends idle graders and what they left running', async () => {
    const idleFile = join(folder, 'idle');
    const busyFile = join(folder, 'busy');
    const parent = startParent(2, [
      { do: 'answer 1', pidFile: idleFile },
      { do: 'never resolve', pidFile: busyFile },
    ]);
    const said = [await saidIn(idleFile), await saidIn(busyFile)];
    expect(said.flatMap(living)).toHaveLength(4);
    parent.kill('SIGKILL');
    expect(await eventually(() => said.flatMap(living).length === 0)).toBe(true);
  });

  it('by SIGKILL ends a grader that loops while it is imported', async () => {
    const pidFile = join(folder, 'import');
    const env = { ...process.env, TEST_PID_FILE: pidFile };
    const parent = spawn(process.execPath, [program, 'loops-on-import', '1'], { stdio: 'ignore', env });
    const said = await saidIn(pidFile);
    expect(living(said)).toHaveLength(1);
    parent.kill('SIGKILL');
    expect(await eventually(() => living(said).length === 0)).toBe(true);
  });
});

describe('a program that closes its pool', () => {
  it('ends by itself: nothing is left open, nothing of the graders is on its stdout', async () => {
    const parent = startParent(2, [{ do: 'print garbage' }, { do: 'answer 1' }]);
    const graded = { kind: 'graded', reward: { value: 1 } };
    expect(await linesOf(parent)).toEqual([graded, graded]);
    expect(await eventually(() => parent.exitCode === 0)).toBe(true);
  });

  it('passes its Node arguments on: a heap limit ends the grader that exceeds it, and only that one', async () => {
    const parent = startParent(1, [{ do: 'use up the heap' }, { do: 'answer 1' }], ['--max-old-space-size=48']);
    expect(await linesOf(parent)).toEqual([
      {
        kind: 'failed',
        code: 'GRADER_FAILED',
        message: expect.stringMatching(/(SIGABRT|SIGTRAP|code 134)[\s\S]*heap out of memory/),
      },
      { kind: 'graded', reward: { value: 1 } },
    ]);
  });
});
