/** `trainyard/graders`: graders that ship with Trainyard, and what they are put together with. */
export { rejected, unscorable } from './core/define-grader.ts';
export { type GradedCase, gradeOnce } from './grader/grade-once.ts';
