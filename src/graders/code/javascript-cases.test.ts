/** The code grader against its JavaScript cases. A separate file, so that the two languages run in parallel. */
import { describe } from 'vitest';
import { testCases } from '../../../test/fixtures/graders/graded-code.ts';

describe('unitTests() of JavaScript, case by case', () => testCases('javascript'));
