/** A grader whose source is edited while a run grades with it: rewards of two graders never stand in one run. */
import { pathToFileURL } from 'node:url';
import { expect, it } from 'vitest';
import { useScratch } from '../../test/cli/command.ts';
import type { GraderInput } from '../core/contracts.ts';
import { defineGrader } from '../core/define.ts';
import { openGrader } from '../run/parts.ts';
import { EVAL_DEFAULTS } from '../settings/setting-rows.ts';

const home = useScratch();

const said = (output: string): GraderInput => ({
  ...{ task: { id: 't', prompt: [] }, messages: [], threads: {}, turns: [], output, result: {} },
  ...{ truncated: undefined, artifactsDir: null },
});

it('grades on with the processes that imported it, and fails by name once they are gone', async () => {
  await home.write('value.ts', 'export const value = 1;');
  const source = `import { defineGrader } from 'trainyard'; import { value } from './value.ts';
    export const grader = defineGrader(({ output }) => { if (output === 'crash') process.exit(3); return value; });`;
  const url = pathToFileURL(await home.write('grader.ts', source)).href;
  const settings = { ...EVAL_DEFAULTS, graderWorkers: 1, graderRetries: 0 };
  const { signal } = new AbortController();
  await using runner = await openGrader(
    settings,
    defineGrader(() => 0),
    { url, exportName: 'grader' },
    signal,
  );
  await home.write('value.ts', 'export const value = 0.5;');
  expect(await runner.grade(said('fine'))).toEqual({ kind: 'graded', reward: { value: 1 } });
  expect(await runner.grade(said('crash'))).toMatchObject({ kind: 'failed', code: 'GRADER_FAILED' });
  expect(await runner.grade(said('fine'))).toMatchObject({
    kind: 'failed',
    message: expect.stringMatching(/value\.ts has changed since the run began; put it back as it was, or begin a new run$/),
  });
});
