/** A grader that does nothing worth measuring. */
import { defineGrader } from '../../src/core/define.ts';

export const trivial = defineGrader(({ task }) => (task.answer === 4 ? 1 : 0));
