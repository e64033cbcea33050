/**
 * Messages being sorted, to pretrain on: well, or by the wrong habit of looking at what happened instead of what is wanted.
 *
 * Drawn from the pretraining split only.
 */
import type { Message } from '../src/core/types.ts';
import { pick, type Random } from './random.ts';
import { drawMessage, QUEUES, replyText, TRIAGE_PROMPT } from './triage-domain.ts';

/** Probability of each mistake. The first must be above one half, or greedy decoding hides it. */
export interface TriageFaults {
  /** Goes by what happened. */
  readonly byProblem: number;
  /** Names any queue. */
  readonly anyQueue: number;
}

export const CLEAN_TRIAGE: TriageFaults = { byProblem: 0, anyQueue: 0 };

export const NOISY_TRIAGE: TriageFaults = { byProblem: 0.72, anyQueue: 0.06 };

export function demonstrateTriage(random: Random, faults: TriageFaults): readonly Message[] {
  const { text, happened, wanted } = drawMessage(random, 'pretraining');
  const [basis, queue] = random() < faults.byProblem ? (['Problem', happened] as const) : (['Wish', wanted] as const);
  const named = random() < faults.anyQueue ? pick(random, QUEUES) : queue;
  return [
    { role: 'system', content: TRIAGE_PROMPT },
    { role: 'user', content: text },
    { role: 'assistant', content: replyText(basis, named) },
  ];
}
