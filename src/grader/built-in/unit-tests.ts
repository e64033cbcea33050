/**
 * `unitTests`: runs the code of an answer against the task's tests, in a sandbox, and scores what passed.
 *
 * The code is never believed: verdicts are made where it does not run, from values that it returned or text that it printed. Code that is
 * wrong, hangs, or takes too much is reward 0. A sandbox that fails, and tests that are missing or malformed, are unscorable: not the
 * policy's fault.
 */

import type { Grader, GraderInput, GraderResult } from '../../core/contracts.ts';
import { defineGrader, unscorable } from '../../core/define-grader.ts';
import type { Json } from '../../core/types.ts';
import { openSandbox } from '../../processes/sandbox/sandbox.ts';
import { pythonHome } from '../code/python-home.ts';
import { runTests } from '../code/run-tests.ts';
import { testsOf } from '../code/tests-of.ts';
import type { Verdict } from '../code/verdict.ts';
import { checkOptionNames } from '../option-names.ts';
import { type CodeLanguage, codeInText } from './code-in-text.ts';
import { answerOf, type ReadSaid, saidBy } from './said.ts';

export interface UnitTestsOptions {
  readonly language: CodeLanguage;
  /** Where the tests are; absent: the task's answer. */
  readonly tests?: (input: GraderInput) => Json;
  /** The function under test, where the task does not name it. */
  readonly entry?: string;
  /** `required`, the default: SANDBOX_MISSING where there is none. `best`: takes what there is. */
  readonly sandbox?: 'required' | 'best';
  /** For all tests of an answer together. Default 10 s. */
  readonly timeoutMs?: number;
  /** Default 256. */
  readonly memoryMb?: number;
  /** The reward is the share of tests that passed, instead of 1 for all and 0 otherwise. */
  readonly partial?: boolean;
  /** Between floating-point numbers in tests of `args`. Default 1e-6. */
  readonly tolerance?: number;
  /** Reads something else than the final answer. */
  readonly of?: ReadSaid;
}

const OPTIONS = ['language', 'tests', 'entry', 'sandbox', 'timeoutMs', 'memoryMb', 'partial', 'tolerance', 'of'];
const DEFAULT_TIMEOUT_MS = 10_000;
const DEFAULT_MEMORY_MB = 256;
const DEFAULT_TOLERANCE = 1e-6;
/** For starting and ending, beyond the time that the tests have: longer than any limit below, so that slow code is a 0 and no timeout of ours. */
const OWN_MS = 60_000;

/** Throws GRADER_INVALID, and SANDBOX_MISSING where a sandbox is required and not there: when it is made, before anything is graded. */
export function unitTests(options: UnitTestsOptions): Grader {
  checkOptionNames('unitTests', options, OPTIONS, { faults: () => faultsIn(options) });
  const { language, timeoutMs = DEFAULT_TIMEOUT_MS, memoryMb = DEFAULT_MEMORY_MB, tolerance = DEFAULT_TOLERANCE } = options;
  const sandbox = openSandbox({ level: options.sandbox ?? 'required' });
  if (language === 'python') pythonHome();
  return defineGrader({
    name: 'unitTests',
    deadlineMs: timeoutMs + OWN_MS,
    grade: async (input, { signal }) => {
      const given = options.tests === undefined ? answerOf(input) : options.tests(input);
      const tests = testsOf(given ?? null, options.entry, input.task.id);
      const { code, isFenced } = codeInText(saidBy(input, options.of), language);
      const verdict = await runTests(sandbox, language, { code, tests, timeoutMs, memoryMb, tolerance, signal });
      return rewardOf(verdict, isFenced, input, options);
    },
  });
}

function rewardOf(
  verdict: Verdict,
  isFenced: boolean,
  { task }: GraderInput,
  { partial = false }: UnitTestsOptions,
): GraderResult {
  if (verdict.kind === 'fault') return unscorable(`the tests of task ${JSON.stringify(task.id)} cannot be run: ${verdict.why}`);
  const total = verdict.passed.length;
  const passed = verdict.passed.filter(Boolean).length;
  const success = passed === total;
  const { loaded, defined, timedOut } = verdict.course;
  const metrics = {
    ...{ passed, total, fenced: Number(isFenced), timedOut: Number(timedOut) },
    ...(loaded === undefined ? {} : { loaded: Number(loaded) }),
    ...(defined === undefined ? {} : { defined: Number(defined) }),
  };
  return { value: partial ? passed / total : Number(success), success, metrics };
}

function* faultsIn(options: UnitTestsOptions): Generator<string> {
  const { language, sandbox = 'best', tolerance = 0 } = options;
  if (language !== 'javascript' && language !== 'python') {
    yield `language: expected 'javascript' or 'python', found ${JSON.stringify(language)}`;
  }
  if (sandbox !== 'required' && sandbox !== 'best') {
    yield `sandbox: expected 'required' or 'best', found ${JSON.stringify(sandbox)}`;
  }
  for (const name of ['timeoutMs', 'memoryMb'] as const) {
    const value = options[name] ?? 1;
    if (!(Number.isSafeInteger(value) && value >= 1)) {
      yield `${name}: expected a whole number from 1 up, found ${String(value)}`;
    }
  }
  if (!(Number.isFinite(tolerance) && tolerance >= 0)) {
    yield `tolerance: expected a number from 0 up, found ${String(tolerance)}`;
  }
}
