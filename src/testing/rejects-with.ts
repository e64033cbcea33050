/** A promise that must be rejected with an error of ours: its code, what it says, and that it says what to do. */
import assert from 'node:assert/strict';
import { type ErrorCode, TrainyardError } from '../core/errors.ts';

export async function rejectsWith(code: ErrorCode, promise: Promise<unknown>, message = /./): Promise<void> {
  await assert.rejects(promise, (thrown: unknown) => {
    assert.ok(thrown instanceof TrainyardError, `expected a TrainyardError, found ${String(thrown)}`);
    assert.equal(thrown.code, code, thrown.message);
    assert.match(thrown.message, message);
    assert.ok(thrown.hint, `${code} says what happened but not what to do`);
    return true;
  });
}
