/** `trainyard/graders`: graders that ship with Trainyard, and what they are put together with. */
export { rejected, unscorable } from './core/define-grader.ts';
export { type JsonMatchOptions, jsonMatch } from './grader/built-in/json-match.ts';
export { type RegexMatchOptions, regexMatch } from './grader/built-in/regex-match.ts';
export { type ExpectedCall, type ToolCallsOptions, toolCalls } from './grader/built-in/tool-calls.ts';
export { type ClipOptions, clipped, type ScaleOptions, scaled } from './grader/compose/adjusted.ts';
export { type GatedOptions, gated } from './grader/compose/gated.ts';
export { formatPenalty, type LengthPenaltyOptions, lengthPenalty } from './grader/compose/penalties.ts';
export { maximum, minimum, type WeightedOptions, weighted } from './grader/compose/weighted.ts';
export { type GradedCase, gradeOnce } from './grader/grade-once.ts';
export { judge, type RubricCriterion, type RubricOptions, rubric } from './grader/judge/judge.ts';
export type { JudgeEndpoint, JudgeOptions } from './grader/judge/options.ts';
