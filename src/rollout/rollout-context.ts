/** What a workflow gets: its task without the answer, its config, and the door to the policy. All of it is the rollout's own. */
import { hash } from 'node:crypto';
import { mkdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import type { Session, Workflow, WorkflowContext } from '../core/contracts.ts';
import { copyConfig, deepCopy } from '../core/json.ts';
import type { LogLine, RolloutIdentity, Task, TaskView } from '../core/types.ts';
import { tried } from '../processes/limits.ts';

const MOST_LINES = 1000;
const MOST_CHARACTERS = 10_000;
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
  const { session, signal, workflow } = parts;
  const { rolloutId, groupId, purpose } = parts.identity;
  const logs: LogLine[] = [];
  const folder = artifactsFolder(parts.artifacts, rolloutId);
  let artifactsDir: string | null = null;
  let rejection: Rejection | undefined;
  const seed = hash('sha256', `${parts.seed}\n${rolloutId}`, 'buffer').readUIntBE(0, 6);
  const model: WorkflowContext['model'] = (role, options) => session.model(role, options);
  const ctx = workflowContext(workflow, { task, rolloutId, groupId, purpose, seed, signal, model }, folder, (note) => {
    if (note.kind === 'log') logs.push({ at: parts.now(), text: note.text });
    else if (note.kind === 'folder') artifactsDir = folder;
    else rejection ??= new Rejection(note.reason);
  });
  return { ctx, folder, logs, artifactsDir: () => artifactsDir, rejected: () => rejection };
}

/** What a workflow says while it runs. */
export type RolloutNote =
  | { readonly kind: 'log'; readonly text: string }
  /** It asked for its folder, and has it. */
  | { readonly kind: 'folder' }
  | { readonly kind: 'rejected'; readonly reason: string };

/** The context of a workflow, in this process or in one of its own; `note` is told what it says. */
export function workflowContext(
  { config }: Pick<Workflow, 'config'>,
  given: Pick<WorkflowContext, 'task' | 'rolloutId' | 'groupId' | 'purpose' | 'seed' | 'signal' | 'model'>,
  folder: string | null,
  note: (note: RolloutNote) => void,
): WorkflowContext {
  const { task } = given;
  let artifactsDir: string | null | undefined;
  let lines = 0;
  return {
    ...given,
    prompt: [...task.prompt],
    config: copyConfig(config),
    metadata: task.metadata,
    get artifactsDir() {
      if (artifactsDir === undefined) {
        artifactsDir = makeFolder(folder);
        if (artifactsDir !== null) note({ kind: 'folder' });
      }
      return artifactsDir;
    },
    log: (text) => {
      if (lines++ < MOST_LINES) note({ kind: 'log', text: String(text).slice(0, MOST_CHARACTERS) });
    },
    reject: (reason) => {
      const rejection = new Rejection(String(reason).slice(0, MOST_REASON));
      note({ kind: 'rejected', reason: rejection.message });
      throw rejection;
    },
  };
}

/** Where a rollout's files are kept, below `root`. */
export function artifactsFolder(root: string | undefined, rolloutId: string): string | null {
  return root === undefined ? null : join(root, encodeURIComponent(rolloutId).replaceAll('.', '%2E'));
}

/** What an attempt before a kill left there is no work of this one. */
export function clearFolder(folder: string | null): void {
  if (folder !== null) tried(() => rmSync(folder, { recursive: true, force: true }));
}

/** Files are a convenience: a disk that is full or read-only costs the folder, never the rollout. */
function makeFolder(folder: string | null): string | null {
  const isMade = folder !== null && tried(() => [mkdirSync(folder, { recursive: true })]) !== undefined;
  return isMade ? folder : null;
}
