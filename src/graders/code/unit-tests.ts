/**
 * `unitTests`: runs the code of a response against the task's tests, in a sandbox, and scores what passed. The code is never trusted:
 * verdicts are made outside its process, from values it returned or text it printed. Code that is wrong, hangs or exceeds its limits scores
 * 0. A failing sandbox and missing or malformed tests are unscorable: not the policy's fault. Tests are data; those that are code are refused.
 */
import { z } from 'zod';
import type { Grader, GraderInput, GraderResult } from '../../core/contracts.ts';
import { defineGrader, unscorable } from '../../core/define.ts';
import { defined, isObject } from '../../core/json.ts';
import type { Json } from '../../core/types.ts';
import { poolKind } from '../../processes/channel.ts';
import { openSandbox, type Sandbox } from '../../processes/sandbox.ts';
import { answerOf, checkOptions, type OptionKinds, saidBy, type TextOptions } from '../answer-text.ts';
import { type CodeLanguage, type CodeTests, pythonHome, runTests, type TestsResult } from './run-tests.ts';

export interface UnitTestsOptions extends TextOptions {
  readonly language: CodeLanguage;
  /** Reads the tests. Absent: the task's answer. */
  readonly tests?: (input: GraderInput) => Json;
  /** The function under test, if the task does not name it. */
  readonly entry?: string;
  /** For all tests of a response together. Default 10 s. */
  readonly timeoutMs?: number;
  /** Default 256. */
  readonly memoryMb?: number;
  /** The reward is the share of tests passed, instead of 1 for all and 0 otherwise. */
  readonly partial?: boolean;
  /** For tests of `args` whose expected number is not whole. Default 1e-6. */
  readonly tolerance?: number;
}

const OPTIONS: OptionKinds = {
  language: ['javascript', 'python'],
  tests: 'function',
  entry: 'text',
  timeoutMs: 'count',
  memoryMb: 'count',
  partial: 'boolean',
  tolerance: 'amount',
  of: 'function',
};
const DEFAULT_TIMEOUT_MS = 10_000;
const DEFAULT_MEMORY_MB = 256;
const DEFAULT_TOLERANCE = 1e-6;
/** Beyond the tests' time. Longer than every limit inside, so that slow code scores 0 instead of timing out the grader. */
const OWN_MS = 60_000;

/**
 * Throws GRADER_INVALID, or SANDBOX_MISSING if there is no sandbox, before anything is graded. In a rollout's process it opens no sandbox:
 * that process imports the entry but never grades, and sandboxes do not nest.
 */
export function unitTests(options: UnitTestsOptions): Grader {
  checkOptions('unitTests', options, OPTIONS, ['language']);
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
      return rewardOf(result, isFenced, options);
    },
  });
}

function rewardOf(result: TestsResult, isFenced: boolean, { partial = false }: UnitTestsOptions): GraderResult {
  const total = result.passed.length;
  const passed = result.passed.filter(Boolean).length;
  const success = passed === total;
  const { loaded, defined: isDefined, timedOut } = result;
  const known = Object.entries({ fenced: isFenced, timedOut, ...defined({ loaded, defined: isDefined }) });
  const metrics = { passed, total, ...Object.fromEntries(known.map(([name, value]) => [name, Number(value)])) };
  return { value: partial ? passed / total : Number(success), success, metrics };
}

const NAMES: Readonly<Record<CodeLanguage, readonly string[]>> = {
  javascript: ['javascript', 'js', 'mjs', 'cjs', 'node', 'ecmascript'],
  python: ['python', 'py', 'python3', 'python2'],
};

/** The last fenced block of the language, else without a language, else of any, else the whole text. An unclosed fence runs to the end. */
export function codeInText(text: string, language: CodeLanguage): { readonly code: string; readonly isFenced: boolean } {
  const blocks = fencedBlocks(text);
  const own = blocks.findLast(({ name }) => NAMES[language].includes(name));
  const block = own ?? blocks.findLast(({ name }) => name === '') ?? blocks.at(-1);
  return { code: block === undefined ? text : `${block.lines.join('\n')}\n`, isFenced: block !== undefined };
}

interface Block {
  readonly fence: string;
  readonly name: string;
  readonly indent: number;
  readonly lines: string[];
}

/** As in Markdown, a fence closes with at least as many of the same character as opened it. */
function fencedBlocks(text: string): readonly Block[] {
  const blocks: Block[] = [];
  let open: Block | undefined;
  for (const line of text.split(/\r?\n/)) {
    const [, indent = '', fence, rest = ''] = /^(\s*)(`{3,}|~{3,})(.*)$/.exec(line) ?? [];
    if (open !== undefined) {
      if (fence?.startsWith(open.fence) && rest.trim() === '') open = undefined;
      else open.lines.push(line.slice(Math.min(open.indent, line.length - line.trimStart().length)));
    } else if (fence !== undefined && !rest.includes('`')) {
      const [name = ''] = rest.trim().split(/[\s{,:]/);
      open = { fence, name: name.toLowerCase(), indent: indent.length, lines: [] };
      blocks.push(open);
    }
  }
  return blocks;
}

const json: z.ZodType<Json> = z.json();
const identifier = z.string().regex(/^[\p{ID_Start}_$][\p{ID_Continue}$]*$/u, 'expected the name of a function');
const program = z.strictObject({ input: z.string(), output: z.string() });
const call = z.strictObject({ args: z.array(json), expected: json });
/** `test` and `test_list` are where HumanEval and MBPP have their statements. */
const wrapped = z.object({
  tests: json.optional(),
  test: json.optional(),
  test_list: json.optional(),
  entry: identifier.optional(),
});
const AS_DATA =
  'they are code, and only data is compared: write assert add(1, 2) == 3 as { "args": [1, 2], "expected": 3 }, with "entry": "add"';

/**
 * A list of `{ input, output }` for programs; a list of `{ args, expected }` for a function; or `{ tests, entry? }` around either. Throws
 * GRADER_UNSCORABLE naming all that is malformed and quoting none of it.
 */
function testsOf(given: Json, entry: string | undefined, taskId: string): CodeTests {
  const fault = (...problems: readonly string[]): never =>
    unscorable(`the tests of task ${JSON.stringify(taskId)} cannot be used: ${problems.join('; ')}`);
  const checked = <T>(schema: z.ZodType<T>, value: Json): T => {
    const result = schema.safeParse(value);
    return result.success ? result.data : fault(...problemsIn(result.error));
  };
  const around: z.infer<typeof wrapped> = isObject(given) ? checked(wrapped, given) : { tests: given };
  const tests = around.tests ?? around.test ?? around.test_list;
  const name = around.entry ?? entry;
  if (tests === undefined || tests === null) return fault('there are none');
  if ([tests].flat().some((one) => typeof one === 'string')) return fault(AS_DATA);
  if (!Array.isArray(tests)) return fault(`expected a list, found ${typeof tests}`);
  if (tests.length === 0) return fault('the list is empty');
  const first: Json = tests[0];
  if (isObject(first) && 'input' in first) return { kind: 'program', tests: checked(z.array(program), tests) };
  const calls = checked(z.array(call), tests);
  if (name === undefined) return fault('tests of `args` need `entry`, the name of the function to call');
  return { kind: 'function', entry: name, tests: calls };
}

const MOST_PROBLEMS = 5;

/** Counts tests from 1. Names the kinds of values found, never the values: tests are answers. */
function problemsIn({ issues }: z.ZodError): readonly string[] {
  const all = issues.map(({ path: [first, ...rest], message }) => {
    const where = typeof first === 'number' ? `test ${first + 1}` : first;
    return [...(where === undefined ? [] : [where]), ...rest, message].map(String).join(': ');
  });
  return all.length <= MOST_PROBLEMS ? all : [...all.slice(0, MOST_PROBLEMS), `and ${all.length - MOST_PROBLEMS} more`];
}
