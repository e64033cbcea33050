/** The tasks of an environment service, as rows: their ids; what is asked comes from the environment itself, when a workflow creates one. */
import { messageOf } from '../core/errors.ts';
import type { Json } from '../core/types.ts';
import { EnvironmentClient, type EnvironmentOptions } from './environment-client.ts';
import { invalid, type TaskRow } from './rows.ts';

export interface EnvironmentTasksOptions extends EnvironmentOptions {
  /** Absent: train. */
  readonly split?: string | undefined;
  readonly params?: Readonly<Record<string, Json>> | undefined;
}

/** A source for `tasks` and `heldOut`. Workflows find `task_id`, `env_type` and `split` in the metadata. */
export async function* environmentTasks({
  split = 'train',
  params,
  ...options
}: EnvironmentTasksOptions): AsyncGenerator<TaskRow> {
  const { url, envType } = options;
  const client = new EnvironmentClient(options);
  let ids: readonly string[];
  try {
    ids = await client.taskIds(split, params);
  } catch (cause) {
    throw invalid(`cannot list the ${split} tasks of ${envType} at ${url}: ${messageOf(cause)}`, {
      cause,
      hint: 'is the environment service running, and does it have this env_type and split?',
    });
  }
  for (const id of ids) yield { id, metadata: { task_id: id, env_type: envType, split } };
}
