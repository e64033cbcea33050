/** The code grader against its Python cases. A separate file, so that the two languages run in parallel. */
import { testCases } from '../../../test/fixtures/graders/graded-code.ts';

testCases('unitTests() of Python, case by case', 'python');
