/**
 * The shop assistant with a built-in grader: right where it says one number, and that is the task's answer, however it is written.
 *
 *   npm run trainyard -- train examples/graders/arithmetic.ts --tasks examples/shop/train.jsonl --held-out examples/shop/held-out.jsonl
 */
import { numberMatch } from 'trainyard/graders';

export { default } from '../shop/agent.ts';

/** `strict`: who lists several numbers has not answered. */
export const grader = numberMatch({ strict: true });
