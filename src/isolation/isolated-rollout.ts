/**
 * A rollout in a process of its own, as it is told to that process and as the workflow sees it there. What is not in `RolloutOrder` the
 * process does not have: the answer, the task file, the keys of the run, the store.
 */
import type { SeatOptions, Workflow, WorkflowContext } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { copyConfig } from '../core/json.ts';
import type { Purpose, TaskView } from '../core/types.ts';
import { httpModel, type ModelAddress } from '../gateway/chat-client.ts';
import { MOST_CHARACTERS, MOST_LINES, MOST_REASON, makeFolder, Rejection } from '../rollout/rollout-context.ts';

export interface RolloutOrder {
  readonly task: TaskView;
  readonly rolloutId: string;
  readonly groupId: string;
  readonly purpose: Purpose;
  readonly seed: number;
  /** Where its folder would be, if it asks for one. */
  readonly folder: string | null;
  /** All it may sit in: those the workflow declares, and `default`. */
  readonly seats: readonly ModelAddress[];
}

/** Said while it runs, so that it is kept even if the process is killed. */
export type RolloutNote =
  | { readonly kind: 'log'; readonly text: string }
  | { readonly kind: 'folder' }
  | { readonly kind: 'rejected'; readonly reason: string };

export type RolloutEnding =
  | { readonly kind: 'returned'; readonly result: unknown }
  | { readonly kind: 'rejected'; readonly reason: string };

export function isolatedContext(
  workflow: Pick<Workflow, 'config' | 'name'>,
  order: RolloutOrder,
  { signal, note }: { readonly signal: AbortSignal; readonly note: (note: RolloutNote) => void },
): WorkflowContext {
  const { task, rolloutId, groupId, purpose, seed } = order;
  let folder: string | null | undefined;
  let lines = 0;
  return {
    task,
    prompt: [...task.prompt],
    config: copyConfig(workflow.config),
    metadata: task.metadata,
    rolloutId,
    groupId,
    purpose,
    seed,
    get artifactsDir() {
      if (folder === undefined) {
        folder = makeFolder(order.folder);
        if (folder !== null) note({ kind: 'folder' });
      }
      return folder;
    },
    signal,
    log: (text) => {
      if (lines++ < MOST_LINES) note({ kind: 'log', text: String(text).slice(0, MOST_CHARACTERS) });
    },
    reject: (reason) => {
      const rejection = new Rejection(String(reason).slice(0, MOST_REASON));
      note({ kind: 'rejected', reason: rejection.message });
      throw rejection;
    },
    model: (role = 'default', options) => httpModel(seatOf(order, role, options)),
  };
}

function seatOf({ seats }: RolloutOrder, role: string, options: SeatOptions | undefined): ModelAddress {
  if (options?.default !== undefined || options?.trainable !== undefined) {
    throw new TrainyardError(
      'WORKFLOW_INVALID',
      `role ${JSON.stringify(role)} was given a default model or trainable in a process of its own, where the gateway cannot ask it`,
      { hint: 'say it in defineWorkflow: roles: { name: { default: … } }, trainable: […]' },
    );
  }
  const seat = seats.find((one) => one.role === role);
  if (seat !== undefined) return seat;
  const known = seats.map((one) => one.role).join(', ');
  throw new TrainyardError(
    'WORKFLOW_INVALID',
    `the workflow does not declare role ${JSON.stringify(role)}, and its process has keys for ${known} only`,
    { hint: `declare it in defineWorkflow: roles: [${JSON.stringify(role)}]` },
  );
}
