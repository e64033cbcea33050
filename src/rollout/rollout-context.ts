/** What a workflow gets: its task without the answer, its config, and the door to the policy. All of it is the rollout's own. */
import { hash } from 'node:crypto';
import { mkdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import type { Session, Workflow, WorkflowContext } from '../core/contracts.ts';
import { copyConfig, deepCopy } from '../core/json.ts';
import type { LogLine, RolloutIdentity, Task, TaskView } from '../core/types.ts';

export const MOST_LINES = 1000;
export const MOST_CHARACTERS = 10_000;
/** Of why a rollout was rejected. */
export const MOST_REASON = 2_000;

/** How a workflow says that its rollout should not count. */
export class Rejection extends Error {
  override readonly name = 'Rejection';
}

export interface ContextParts {
  readonly identity: RolloutIdentity;
  readonly task: Task;
  readonly workflow: Pick<Workflow, 'config'>;
  readonly session: Pick<Session, 'model'>;
  readonly signal: AbortSignal;
  readonly seed: number;
  /** Folder under which rollouts may keep files. */
  readonly artifacts?: string | undefined;
  readonly now: () => number;
}

export interface OwnContext {
  readonly ctx: WorkflowContext;
  /** Where its folder is, or would be if it asked for one. */
  readonly folder: string | null;
  /** What it wanted kept. */
  readonly logs: readonly LogLine[];
  /** Where it asked for a folder. */
  artifactsDir(): string | null;
  /** Once it said so, whoever caught it on its way: frameworks make an answer of what their tools throw. */
  rejected(): Rejection | undefined;
}

export function contextOf(parts: ContextParts): OwnContext {
  // Built field by field: spreading the task would carry its answer along.
  const { id, prompt, metadata } = parts.task;
  const task: TaskView = deepCopy({ id, prompt, ...(metadata === undefined ? {} : { metadata }) });
  const { identity, session, signal } = parts;
  const logs: LogLine[] = [];
  const folder = artifactsFolder(parts.artifacts, identity.rolloutId);
  let artifactsDir: string | null | undefined;
  let rejection: Rejection | undefined;
  const ctx: WorkflowContext = {
    task,
    prompt: [...task.prompt],
    config: copyConfig(parts.workflow.config),
    metadata: task.metadata,
    rolloutId: identity.rolloutId,
    groupId: identity.groupId,
    purpose: identity.purpose,
    seed: hash('sha256', `${parts.seed}\n${identity.rolloutId}`, 'buffer').readUIntBE(0, 6),
    get artifactsDir() {
      artifactsDir ??= makeFolder(folder);
      return artifactsDir;
    },
    signal,
    log: (text) => {
      if (logs.length < MOST_LINES) logs.push({ at: parts.now(), text: String(text).slice(0, MOST_CHARACTERS) });
    },
    reject: (reason) => {
      rejection ??= new Rejection(String(reason).slice(0, MOST_REASON));
      throw rejection;
    },
    model: (role, options) => session.model(role, options),
  };
  return { ctx, folder, logs, artifactsDir: () => artifactsDir ?? null, rejected: () => rejection };
}

/** Where a rollout's files are kept, below `root`. */
export function artifactsFolder(root: string | undefined, rolloutId: string): string | null {
  return root === undefined ? null : join(root, encodeURIComponent(rolloutId).replaceAll('.', '%2E'));
}

/** What an attempt before a kill left there is no work of this one. */
export function clearFolder(folder: string | null): void {
  try {
    if (folder !== null) rmSync(folder, { recursive: true, force: true });
  } catch {
    // As `makeFolder`: a folder that cannot be used is none.
  }
}

/** Files are a convenience: a disk that is full or read-only costs the folder, never the rollout. */
export function makeFolder(folder: string | null): string | null {
  if (folder === null) return null;
  try {
    mkdirSync(folder, { recursive: true });
    return folder;
  } catch {
    return null;
  }
}
