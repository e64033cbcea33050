import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, describe, expect, it } from 'vitest';
import { sharedFolder } from '../../test/fixtures/folder.ts';
import { inputFor } from '../../test/fixtures/grader/input-for.ts';
import { eventually } from '../../test/fixtures/grader/processes.ts';
import { refusal } from '../../test/fixtures/refusal.ts';
import { PooledProcess, startError } from '../processes/process-pool.ts';
import { graderProgram, openGraderPool } from './pool.ts';

const folder = sharedFolder();
const permit = join(folder, 'permit');
process.env.TEST_PERMIT_FILE = permit;

afterEach(() => {
  for (const file of [permit, `${permit}.imports`]) rmSync(file, { force: true });
});

const fixture = (name: string): string => new URL(`../../test/fixtures/grader/${name}.ts`, import.meta.url).href;

describe('opening a pool', () => {
  const refusals: readonly [string, string, string, RegExp][] = [
    ['throws-on-import', 'grader', 'GRADER_FAILED', /throws-on-import\.ts cannot be imported: .*the licence file is missing/],
    ['exits-on-import', 'grader', 'GRADER_FAILED', /exited with code 0, having printed:\nnothing to do here\n while importing/],
    ['no-such-module', 'grader', 'GRADER_FAILED', /cannot be imported: .*Cannot find module/],
    ['opens-pool-on-import', 'grader', 'GRADER_FAILED', /a grader pool was opened inside a grading process/],
    ['obedient', 'missing', 'GRADER_NOT_FOUND', /export "missing" .* is not a grader; it exports echo, notAGrader, obedient/],
    ['obedient', 'notAGrader', 'GRADER_NOT_FOUND', /export "notAGrader"/],
  ];
  for (const [module, exportName, code, message] of refusals) {
    it(`on ${module}, export ${exportName}, rejects with ${code}`, async () => {
      const opening = openGraderPool({ module: fixture(module), exportName, workers: 2 });
      await expect(opening).rejects.toMatchObject({ code, message: expect.stringMatching(message), hint: expect.any(String) });
    });
  }

  it('gives up on a module whose import never ends', async () => {
    const program = graderProgram(fixture('hangs-on-import'), 'grader');
    const child = new PooledProcess(program);
    const failure = await child.ready(300);
    expect(failure && startError(failure, program.words)).toMatchObject(refusal('GRADER_TIMEOUT', /within 300 ms/));
    await child.gone;
    expect(child.ending).toMatch(/killed by SIGKILL/);
  });

  it('refuses numbers that mean nothing', async () => {
    const counts = [{ workers: 0 }, { workers: 1.5 }, { retries: -1 }, { retries: 0.5 }];
    const limits = [{ deadlineMs: 0 }, { deadlineMs: Number.POSITIVE_INFINITY }, { memoryMb: 1 }, { memoryMb: Number.NaN }];
    for (const wrong of [...counts, ...limits]) {
      const opening = openGraderPool({ module: fixture('obedient'), exportName: 'echo', ...wrong });
      await expect(opening).rejects.toMatchObject({ code: 'USAGE' });
    }
  });
});

describe('a module that stops being importable while the pool is open', () => {
  const module = fixture('importable-while-a-file-exists');

  it('fails the queued gradings with the import error, and is tried again after a rest', async () => {
    writeFileSync(permit, '');
    await using pool = await openGraderPool({ module, exportName: 'grader', workers: 1 });
    rmSync(permit);
    const [crashed, queued] = await Promise.all([pool.grade(inputFor('0')), pool.grade(inputFor('1'))]);
    expect(crashed).toMatchObject({ code: 'GRADER_FAILED', message: expect.stringMatching(/exited with code 5/) });
    expect(queued).toMatchObject({ code: 'GRADER_FAILED', message: expect.stringMatching(/cannot be imported.*ENOENT/) });
    expect(await pool.grade(inputFor('2'))).toEqual(queued);

    writeFileSync(permit, '');
    await sleep(1_100);
    expect(await pool.grade(inputFor('3'))).toMatchObject({ message: expect.stringMatching(/exited with code 5/) });
  });

  it('does not restart for ever a process that dies after each start without being asked', async () => {
    writeFileSync(permit, 'idle-death');
    await using pool = await openGraderPool({ module, exportName: 'grader', workers: 1 });
    const imports = (): number => readFileSync(`${permit}.imports`, 'utf8').length;
    expect(await eventually(() => imports() === 3)).toBe(true);
    await sleep(2_000);
    expect(imports()).toBe(3);
    // A grading makes the slot try again; the grader of this module ends its process, one way or the other.
    expect(await pool.grade(inputFor('0'))).toMatchObject({ code: 'GRADER_FAILED' });
    expect(imports()).toBeGreaterThan(3);
  });
});
