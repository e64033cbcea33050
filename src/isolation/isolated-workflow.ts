/**
 * `isolation: 'process'`: rollouts run in child processes that import the entry by themselves, one rollout at a time in each.
 *
 * A process is told its task without the answer, and reaches the policy over HTTP with keys of this one rollout. Its environment is
 * reduced to what programs need and what the workflow names. A rollout that is cut and goes on, even in a loop, is killed with everything
 * it started, and its process replaced; one whose process ends fails with the process's last words. Where the system has namespaces, walls
 * keep the run's files out of its sight and the grader's sources as they are.
 */
import type { Workflow } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Answer, ChildProgram, StartFailure } from '../processes/answer.ts';
import { startError } from '../processes/call-errors.ts';
import { reducedEnvironment } from '../processes/environment.ts';
import { openProcessPool, type ProcessPool, UnusableProcess } from '../processes/process-pool.ts';
import { lineage, siblingScript, type Thrown } from '../processes/protocol.ts';
import { MOST_REASON, type OwnContext, Rejection } from '../rollout/rollout-context.ts';
import type { IsolationOptions } from '../rollout/runner.ts';
import { Inboxes } from './inboxes.ts';
import type { RolloutEnding, RolloutNote, RolloutOrder } from './isolated-rollout.ts';
import { explained } from './wall-errors.ts';
import { findWalls, type Walls } from './walls.ts';

export interface IsolatedWorkflow extends AsyncDisposable {
  /** Throws what the workflow threw, as in process. */
  run(own: OwnContext): Promise<unknown>;
}

/** Resolves when every process has imported the module and set the workflow up. Rejects with why one could not. */
export async function openIsolated(workflow: Workflow, options: IsolationOptions): Promise<IsolatedWorkflow> {
  const { module, workers, signal } = options;
  if (module === undefined) {
    throw new TrainyardError(
      'WORKFLOW_INVALID',
      `workflow ${workflow.name} was given as a value, which no other process can import`,
      {
        hint: "isolation: 'process' takes the path of a module that exports the workflow",
      },
    );
  }
  if (lineage().includes('workflow')) {
    throw new TrainyardError('USAGE', 'a run was started inside a process of a workflow', {
      hint: 'the module with the workflow is imported to run it: start runs only under `if (import.meta.main)`, or from another module',
    });
  }
  const script = siblingScript(import.meta.url, 'workflow-child');
  const env = reducedEnvironment(workflow.env);
  const inboxes = new Inboxes();
  const { explain, ...within } = await wallsOf(options, inboxes);
  const program = { kind: 'workflow', script, args: [module.url, module.exportName], env, sources: options.sources, ...within };
  let pool: ProcessPool;
  try {
    pool = await opened(openProcessPool({ program, workers, signal }), explain);
  } catch (thrown) {
    await inboxes[Symbol.asyncDispose]();
    throw thrown;
  }
  return {
    run: async (own) => {
      let inbox: unknown;
      const onNote = (note: unknown): void => {
        inbox ??= heed(own, note);
      };
      const answer = await pool.call(orderOf(workflow, own), { signal: own.ctx.signal, onNote });
      if (own.folder !== null) await inboxes.collect(inbox, own.folder);
      return endingOf(answer, own.ctx.signal, explain);
    },
    [Symbol.asyncDispose]: async () => {
      await pool[Symbol.asyncDispose]();
      await inboxes[Symbol.asyncDispose]();
    },
  };
}

/** Says of a message whether a wall is behind it. */
type Explain = (message: string) => string;

interface Surroundings extends Pick<ChildProgram, 'within' | 'namespace'> {
  readonly explain: Explain;
}

/** What each process is started through: walls, else what else the system has. */
async function wallsOf({ walls, warn }: IsolationOptions, inboxes: Inboxes): Promise<Surroundings> {
  const explain: Explain = (message) => message;
  if (walls === undefined) return { explain };
  const { readOnly, artifacts } = walls;
  const hidden = [...walls.hidden, inboxes.root];
  const wanted = (): Walls => ({ hidden, readOnly, ...(artifacts && { shown: { folder: inboxes.open(), at: artifacts } }) });
  const found = await findWalls(wanted());
  if (found.kind === 'walls') {
    return { within: () => found.around(wanted()), explain: (message) => explained(message, { hidden, readOnly }, artifacts) };
  }
  warn?.('ISOLATION_WEAK', `rollouts have processes of their own, and can still read and change this user's files: ${found.why}`);
  return { namespace: true, explain };
}

async function opened(opening: Promise<ProcessPool>, explain: Explain): Promise<ProcessPool> {
  try {
    return await opening;
  } catch (error) {
    throw error instanceof UnusableProcess ? startFailure(error.failure, explain) : error;
  }
}

function orderOf(workflow: Workflow, { ctx, folder }: OwnContext): RolloutOrder {
  const { task, rolloutId, groupId, purpose, seed } = ctx;
  const roles = new Set(['default', ...Object.keys(workflow.roles)]);
  const seats = [...roles].map((role) => {
    const { name, baseURL, apiKey } = ctx.model(role);
    return { role, name, baseURL, apiKey };
  });
  return { task, rolloutId, groupId, purpose, seed, folder, seats };
}

/** Gives the inbox that a note names. What is no note is passed over: whoever found a way to the channel must not end the run by it. */
function heed({ ctx }: OwnContext, said: unknown): unknown {
  if (typeof said !== 'object' || said === null) return undefined;
  const note = said as Partial<RolloutNote>;
  if (note.kind === 'log' && typeof note.text === 'string') ctx.log(note.text);
  // Asking for it is what keeps it for the grader.
  if (note.kind === 'folder') void ctx.artifactsDir;
  if (note.kind === 'rejected' && typeof note.reason === 'string') rejectLikewise(ctx, note.reason);
  return note.kind === 'folder' ? note.inbox : undefined;
}

/** What it throws was thrown where the workflow is. */
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
