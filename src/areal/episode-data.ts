/**
 * What an AReaL author's code is given of a dataset row: everything but the answer, which goes to the grader alone. Each rollout has a
 * copy of its own, so that what one member of a group changes no other sees.
 */
import type { WorkflowContext } from '../core/contracts.ts';
import type { Json, PromptMessage } from '../core/types.ts';

export interface EpisodeData<Metadata = Json | undefined> {
  /** Of the task. */
  id: string;
  /** The prompt, as messages. */
  messages: PromptMessage[];
  /** The row's other fields, as the task file has them. */
  metadata: Metadata;
}

export function episodeData({ task }: Pick<WorkflowContext, 'task'>): EpisodeData<never> {
  const { id, prompt: messages, metadata } = task;
  return structuredClone({ id, messages, metadata }) as EpisodeData<never>;
}
