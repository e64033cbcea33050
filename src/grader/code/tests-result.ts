/** What running tests on code comes to, whatever the language. */
import type { CodeTests } from './tests-of.ts';

export type TestsResult =
  /** One for each test, in order. */
  | { readonly kind: 'ran'; readonly passed: readonly boolean[]; readonly why: readonly string[] }
  /** The tests themselves cannot be run: not the code's fault. */
  | { readonly kind: 'fault'; readonly why: string };

export interface CodeRun {
  readonly code: string;
  readonly tests: CodeTests;
  /** For all tests together. */
  readonly timeoutMs: number;
  readonly memoryMb: number;
  /** Between floating-point numbers, relative and absolute. */
  readonly tolerance: number;
  readonly signal?: AbortSignal | undefined;
}

/** All tests failed, for one reason. */
export function allFailed({ tests }: CodeTests, why: string): TestsResult {
  return { kind: 'ran', passed: tests.map(() => false), why: tests.map(() => why) };
}

/** Whether a program printed what was expected: spaces at the ends of lines and blank lines at the end do not count. */
export function samePrinted(printed: string, expected: string): boolean {
  const found = lines(printed);
  const wanted = lines(expected);
  return found.length === wanted.length && found.every((line, index) => line === wanted[index]);
}

function lines(printed: string): readonly string[] {
  // No expression for the end: one would take the square of the length for a text that is mostly spaces.
  return printed
    .trimEnd()
    .split(/\r?\n/)
    .map((line) => line.trimEnd());
}
