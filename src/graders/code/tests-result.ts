/** What running tests on code comes to, whatever the language. */
import type { CodeTests } from './tests-of.ts';

/** Why code failed, as far as that can be told: for people, and never believed. */
export interface Course {
  /** Whether the code could be loaded. Absent: programs are not loaded apart from being run. */
  readonly loaded?: boolean | undefined;
  /** Whether the names that tests use were all there, once it was loaded. */
  readonly defined?: boolean | undefined;
  /** Whether its time was up before the tests were done. */
  readonly timedOut: boolean;
}

export type TestsResult =
  /** One for each test, in order. */
  | { readonly kind: 'ran'; readonly passed: readonly boolean[]; readonly why: readonly string[]; readonly course: Course }
  /** The tests themselves cannot be run: not the code's fault. */
  | { readonly kind: 'fault'; readonly why: string };

export interface CodeRun {
  readonly code: string;
  readonly tests: CodeTests;
  /** For all tests together. */
  readonly timeoutMs: number;
  readonly memoryMb: number;
  /** Where the expected number is not whole: relative to it, absolute below 1. */
  readonly tolerance: number;
  readonly signal?: AbortSignal | undefined;
}

/** All tests failed, for one reason. */
export function allFailed({ tests }: CodeTests, why: string): TestsResult & { kind: 'ran' } {
  return { kind: 'ran', passed: tests.map(() => false), why: tests.map(() => why), course: { timedOut: why === 'timeout' } };
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
