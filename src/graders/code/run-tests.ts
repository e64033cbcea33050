/** Tests of code in either language. A sandbox that could not be set up says nothing about the code, and is unscorable. */
import { unscorable } from '../../core/define.ts';
import { TrainyardError } from '../../core/errors.ts';
import type { Sandbox } from '../../processes/sandbox.ts';
import type { CodeLanguage } from '../code-in-text.ts';
import { runJavaScript } from './run-javascript.ts';
import { runPython } from './run-python.ts';
import type { CodeRun, TestsResult } from './tests-result.ts';

/** Throws GRADER_UNSCORABLE, and CANCELLED when the signal aborts. */
export async function runTests(sandbox: Sandbox, language: CodeLanguage, run: CodeRun): Promise<TestsResult> {
  try {
    return await (language === 'python' ? runPython(sandbox, run) : runJavaScript(sandbox, run));
  } catch (error) {
    if (error instanceof TrainyardError && error.code === 'SANDBOX_FAILED') return unscorable(error.message);
    throw error;
  }
}
