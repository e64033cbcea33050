/** What all suites of conformance share: how a case is made of a sentence, and how a refusal in an error of ours is looked at. */
import assert from 'node:assert/strict';
import { type ErrorCode, TrainyardError } from '../core/errors.ts';

export interface ConformanceCase {
  readonly name: string;
  run(): Promise<void>;
}

/** One case for each sentence. */
export function casesOf<Check>(
  name: string,
  sentences: Readonly<Record<string, Check>>,
  run: (check: Check) => Promise<void>,
): readonly ConformanceCase[] {
  return Object.entries(sentences).map(([sentence, check]) => ({ name: `${name} ${sentence}`, run: () => run(check) }));
}

/** That it rejects with this code, what it says, and that it says what to do. */
export async function rejectsWith(code: ErrorCode, promise: Promise<unknown>, message = /./): Promise<void> {
  await assert.rejects(promise, (thrown: unknown) => {
    assert.ok(thrown instanceof TrainyardError, `expected a TrainyardError, found ${String(thrown)}`);
    assert.equal(thrown.code, code, thrown.message);
    assert.match(thrown.message, message);
    assert.ok(thrown.hint, `${code} says what happened but not what to do`);
    return true;
  });
}
