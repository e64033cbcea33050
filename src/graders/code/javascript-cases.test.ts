/** The code grader against its JavaScript cases. A separate file, so that the two languages run in parallel. */
import { testCases } from '../../../test/fixtures/graders/graded-code.ts';

testCases('unitTests() of JavaScript, case by case', 'javascript');
