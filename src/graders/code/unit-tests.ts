/**
 * `unitTests`: runs the code of an answer against the task's tests, in a sandbox, and scores what passed.
 *
 * The code is never believed: verdicts are made where it does not run, from values that it returned or text that it printed. Code that is
 * wrong, hangs, or takes too much is reward 0. A sandbox that fails, and tests that are missing or malformed, are unscorable: not the
 * policy's fault.
 */
import type { Grader, GraderInput, GraderResult } from '../../core/contracts.ts';
import { defineGrader, unscorable } from '../../core/define.ts';
import type { Json } from '../../core/types.ts';
import { poolKind } from '../../processes/channel.ts';
import { openSandbox, type Sandbox } from '../../processes/sandbox.ts';
import { answerOf, checkOptions, type OptionKinds, saidBy, type TextOptions } from '../answers.ts';
import { type CodeLanguage, codeInText } from './code-in-text.ts';
import { pythonHome, runTests, type TestsResult } from './run-tests.ts';
import { testsOf } from './tests-of.ts';

export interface UnitTestsOptions extends TextOptions {
  readonly language: CodeLanguage;
  /** Where the tests are; absent: the task's answer. */
  readonly tests?: (input: GraderInput) => Json;
  /** The function under test, where the task does not name it. */
  readonly entry?: string;
  /** Both mean the same: there is one sandbox, and SANDBOX_MISSING is thrown where there is none. */
  readonly sandbox?: 'required' | 'best';
  /** For all tests of an answer together. Default 10 s. */
  readonly timeoutMs?: number;
  /** Default 256. */
  readonly memoryMb?: number;
  /** The reward is the share of tests that passed, instead of 1 for all and 0 otherwise. */
  readonly partial?: boolean;
  /** In tests of `args`, where the expected number is not whole. Default 1e-6. */
  readonly tolerance?: number;
}

const KINDS: OptionKinds = {
  language: ['javascript', 'python'],
  tests: 'function',
  entry: 'text',
  sandbox: ['required', 'best'],
  timeoutMs: 'count',
  memoryMb: 'count',
  partial: 'boolean',
  tolerance: 'amount',
  of: 'function',
};
const DEFAULT_TIMEOUT_MS = 10_000;
const DEFAULT_MEMORY_MB = 256;
const DEFAULT_TOLERANCE = 1e-6;
/** For starting and ending, beyond the time that the tests have: longer than any limit below, so that slow code is a 0 and no timeout of ours. */
const OWN_MS = 60_000;

/**
 * Throws GRADER_INVALID, and SANDBOX_MISSING where a sandbox is required and not there: when it is made, before anything is graded. Not in
 * the process of a rollout, which imports the entry too and grades nothing: in its sandbox no other can be made.
 */
export function unitTests(options: UnitTestsOptions): Grader {
  checkOptions('unitTests', options, KINDS, () => (options.language === undefined ? ['language is missing'] : []));
  const { language, timeoutMs = DEFAULT_TIMEOUT_MS, memoryMb = DEFAULT_MEMORY_MB, tolerance = DEFAULT_TOLERANCE } = options;
  const open = (): Sandbox => {
    if (language === 'python') pythonHome();
    return openSandbox();
  };
  let sandbox = poolKind() === 'workflow' ? undefined : open();
  return defineGrader({
    name: 'unitTests',
    deadlineMs: timeoutMs + OWN_MS,
    grade: async (input, { signal }) => {
      const given = options.tests === undefined ? answerOf(input) : options.tests(input);
      const tests = testsOf(given ?? null, options.entry, input.task.id);
      const { code, isFenced } = codeInText(saidBy(input, options.of), language);
      sandbox ??= open();
      const result = await runTests(sandbox, language, { code, tests, timeoutMs, memoryMb, tolerance, signal });
      return rewardOf(result, isFenced, input, options);
    },
  });
}

function rewardOf(
  result: TestsResult,
  isFenced: boolean,
  { task }: GraderInput,
  { partial = false }: UnitTestsOptions,
): GraderResult {
  if (result.kind === 'fault') return unscorable(`the tests of task ${JSON.stringify(task.id)} cannot be run: ${result.why}`);
  const total = result.passed.length;
  const passed = result.passed.filter(Boolean).length;
  const success = passed === total;
  const { loaded, defined, timedOut } = result;
  const metrics = {
    ...{ passed, total, fenced: Number(isFenced), timedOut: Number(timedOut) },
    ...(loaded === undefined ? {} : { loaded: Number(loaded) }),
    ...(defined === undefined ? {} : { defined: Number(defined) }),
  };
  return { value: partial ? passed / total : Number(success), success, metrics };
}
