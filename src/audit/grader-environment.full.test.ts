/** A grader's environment variables: found missing before a rollout is spent, and never repeated. */
import { afterAll, describe, expect, it } from 'vitest';
import { useScratch } from '../../test/cli/command.ts';
import { defineGrader } from '../core/define.ts';
import { gated, weighted } from '../graders/compose.ts';
import { judge } from '../graders/judge.ts';
import { exactMatch } from '../graders/text-match.ts';
import { openGrader } from '../run/parts.ts';
import { inspectFiles } from '../run/preflight.ts';
import { EVAL_DEFAULTS } from '../settings/setting-rows.ts';

const NAME = 'TRAINYARD_TEST_JUDGE_KEY';
const asking = judge({ model: { baseURL: 'http://localhost:1', model: 'm', apiKeyEnv: NAME }, instructions: 'Judge.' });
const { signal } = new AbortController();

const home = useScratch();
afterAll(() => void delete process.env[NAME]);

describe('a variable that a grader needs', () => {
  it('is missing before anything is graded, however the judge is put together', async () => {
    delete process.env[NAME];
    const message = expect.stringMatching(new RegExp(`needs the environment variable ${NAME}, which is not set$`));
    const missing = { code: 'GRADER_INIT_FAILED', message };
    for (const grader of [asking, gated(exactMatch(), asking), weighted({ a: [exactMatch(), 1], b: [asking, 1] })])
      await expect(openGrader(EVAL_DEFAULTS, grader, undefined, signal)).rejects.toMatchObject(missing);
    process.env[NAME] = ' ';
    await expect(openGrader(EVAL_DEFAULTS, asking, undefined, signal)).rejects.toMatchObject(missing);
    process.env[NAME] = 'sk-1';
    await using runner = await openGrader(EVAL_DEFAULTS, asking, undefined, signal);
    expect(runner).toHaveProperty('warning');
  });

  it('is a warning of preflight, which may look at it elsewhere', async () => {
    const entry = await home.write(
      'agent.ts',
      `import { defineWorkflow } from 'trainyard';
      import { judge } from 'trainyard/graders';
      export default defineWorkflow(async () => 'done');
      export const grader = judge({ model: { baseURL: 'http://localhost:1', model: 'm', apiKeyEnv: '${NAME}' }, instructions: 'x' });`,
    );
    delete process.env[NAME];
    const { problems, warnings } = await inspectFiles({ entry });
    expect(problems).toEqual([]);
    const message = `the grader judge(m) needs the environment variable ${NAME}, which is not set here`;
    expect(warnings).toEqual([{ code: 'GRADER_ENV_MISSING', message }]);
    process.env[NAME] = 'sk-1';
    expect((await inspectFiles({ entry })).warnings).toEqual([]);
  });

  it('is a name: a key in its place is refused and not repeated', () => {
    for (const needsEnv of ['KEY', ['sk-hunter2']] as unknown as string[][]) {
      expect(() => defineGrader({ needsEnv, grade: () => 1 })).toThrow(
        expect.objectContaining({ code: 'GRADER_INVALID', message: expect.not.stringContaining('hunter2') }),
      );
    }
    expect(defineGrader({ needsEnv: ['KEY'], grade: () => 1 })).toMatchObject({ needsEnv: ['KEY'] });
  });
});
