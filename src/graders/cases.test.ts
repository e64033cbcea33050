/** The built-in graders against the tables in `test/fixtures/graders`: right answers that must pass and wrong ones that must not. */
import { describe, expect, it } from 'vitest';
import { gradeOf } from '../../test/fixtures/grader/rollout-input.ts';
import type { GradedCase } from '../../test/fixtures/graders/case.ts';
import { CHOICE_CASES, COUNTDOWN_CASES } from '../../test/fixtures/graders/choice-cases.ts';
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
import { countdown } from './countdown.ts';
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

describe('countdown()', () => {
  it.each(COUNTDOWN_CASES.map((one) => [one.value, one.why, one] as const))('%s: %s', async (value, _why, one) => {
    expect(await graded(countdown(), one)).toEqual({ kind: 'graded', reward: { value, success: one.right } });
  });
});

describe('the tables', () => {
  const all = [...TABLES.flatMap(([, , cases]) => cases), ...COUNTDOWN_CASES];

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
