/**
 * `isolation: 'process'`: rollouts run in child processes that import the entry by themselves, one rollout at a time in each.
 *
 * A process is told its task without the answer, and reaches the policy over HTTP with keys of this one rollout. Its environment is reduced
 * to what programs need and what the workflow names, and it runs in the sandbox (`rollout-sandbox.ts`). A rollout that is cut and goes on,
 * even in a loop, is killed with everything it started, and its process replaced; one whose process ends fails with the process's last words.
 */
import { existsSync } from 'node:fs';
import { mkdir, rmdir } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';
import type { Workflow } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { environmentIn, reducedEnvironment } from '../processes/agent-process.ts';
import { findBubblewrap } from '../processes/bubblewrap.ts';
import { type Answer, type ChildProgram, poolKind, type StartFailure, siblingScript, type Thrown } from '../processes/channel.ts';
import { openProcessPool, type ProcessPool, startError, UnusableProcess } from '../processes/process-pool.ts';
import type { ModuleExport } from '../rollout/discovery.ts';
import { MOST_REASON, type OwnContext, Rejection } from '../rollout/rollout-context.ts';
import type { HiddenFiles, IsolationOptions } from '../rollout/runner.ts';
import type { RolloutEnding, RolloutNote, RolloutOrder } from './isolated-rollout.ts';
import { RolloutFiles } from './rollout-files.ts';
import { explained, HOME_INSIDE, sandboxCommand, TMP_INSIDE, viewOf } from './rollout-sandbox.ts';

interface IsolatedWorkflow extends AsyncDisposable {
  /** Throws what the workflow threw, as in process. */
  run(own: OwnContext): Promise<unknown>;
}

/**
 * Resolves when every process has imported the module and set the workflow up. Rejects with why one could not, and with SANDBOX_MISSING
 * where there is no sandbox.
 */
export async function openIsolated(workflow: Workflow, options: IsolationOptions): Promise<IsolatedWorkflow> {
  const { workers, signal, sources } = options;
  const module = importable(workflow, options.module);
  await using opened = new AsyncDisposableStack();
  const { files, explain, ...surroundings } = await surroundingsOf(workflow, module, options.files, opened);
  const program = {
    kind: 'workflow',
    script: siblingScript(import.meta.url, 'workflow-child'),
    args: [module.url, module.exportName],
    sources,
    ...surroundings,
  };
  const pool = opened.use(await started(openProcessPool({ program, workers, signal }), explain));
  const held = opened.move();
  return {
    run: async (own) => {
      let process: number | undefined;
      let keepsFiles = false;
      const answer = await pool.call(orderOf(workflow, own), {
        signal: own.ctx.signal,
        onNote: (note) => {
          keepsFiles = heed(own, note) || keepsFiles;
        },
        onBegun: (number) => {
          process = number;
        },
      });
      if (own.folder !== null && keepsFiles) await files?.collect(process, own.folder);
      return endingOf(answer, own.ctx.signal, explain);
    },
    [Symbol.asyncDispose]: () => held.disposeAsync(),
  };
}

function importable(workflow: Workflow, module: ModuleExport | undefined): ModuleExport {
  if (module === undefined) {
    const message = `workflow ${workflow.name} was given as a value, which no other process can import`;
    const hint = "isolation: 'process' takes the path of a module that exports the workflow";
    throw new TrainyardError('WORKFLOW_INVALID', message, { hint });
  }
  if (poolKind() !== undefined) {
    throw new TrainyardError('USAGE', 'a run was started inside a process of a workflow', {
      hint: 'the module with the workflow is imported to run it: start runs only under `if (import.meta.main)`, or from another module',
    });
  }
  return module;
}

/** Adds to a message why a file is not there, or cannot be written. */
type Explain = (message: string) => string;

interface Surroundings extends Pick<ChildProgram, 'env' | 'within' | 'left'> {
  readonly explain: Explain;
  readonly files: RolloutFiles | undefined;
}

async function surroundingsOf(
  workflow: Workflow,
  { url }: ModuleExport,
  hidden: HiddenFiles | undefined,
  opened: AsyncDisposableStack,
): Promise<Surroundings> {
  if (hidden === undefined) return { env: reducedEnvironment(workflow.env), explain: (message) => message, files: undefined };
  const env = environmentIn({ home: HOME_INSIDE, tmp: TMP_INSIDE }, workflow.env);
  const bubblewrap = findBubblewrap();
  if (hidden.run !== undefined) opened.use(await reserved(hidden.run));
  const files = opened.use(new RolloutFiles());
  const view = viewOf(hidden, url, [files.root]);
  return {
    env,
    files,
    explain: (message) => explained(message, view),
    within: (process) => sandboxCommand(bubblewrap, view, files.open(process)),
    left: (process) => void files.leave(process),
  };
}

/**
 * Makes a folder before there is anything to put into it; whoever needs it says why it could not be made. Disposing removes what was made, as
 * far as it stayed empty.
 */
async function reserved(folder: string): Promise<AsyncDisposable> {
  const made: string[] = [];
  const missing: string[] = [];
  for (let path = resolve(folder); !existsSync(path); path = dirname(path)) missing.unshift(path);
  try {
    for (const path of missing) {
      await mkdir(path);
      made.unshift(path);
    }
  } catch {}
  return {
    async [Symbol.asyncDispose]() {
      try {
        for (const path of made) await rmdir(path);
      } catch {}
    },
  };
}

async function started(opening: Promise<ProcessPool>, explain: Explain): Promise<ProcessPool> {
  try {
    return await opening;
  } catch (error) {
    throw error instanceof UnusableProcess ? startFailure(error.failure, explain) : error;
  }
}

function orderOf(workflow: Workflow, { ctx, folder }: OwnContext): RolloutOrder {
  const { task, rolloutId, groupId, purpose, seed } = ctx;
  const roles = new Set(['default', ...Object.keys(workflow.roles)]);
  const addresses = [...roles].map((role) => {
    const { name, baseURL, apiKey } = ctx.model(role);
    return { role, name, baseURL, apiKey };
  });
  return { task, rolloutId, groupId, purpose, seed, folder, addresses };
}

/** Whether the rollout keeps files. What is no note is passed over: whoever found a way to the channel must not end the run by it. */
function heed({ ctx }: OwnContext, said: unknown): boolean {
  if (typeof said !== 'object' || said === null) return false;
  const note = said as Partial<RolloutNote>;
  if (note.kind === 'log' && typeof note.text === 'string') ctx.log(note.text);
  // Asking for it is what keeps it for the grader.
  if (note.kind === 'folder') void ctx.artifactsDir;
  if (note.kind === 'rejected' && typeof note.reason === 'string') rejectLikewise(ctx, note.reason);
  return note.kind === 'folder';
}

/** `reject` throws; the process has thrown the same to the workflow. */
function rejectLikewise(ctx: OwnContext['ctx'], reason: string): void {
  try {
    ctx.reject(reason);
  } catch {}
}

function endingOf(answer: Answer, signal: AbortSignal, explain: Explain): unknown {
  switch (answer.kind) {
    case 'answered': {
      const ending = (answer.value ?? {}) as Partial<RolloutEnding>;
      if (ending.kind === 'rejected' && typeof ending.reason === 'string')
        throw new Rejection(ending.reason.slice(0, MOST_REASON));
      if (ending.kind === 'returned') return ending.result;
      throw new TrainyardError('WORKFLOW_FAILED', "the workflow's process answered what no rollout ends with");
    }
    case 'threw':
      throw thrownThere(answer.thrown, explain);
    case 'ended':
      throw new TrainyardError('WORKFLOW_FAILED', `the workflow's process ${answer.how} before it returned`);
    case 'unusable':
      throw startFailure(answer.failure, explain);
    case 'unsendable':
      throw new TrainyardError('WORKFLOW_FAILED', `the task cannot be sent to another process: ${answer.message}`);
    case 'late':
    case 'aborted':
    case 'closed':
      signal.throwIfAborted();
      throw new TrainyardError('CANCELLED', 'the run ended before the workflow returned');
  }
}

/** With the stack it had there: the place in the user's file. */
function thrownThere({ code, message, stack }: Thrown, explain: Explain): TrainyardError {
  const error = new TrainyardError(code ?? 'WORKFLOW_FAILED', explain(message));
  if (stack !== undefined) error.stack = stack;
  return error;
}

function startFailure(failure: StartFailure, explain: Explain): TrainyardError {
  const told = failure.kind === 'refused' ? { ...failure, message: explain(failure.message) } : failure;
  return startError(told, {
    whose: 'the workflow',
    starting: 'before it was ready',
    code: 'WORKFLOW_INIT_FAILED',
    late: { code: 'WORKFLOW_INIT_FAILED', what: 'process was not ready' },
    hint: 'every process of the workflow imports the entry: check that it can be imported on its own, without the variables of this shell',
  });
}
