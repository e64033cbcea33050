/** `trainyard/graders`: the graders that ship with Trainyard, and the pieces to compose them. */
export { rejected, unscorable } from './core/define.ts';
export type { Schema as JsonSchema } from './core/json-schema.ts';
export type { ReadSaid, TextOptions } from './graders/answer-text.ts';
export type { CodeLanguage } from './graders/code/run-tests.ts';
export { type UnitTestsOptions, unitTests } from './graders/code/unit-tests.ts';
export {
  type ClipOptions,
  clipped,
  formatPenalty,
  type GatedOptions,
  gated,
  type LengthPenaltyOptions,
  lengthPenalty,
  maximum,
  minimum,
  type RepetitionPenaltyOptions,
  repetitionPenalty,
  type ScaleOptions,
  scaled,
  type WeightedOptions,
  weighted,
} from './graders/compose.ts';
export { type JsonMatchOptions, jsonMatch } from './graders/json-match.ts';
export {
  type JudgeEndpoint,
  type JudgeOptions,
  judge,
  type RubricCriterion,
  type RubricOptions,
  rubric,
} from './graders/judge.ts';
export { type MathMatchOptions, mathMatch } from './graders/math/math-match.ts';
export { type MultipleChoiceOptions, multipleChoice } from './graders/multiple-choice.ts';
export { type NumberMatchOptions, numberMatch } from './graders/number-match.ts';
export {
  type ExactMatchOptions,
  exactMatch,
  normalisedMatch,
  type RegexMatchOptions,
  regexMatch,
} from './graders/text-match.ts';
export { type ExpectedCall, type ToolCallsOptions, toolCalls } from './graders/tool-call-match.ts';
export { type GradedCase, gradeOnce } from './grading/inline.ts';
export {
  type ConfinedProcess,
  openSandbox,
  type Sandbox,
  type SandboxEnd,
  type SandboxLimits,
  type SandboxProgram,
  type SandboxResult,
} from './processes/sandbox.ts';
