/** What the harness for JavaScript is told, and what it answers. */
import type { CallTest, StatementTest } from '../tests-of.ts';

/** The harness's first line, before any code under test was run. */
export const READY = 'ready';

interface Common {
  readonly code: string;
  readonly timeoutMs: number;
  readonly memoryMb: number;
}

export type HarnessOrder =
  | (Common & { readonly kind: 'program'; readonly inputs: readonly string[] })
  | (Common & {
      readonly kind: 'function';
      readonly tests: readonly (StatementTest | CallTest)[];
      readonly entry: string | null;
      readonly setup: string;
      readonly tolerance: number;
    });

export type HarnessAnswer =
  /** One for each test: '' where it passed. */
  | {
      readonly kind: 'ran';
      readonly why: readonly string[];
      readonly course: { readonly loaded: boolean; readonly defined: boolean; readonly timedOut: boolean };
    }
  /** One for each input. */
  | { readonly kind: 'printed'; readonly results: readonly { readonly why: string; readonly output: string }[] }
  /** The tests cannot be run. */
  | { readonly kind: 'fault'; readonly why: string };
