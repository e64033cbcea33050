/** The code grader against its table of cases in Python; in a file of its own, so that the two run side by side. */
import { describe } from 'vitest';
import { testCases } from '../../../test/fixtures/graders/graded-code.ts';

describe('unitTests() of Python, case by case', () => testCases('python'));
