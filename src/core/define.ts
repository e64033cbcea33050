/**
 * `defineWorkflow` and `defineGrader`: how a module says "this is the agent" and "this is the score".
 *
 * Both only mark and name what they are given; nothing is registered anywhere.
 */
import {
  type Grader,
  type GraderInput,
  type GraderResult,
  graderSymbol,
  type Role,
  type Workflow,
  type WorkflowContext,
  workflowSymbol,
} from './contracts.ts';
import { TrainyardError } from './errors.ts';

type Run = (ctx: WorkflowContext) => Promise<unknown>;

export interface WorkflowDefinition {
  readonly name?: string;
  readonly roles?: Readonly<Record<string, Role>>;
  readonly run: Run;
}

/** Marks an async function, or an object with an async `run`, as a workflow. */
export function defineWorkflow(definition: Run | WorkflowDefinition): Workflow {
  const { name, roles, run }: Partial<WorkflowDefinition> =
    typeof definition === 'function' ? { run: definition } : (definition ?? {});
  // A plain function could return a promise, but one that forgot to is found only after rollouts were spent: ask for `async`.
  if (run === undefined || kindOf(run) !== 'AsyncFunction') {
    throw new TrainyardError(
      'WORKFLOW_NOT_ASYNC',
      `expected an async function or an object with an async run(), found ${kindOf(run ?? definition)}`,
      {
        hint: 'add `async`, or wrap it: defineWorkflow(async (ctx) => yours(ctx))',
      },
    );
  }
  for (const [role, given] of Object.entries(roles ?? {})) {
    if (typeof given?.trainable === 'boolean') continue;
    throw new TrainyardError(
      'WORKFLOW_INVALID',
      `role ${JSON.stringify(role)}: expected { trainable: true | false }, found ${JSON.stringify(given)}`,
    );
  }
  return { [workflowSymbol]: true, name: name || run.name || 'workflow', roles: roles ?? {}, run: run.bind(definition) };
}

/** Marks a function from what the agent did (and the task's answer) to a reward as a grader. */
export function defineGrader(grade: (input: GraderInput) => GraderResult | Promise<GraderResult>): Grader {
  if (typeof grade !== 'function') {
    throw new TrainyardError('GRADER_NOT_FOUND', `expected a function, found ${kindOf(grade)}`, {
      hint: 'write defineGrader(({ task, messages }) => …)',
    });
  }
  return { [graderSymbol]: true, name: grade.name || 'grader', grade };
}

export function isWorkflow(value: unknown): value is Workflow {
  return typeof value === 'object' && value !== null && workflowSymbol in value;
}

export function isGrader(value: unknown): value is Grader {
  return typeof value === 'object' && value !== null && graderSymbol in value;
}

function kindOf(value: unknown): string {
  return Object.prototype.toString.call(value).slice(8, -1);
}
