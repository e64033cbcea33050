/** `trainyard/graders`: graders that ship with Trainyard, and what they are put together with. */
export { rejected, unscorable } from './core/define-grader.ts';
export { type UnitTestsOptions, unitTests } from './grader/built-in/unit-tests.ts';
export type { SandboxEnd, SandboxLimits, SandboxProgram, SandboxResult } from './processes/sandbox/program.ts';
export { openSandbox, type Sandbox, type SandboxOptions } from './processes/sandbox/sandbox.ts';
