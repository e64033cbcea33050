/** The grader decides what is learned. Test it before you train: `npm test`. */
import assert from 'node:assert/strict';
import test from 'node:test';
import { gradeOnce } from 'trainyard/graders';
import { grader } from './grader.ts';

const cases: [said: string, value: number][] = [
  ['Wish: returns', 1],
  ['returns.', 1],
  ['Problem: repairs', 0],
  ['returns or repairs', 0],
  ['', 0],
];

for (const [said, value] of cases) {
  test(`${JSON.stringify(said)} earns ${value}`, async () => {
    const grade = await gradeOnce(grader, { said, answer: 'returns' });
    assert.equal(grade.kind === 'graded' && grade.reward.value, value);
  });
}
