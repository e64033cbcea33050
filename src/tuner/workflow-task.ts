/**
 * What AgentScope's tuner calls a task: one dataset row as an episode sees it, without the answer. `JudgeTask` is the same row as a judge
 * sees it, with the answer.
 */
import type { WorkflowContext } from '../core/contracts.ts';
import { isObject } from '../core/json.ts';
import type { Json, PromptMessage, TaskView, Task as WholeTask } from '../core/types.ts';

export interface Task {
  /** What is asked: the last message of the user. */
  readonly mainQuery: string;
  /** The other messages of the row's prompt. */
  readonly initMessages: readonly PromptMessage[];
  readonly taskId: string;
  /** `env_type` of the row's metadata, or `no_env`. */
  readonly envType: string;
  readonly metadata: Readonly<Record<string, Json>>;
}

/** One episode on one task. */
export class WorkflowTask {
  readonly task: Task;
  /** The rollout of this episode: its seed, signal, purpose, log and folder. */
  readonly rollout: WorkflowContext;

  constructor(rollout: WorkflowContext) {
    this.rollout = rollout;
    this.task = taskOf(rollout.task);
  }

  get taskId(): string {
    return this.task.taskId;
  }

  get envType(): string {
    return this.task.envType;
  }

  get metadata(): Task['metadata'] {
    return this.task.metadata;
  }

  /** Names this episode; no other one of the run has it. */
  get episodeUuid(): string {
    return this.rollout.rolloutId;
  }
}

/** The task as a judge sees it. */
export interface JudgeTask {
  readonly task: Task & { readonly answer: Json | undefined };
  readonly taskId: string;
  readonly metadata: Task['metadata'];
}

export function judgeTaskOf(row: WholeTask): JudgeTask {
  const task = { ...taskOf(row), answer: row.answer };
  return { task, taskId: task.taskId, metadata: task.metadata };
}

function taskOf({ id, prompt, metadata }: TaskView): Task {
  const last = prompt.findLastIndex(({ role }) => role === 'user');
  const fields = isObject(metadata) ? metadata : {};
  const { env_type: envType = 'no_env' } = fields;
  return {
    mainQuery: prompt[last]?.content ?? '',
    initMessages: prompt.filter((_, place) => place !== last),
    taskId: id,
    envType: String(envType),
    metadata: fields,
  };
}
