/** The grader decides what is learned. Test it before you train: `npm test`. */
import assert from 'node:assert/strict';
import test from 'node:test';
import { gradeOnce } from 'trainyard/graders';
import { grader } from './grader.ts';

const cases: [said: string, value: number][] = [
  ['That is $184.', 1],
  ['184', 1],
  ['That is $1840.', 0],
  ['It is 183, 184 or 185.', 0],
  ['', 0],
];

for (const [said, value] of cases) {
  test(`${JSON.stringify(said)} earns ${value}`, async () => {
    const grade = await gradeOnce(grader, { said, answer: 184 });
    assert.equal(grade.kind === 'graded' && grade.reward.value, value);
  });
}
