/**
 * The shop assistant of agent.ts without answered questions in its prompt. A small model never solves a task so, and reinforcement learning
 * finds nothing to reinforce: it needs a warm start. `npm run demo:warm-start` shows both.
 */
import { shopAgent } from './agent.ts';

export { grader } from './agent.ts';

export default shopAgent([]);
