/**
 * The tests of a task, from the forms that data sets have them in. What is malformed is the task's fault, and unscorable: all of it is
 * named at once, and none of it quoted.
 *
 * Forms: a list of statements that fail by throwing; a program that defines `check(candidate)`; a list of `{ input, output }` for programs
 * that read and print; a list of `{ args, expected }` for a function. Or `{ tests, entry?, setup? }` around any of these.
 */
import { z } from 'zod';
import { unscorable } from '../../core/define.ts';
import { isObject } from '../../core/json.ts';
import type { Json } from '../../core/types.ts';

export interface StatementTest {
  readonly source: string;
  /** Whether it defines `check`, to be called with the function under test. */
  readonly checks?: true;
}

export interface CallTest {
  readonly args: readonly Json[];
  readonly expected: Json;
}

export interface ProgramTest {
  readonly input: string;
  readonly output: string;
}

export type CodeTests =
  | { readonly kind: 'program'; readonly tests: readonly ProgramTest[] }
  | {
      readonly kind: 'function';
      readonly tests: readonly (StatementTest | CallTest)[];
      readonly entry: string | undefined;
      readonly setup: string;
    };

const json: z.ZodType<Json> = z.json();
const identifier = z.string().regex(/^[\p{ID_Start}_$][\p{ID_Continue}$]*$/u, 'expected the name of a function');
const text = z.string().refine((value) => value.trim() !== '', 'expected a text that is not empty');
const program = z.strictObject({ input: z.string(), output: z.string() });
const call = z.strictObject({ args: z.array(json), expected: json });

const wrapped = z.object({
  tests: json.optional(),
  test: json.optional(),
  test_list: json.optional(),
  entry: identifier.optional(),
  entry_point: identifier.optional(),
  setup: z.string().optional(),
  test_setup_code: z.string().optional(),
});

/** Throws GRADER_UNSCORABLE. `entry` is used where the task names none. */
export function testsOf(given: Json, entry: string | undefined, taskId: string): CodeTests {
  const fault = (problems: readonly string[]): never =>
    unscorable(`the tests of task ${JSON.stringify(taskId)} cannot be used: ${problems.join('; ')}`);
  const around = isObject(given) ? wrapped.safeParse(given) : undefined;
  if (around !== undefined && !around.success) return fault(problemsIn(around.error, given));
  const said = around?.data ?? {};
  const tests = around === undefined ? given : (said.tests ?? said.test ?? said.test_list);
  const name = said.entry ?? said.entry_point ?? entry;
  const setup = said.setup ?? said.test_setup_code ?? '';
  if (tests === undefined || tests === null) return fault(['there are none']);
  if (typeof tests === 'string') return programOfChecks(tests, name, setup, fault);
  if (!Array.isArray(tests)) return fault([`expected a list or a program, found ${typeof tests}`]);
  if (tests.length === 0) return fault(['the list is empty']);
  const first: Json = tests[0];
  if (typeof first === 'string') {
    const sources = checked(z.array(text), tests, fault);
    return { kind: 'function', tests: sources.map((source) => ({ source })), entry: name, setup };
  }
  if (typeof first === 'object' && first !== null && 'input' in first) {
    return { kind: 'program', tests: checked(z.array(program), tests, fault) };
  }
  const calls = checked(z.array(call), tests, fault);
  if (name === undefined) return fault(['tests of `args` need `entry`, the name of the function to call']);
  return { kind: 'function', tests: calls, entry: name, setup };
}

function programOfChecks(
  source: string,
  entry: string | undefined,
  setup: string,
  fault: (problems: readonly string[]) => never,
): CodeTests {
  if (source.trim() === '') return fault(['the program is empty']);
  const checks = /\bcheck\b/.test(source) && /\b(def|function)\s+check\s*\(|\bcheck\s*=/.test(source);
  if (checks && entry === undefined)
    return fault(['a program that defines `check` needs `entry`, the name of the function to check']);
  return { kind: 'function', tests: [checks ? { source, checks } : { source }], entry, setup };
}

function checked<T>(schema: z.ZodType<T>, value: Json, fault: (problems: readonly string[]) => never): T {
  const result = schema.safeParse(value);
  return result.success ? result.data : fault(problemsIn(result.error, value));
}

const MOST_PROBLEMS = 5;

/** In our words, with tests counted from 1. Kinds of what was found are named, never what it is: tests are answers. */
function problemsIn(error: z.ZodError, given: Json): readonly string[] {
  const all = error.issues.map((issue) => `${placeOf(issue.path)}${faultOf(issue, given)}`);
  return all.length <= MOST_PROBLEMS ? all : [...all.slice(0, MOST_PROBLEMS), `and ${all.length - MOST_PROBLEMS} more`];
}

function placeOf([first, ...rest]: readonly PropertyKey[]): string {
  if (first === undefined) return '';
  const place = typeof first === 'number' ? `test ${first + 1}` : String(first);
  return `${[place, ...rest.map(String)].join(': ')}: `;
}

const KINDS: Readonly<Record<string, string>> = { array: 'a list', string: 'a text', object: 'an object' };

function faultOf(issue: z.core.$ZodIssue, given: Json): string {
  const value = issue.path.reduce<unknown>((at, key) => (at as Readonly<Record<PropertyKey, unknown>> | undefined)?.[key], given);
  const found = Array.isArray(value)
    ? 'a list'
    : value === undefined
      ? 'nothing'
      : value === null
        ? 'null'
        : (KINDS[typeof value] ?? `a ${typeof value}`);
  if (issue.code === 'unrecognized_keys') return `it has no ${issue.keys.map((key) => JSON.stringify(key)).join(', ')}`;
  if (issue.code === 'invalid_type') return `expected ${KINDS[issue.expected] ?? issue.expected}, found ${found}`;
  return issue.code === 'invalid_union' ? `expected a value of JSON, found ${found}` : issue.message;
}
