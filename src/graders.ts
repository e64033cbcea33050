/** `trainyard/graders`: graders that ship with Trainyard, and what they are put together with. */
export { rejected, unscorable } from './core/define-grader.ts';
export { countdown } from './grader/built-in/countdown.ts';
export { type ExactMatchOptions, exactMatch } from './grader/built-in/exact-match.ts';
export { type MathMatchOptions, mathMatch } from './grader/built-in/math-match.ts';
export { type MultipleChoiceOptions, multipleChoice } from './grader/built-in/multiple-choice.ts';
export { normalisedMatch } from './grader/built-in/normalised-match.ts';
export { type NumberMatchOptions, numberMatch } from './grader/built-in/number-match.ts';
export type { ReadSaid } from './grader/built-in/said.ts';
export type { TextOptions } from './grader/built-in/verdict.ts';
