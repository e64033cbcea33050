/** `trainyard/graders`: graders that ship with Trainyard, and what they are put together with. */
export { rejected, unscorable } from './core/define-grader.ts';
export type { Schema as JsonSchema } from './core/json-schema.ts';
export type { CodeLanguage } from './grader/built-in/code-in-text.ts';
export { countdown } from './grader/built-in/countdown.ts';
export { type JsonMatchOptions, jsonMatch } from './grader/built-in/json-match.ts';
export { type MathMatchOptions, mathMatch } from './grader/built-in/math-match.ts';
export { type MultipleChoiceOptions, multipleChoice } from './grader/built-in/multiple-choice.ts';
export { type NumberMatchOptions, numberMatch } from './grader/built-in/number-match.ts';
export {
  type ExactMatchOptions,
  exactMatch,
  normalisedMatch,
  type RegexMatchOptions,
  regexMatch,
} from './grader/built-in/text-match.ts';
export { type ExpectedCall, type ToolCallsOptions, toolCalls } from './grader/built-in/tool-calls.ts';
export { type UnitTestsOptions, unitTests } from './grader/built-in/unit-tests.ts';
export {
  type ClipOptions,
  clipped,
  type GatedOptions,
  gated,
  maximum,
  minimum,
  type ScaleOptions,
  scaled,
  type WeightedOptions,
  weighted,
} from './grader/compose/combine.ts';
export {
  formatPenalty,
  type LengthPenaltyOptions,
  lengthPenalty,
  type RepetitionPenaltyOptions,
  repetitionPenalty,
} from './grader/compose/penalties.ts';
export { type GradedCase, gradeOnce } from './grader/grade-once.ts';
export {
  type JudgeEndpoint,
  type JudgeOptions,
  judge,
  type RubricCriterion,
  type RubricOptions,
  rubric,
} from './grader/judge/judge.ts';
export type { ReadSaid, TextOptions } from './grader/options.ts';
export type { ConfinedProcess } from './processes/sandbox/confined-process.ts';
export type { SandboxEnd, SandboxLimits, SandboxProgram, SandboxResult } from './processes/sandbox/program.ts';
export { type Level as SandboxLevel, openSandbox, type Sandbox, type SandboxOptions } from './processes/sandbox/sandbox.ts';
