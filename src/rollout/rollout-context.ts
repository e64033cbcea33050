/** The context a workflow gets: its task without the answer, its config, access to the policy. All of it is the rollout's own. */
import { hash } from 'node:crypto';
import { mkdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { keepPrintsOf, MOST_PRINTED } from '../core/context.ts';
import type { Session, Workflow, WorkflowContext } from '../core/contracts.ts';
import { tried } from '../core/errors.ts';
import { copyConfig, deepCopy } from '../core/json.ts';
import type { LogLine, RolloutIdentity, Task, TaskView } from '../core/types.ts';

const MOST_LINES = 1000;
const MOST_CHARACTERS = 10_000;
/** Characters. */
export const MOST_REASON = 2_000;

/** Thrown by `ctx.reject`: the rollout should not count. */
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
  readonly artifacts?: string | undefined;
  readonly now: () => number;
  /** Told each line that the workflow prints. */
  readonly printed?: ((line: LogLine) => void) | undefined;
}

export interface OwnContext {
  readonly ctx: WorkflowContext;
  /** Created only if the rollout asks for it. */
  readonly folder: string | null;
  readonly logs: readonly LogLine[];
  /** Keeps a line that the workflow printed in a process of its own, which may send more than is kept. */
  print(text: string): void;
  /** Null unless the rollout asked for its folder. */
  artifactsDir(): string | null;
  /** Set even if the rejection was caught: frameworks turn what their tools throw into an answer. */
  rejected(): Rejection | undefined;
}

export function contextOf(parts: ContextParts): OwnContext {
  // Field by field: spreading the task would include its answer.
  const { id, prompt, metadata } = parts.task;
  const task: TaskView = deepCopy({ id, prompt, ...(metadata === undefined ? {} : { metadata }) });
  const { session, signal, workflow } = parts;
  const { rolloutId, groupId, purpose } = parts.identity;
  const logs: LogLine[] = [];
  const folder = artifactsFolder(parts.artifacts, rolloutId);
  let artifactsDir: string | null = null;
  let rejection: Rejection | undefined;
  let { lines, characters } = MOST_PRINTED;
  const print = (text: string): void => {
    characters -= text.length;
    if (lines-- <= 0 || characters < 0) return;
    const line = { at: parts.now(), text, from: 'workflow' } as const;
    logs.push(line);
    parts.printed?.(line);
  };
  const seed = hash('sha256', `${parts.seed}\n${rolloutId}`, 'buffer').readUIntBE(0, 6);
  const model: WorkflowContext['model'] = (role, options) => session.model(role, options);
  const ctx = workflowContext(workflow, { task, rolloutId, groupId, purpose, seed, signal, model }, folder, (note) => {
    if (note.kind === 'log') logs.push({ at: parts.now(), text: note.text });
    else if (note.kind === 'print') print(note.text);
    else if (note.kind === 'folder') artifactsDir = folder;
    else rejection ??= new Rejection(note.reason);
  });
  return { ctx, folder, logs, print, artifactsDir: () => artifactsDir, rejected: () => rejection };
}

export type RolloutNote =
  | { readonly kind: 'log'; readonly text: string }
  | { readonly kind: 'print'; readonly text: string }
  | { readonly kind: 'folder' }
  | { readonly kind: 'rejected'; readonly reason: string };

/** In this process or in a child. `note` receives what the workflow reports. */
export function workflowContext(
  { config }: Pick<Workflow, 'config'>,
  given: Pick<WorkflowContext, 'task' | 'rolloutId' | 'groupId' | 'purpose' | 'seed' | 'signal' | 'model'>,
  folder: string | null,
  note: (note: RolloutNote) => void,
): WorkflowContext {
  const { task } = given;
  let artifactsDir: string | null | undefined;
  let lines = 0;
  const ctx: WorkflowContext = {
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
  keepPrintsOf(ctx, (text) => note({ kind: 'print', text }));
  return ctx;
}

export function artifactsFolder(root: string | undefined, rolloutId: string): string | null {
  return root === undefined ? null : join(root, encodeURIComponent(rolloutId).replaceAll('.', '%2E'));
}

/** Removes files of an earlier attempt, before a kill. */
export function clearFolder(folder: string | null): void {
  if (folder !== null) tried(() => rmSync(folder, { recursive: true, force: true }));
}

/** Null on failure: a full or read-only disk costs the folder, not the rollout. */
function makeFolder(folder: string | null): string | null {
  const isMade = folder !== null && tried(() => [mkdirSync(folder, { recursive: true })]) !== undefined;
  return isMade ? folder : null;
}
