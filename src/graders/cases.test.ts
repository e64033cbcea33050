/** The built-in graders against the tables in `test/fixtures/graders`: right answers that must pass and wrong ones that must not. */
import { describe, expect, it } from 'vitest';
import { grader as countdown } from '../../examples/graders/countdown.ts';
import { gradeOf } from '../../test/fixtures/grader/rollout-input.ts';
import type { GradedCase } from '../../test/fixtures/graders/case.ts';
import { CHOICE_CASES } from '../../test/fixtures/graders/choice-cases.ts';
import { LAST_NUMBER_CASES, MARKED_CASES, MATH_CASES } from '../../test/fixtures/graders/math-cases.ts';
import { MATH_VALUE_CASES } from '../../test/fixtures/graders/math-value-cases.ts';
import {
  EXACT_CASES,
  NEAR_NUMBER_CASES,
  NORMALISED_CASES,
  NUMBER_CASES,
  STRICT_NUMBER_CASES,
} from '../../test/fixtures/graders/text-cases.ts';
import type { Grader } from '../core/contracts.ts';
import { mathMatch } from './math/math-match.ts';
import { multipleChoice } from './multiple-choice.ts';
import { numberMatch } from './number-match.ts';
import { exactMatch, normalisedMatch } from './text-match.ts';

const graded = (grader: Grader, { said, answer, metadata }: GradedCase) =>
  gradeOf(grader, { said, task: { id: 't', prompt: [], answer, ...(metadata === undefined ? {} : { metadata }) } });

const TABLES: readonly (readonly [string, Grader, readonly GradedCase[]])[] = [
  ['exactMatch()', exactMatch(), EXACT_CASES],
  ['normalisedMatch()', normalisedMatch(), NORMALISED_CASES],
  ['numberMatch()', numberMatch(), NUMBER_CASES],
  ['numberMatch({ strict })', numberMatch({ strict: true }), STRICT_NUMBER_CASES],
  ['numberMatch({ absolute, relative })', numberMatch({ absolute: 0.01, relative: 0.001 }), NEAR_NUMBER_CASES],
  ['mathMatch()', mathMatch(), [...MATH_CASES, ...MATH_VALUE_CASES]],
  ["mathMatch({ unmarked: 'wrong' })", mathMatch({ unmarked: 'wrong' }), MARKED_CASES],
  ["mathMatch({ unmarked: 'last-number' })", mathMatch({ unmarked: 'last-number' }), LAST_NUMBER_CASES],
  ['multipleChoice()', multipleChoice(), CHOICE_CASES],
];

describe.each(TABLES)('%s', (_name, grader, cases) => {
  it.each(cases.map((one) => [one.right ? 'right' : 'wrong', one.why, one] as const))('%s: %s', async (_right, _why, one) => {
    expect(await graded(grader, one)).toEqual({ kind: 'graded', reward: { value: one.right ? 1 : 0, success: one.right } });
  });
});

describe('examples/graders/countdown.ts', () => {
  it.each([
    [1, '3 * 5 + 7 + 2'],
    [1, '(7 - 3) * 5 + 2 * 2', [7, 3, 5, 2, 2]],
    [1, '8 / (3 - 8 / 3)', [3, 3, 8, 8]],
    [0.1, '3 * 5 + 7'],
    [0.1, '24'],
    [0.1, '3 * 5 + 7 + 3'],
    [0.1, '3 + 5 + 7 + 2'],
    [0.1, '35 - 7 - 2 - 2'],
    [0, '3 ** 5'],
    [0, '3 * 5 + 7 + 2 # 24'],
    [0, '(3)(5) + 7 + 2'],
    [0, '((3 * 5 + 7 + 2)'],
    [0, '3 / (5 - 7 + 2) - 1 / 0 * 0'],
    [0, 'process.exit()'],
    [0, ''],
    [0, '('.repeat(10_000)],
  ])('gives %s for %s', async (value, said, numbers = [3, 5, 7, 2]) => {
    const found = await gradeOf(countdown, { said: `<answer>${said}</answer>`, answer: { numbers, target: 24 } });
    expect(found).toEqual({ kind: 'graded', reward: { value, success: value === 1 } });
  });
});

describe('the tables', () => {
  const all = TABLES.flatMap(([, , cases]) => cases);

  it('hold hundreds of cases, of which at least four in ten are wrong', () => {
    expect(all.length).toBeGreaterThanOrEqual(650);
    expect(all.filter((one) => !one.right).length / all.length).toBeGreaterThanOrEqual(0.4);
  });

  it('hold no case twice', () => {
    const keys = TABLES.flatMap(([name, , cases]) =>
      cases.map((one) => JSON.stringify([name, one.said, one.answer, one.metadata])),
    );
    expect(keys.filter((key, index) => keys.indexOf(key) !== index)).toEqual([]);
  });
});
