/** The code grader against its Python cases. A separate file, so that the two languages run in parallel. */
import { describe } from 'vitest';
import { testCases } from '../../../test/fixtures/graders/graded-code.ts';

describe('unitTests() of Python, case by case', () => testCases('python'));
