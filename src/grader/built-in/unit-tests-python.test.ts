/** The code grader against its table of cases in Python, in the sandbox that this system has. */
import { beforeAll, describe, expect, it } from 'vitest';
import { CODE_CASES, type CodeCase } from '../../../test/fixtures/graders/code-cases.ts';
import { gradedAll } from '../../../test/fixtures/graders/graded-code.ts';

const CASES = CODE_CASES.filter(({ language }) => language === 'python');

describe('unitTests() of Python, case by case', () => {
  let found: ReadonlyMap<CodeCase, unknown>;
  beforeAll(async () => {
    found = await gradedAll(CASES);
  }, 180_000);

  it.each(CASES.map((one) => [one.name, `passes ${Math.round(one.passes * 100)} %`, one] as const))(
    '%s: %s',
    (_name, _share, one) => {
      expect(found.get(one)).toMatchObject({ value: one.passes, success: one.passes === 1 });
    },
  );
});
