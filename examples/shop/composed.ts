/**
 * The shop assistant with a grader put together from others: most of the reward is for the right number, some is for having looked the
 * item up rather than guessed, and long conversations cost a little. A rollout is a success where the number is right.
 */
import { lengthPenalty, toolCalls, weighted } from 'trainyard/graders';
import agent, { grader as correct } from './agent.ts';

export default agent;

/** The item stands in the question, in quotes. */
const lookedUp = toolCalls({
  expected: ({ task }) => {
    const question = task.prompt.at(-1)?.content ?? '';
    return [...question.matchAll(/"([^"]+)"/g)].map(([, item = '']) => ({ name: 'lookup', arguments: { item } }));
  },
  inOrder: false,
  others: true,
});

export const grader = weighted(
  {
    correct: [correct, 0.8],
    lookedUp: [lookedUp, 0.2],
    length: [lengthPenalty({ unit: 'tokens', free: 80, per: 400 }), 0.1],
  },
  { success: 'correct' },
);
