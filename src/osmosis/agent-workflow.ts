/**
 * `AgentWorkflow`: a class with an async `run(ctx)`, a new instance for each rollout. Exporting the class is all it takes: discovery lowers it
 * to the core's workflow, with the one config among the module's exports.
 */
import { isConcrete, methodKind } from '../core/classes.ts';
import { type EntryModule, type Workflow, type WorkflowContext, workflowSymbol } from '../core/contracts.ts';
import { describeThrown } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { copyConfig } from '../core/json.ts';
import { type AgentWorkflowContext, agentWorkflowContext } from './agent-workflow-context.ts';
import { type AgentWorkflowOutput, resultOf } from './agent-workflow-output.ts';
import { type AgentWorkflowConfig, limitOf, nameMistake } from './config.ts';
import { configOf } from './config-of.ts';
import { RolloutContext } from './rollout-context.ts';

// biome-ignore lint/suspicious/noConfusingVoidType: a run without a return is the usual one
export type AgentWorkflowReturn = AgentWorkflowOutput | AgentWorkflowOutput['messages'] | undefined | void;

export abstract class AgentWorkflow<TConfig = AgentWorkflowConfig> {
  readonly config: TConfig | null;

  constructor(config: TConfig | null = null) {
    this.config = config;
  }

  /** What the agent does on one row, before it is graded. */
  abstract run(ctx: AgentWorkflowContext<TConfig>): Promise<AgentWorkflowReturn>;

  static readonly [workflowSymbol] = lower;
}

function lower(this: object, module: EntryModule): Workflow | undefined {
  const Class = this as WorkflowClass;
  if (!isConcrete(Class, 'run', AgentWorkflow)) return undefined;
  const config = configOf('workflow', module);
  const mistakes = mistakesOf(Class, config);
  for (const mistake of mistakes) module.problem(mistake);
  return mistakes.length > 0 ? undefined : lowered(Class, config);
}

type WorkflowClass = new (config: unknown) => { run(ctx: AgentWorkflowContext<unknown>): Promise<unknown> };

/** Made once here, so that what a constructor throws is known before anything runs. */
function mistakesOf(Class: WorkflowClass, config: AgentWorkflowConfig | undefined): readonly TrainyardError[] {
  const mistakes: TrainyardError[] = [];
  const kind = methodKind(Class, 'run');
  if (kind !== 'AsyncFunction') {
    mistakes.push(
      new TrainyardError('WORKFLOW_NOT_ASYNC', `${Class.name}.run: expected an async method, found ${kind}`, {
        hint: 'write async run(ctx) { … }',
      }),
    );
  }
  const name = config === undefined ? nameMistake(Class.name) : undefined;
  if (name !== undefined) mistakes.push(new TrainyardError('WORKFLOW_INVALID', `the name of the workflow class: ${name}`));
  try {
    new Class(copyConfig(config) ?? null);
  } catch (cause) {
    mistakes.push(
      new TrainyardError('WORKFLOW_INIT_FAILED', `new ${Class.name}(config) threw ${describeThrown(cause)}`, {
        cause,
        hint: 'what belongs to one rollout is built in run',
      }),
    );
  }
  return mistakes;
}

function lowered(Class: WorkflowClass, config: AgentWorkflowConfig | undefined): Workflow {
  const concurrency = limitOf(config);
  return {
    [workflowSymbol]: true,
    name: (config?.name ?? Class.name).trim(),
    roles: {},
    isolation: 'none',
    grading: 'always',
    needsGrader: true,
    ...(config === undefined ? {} : { config }),
    ...(concurrency === undefined ? {} : { concurrency }),
    run: (ctx) => execute(Class, ctx),
  };
}

async function execute(Class: WorkflowClass, ctx: WorkflowContext): Promise<unknown> {
  const rollout = new RolloutContext({ model: ctx.model(), rolloutId: ctx.rolloutId });
  const returned = await rollout.run(async () => new Class(ctx.config ?? null).run(agentWorkflowContext(ctx)));
  return resultOf(returned, rollout);
}
