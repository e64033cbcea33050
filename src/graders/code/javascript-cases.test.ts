/** The code grader against its table of cases in JavaScript; in a file of its own, so that the two run side by side. */
import { describe } from 'vitest';
import { testCases } from '../../../test/fixtures/graders/graded-code.ts';

describe('unitTests() of JavaScript, case by case', () => testCases('javascript'));
