/**
 * The base class of AgentScope's tuner: `execute(task, modelTuner)` is one episode. Lowered to core's `Workflow`, each episode on an
 * instance of its own, so that nothing one leaves on `this` is seen by another.
 *
 * One instance is made when the entry is read, for its name and to find mistakes; it never runs.
 */

import { type Workflow as CoreWorkflow, type EntryModule, type WorkflowContext, workflowSymbol } from '../core/contracts.ts';
import { isConcrete, methodKind } from '../core/define.ts';
import { checkedFields, describeThrown, describeValue } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { ModelTuner } from './model-tuner.ts';
import { resultOf, type WorkflowOutputFields } from './workflow-output.ts';
import { WorkflowTask } from './workflow-task.ts';

const UNNAMED = 'default_workflow';

export abstract class Workflow {
  name: string = UNNAMED;
  /** Roles that are trained; undefined: all of them. Asked at every model call. */
  trainableTargets: readonly string[] | undefined = undefined;

  abstract execute(task: WorkflowTask, modelTuner: ModelTuner): Promise<WorkflowOutputFields>;

  static [workflowSymbol](this: WorkflowClass, module: EntryModule): CoreWorkflow | undefined {
    // biome-ignore lint/complexity/noThisInStatic: the class that an entry exports, not this one
    return lowered(this, module);
  }
}

function lowered(Class: WorkflowClass, module: EntryModule): CoreWorkflow | undefined {
  if (!isConcrete(Class, 'execute')) return undefined;
  const instance = made(Class, module);
  if (instance === undefined) return undefined;
  const mistakes = [...mistakesOf(Class, checkedFields(instance, ['trainableTargets']))];
  for (const mistake of mistakes) module.problem(mistake);
  if (mistakes.length > 0) return undefined;
  return {
    [workflowSymbol]: true,
    name: instance.name === UNNAMED ? Class.name : instance.name,
    // Roles are registered by each episode: which there are is not known before.
    roles: {},
    isolation: 'none',
    grading: 'when-missing',
    run: (ctx) => episode(Class, ctx),
  };
}

type WorkflowClass = { new (): Workflow; readonly prototype: Workflow; readonly name: string };

async function episode(Class: WorkflowClass, ctx: WorkflowContext): Promise<unknown> {
  const workflow = new Class();
  const tuner = new ModelTuner(ctx, workflow);
  try {
    const output: unknown = await workflow.execute(new WorkflowTask(ctx), tuner);
    tuner.check();
    return resultOf(output, `${Class.name}.execute`);
  } catch (thrown) {
    throw tuner.mistake ?? thrown;
  }
}

function made(Class: WorkflowClass, { problem }: EntryModule): Workflow | undefined {
  try {
    return new Class();
  } catch (cause) {
    problem(
      new TrainyardError('WORKFLOW_INIT_FAILED', `cannot make a ${Class.name}: its constructor threw ${describeThrown(cause)}`, {
        hint: 'the class is made without arguments, once for each episode',
        cause,
      }),
    );
    return undefined;
  }
}

function* mistakesOf(Class: WorkflowClass, { name, trainableTargets: targets }: Workflow): Generator<TrainyardError> {
  const kind = methodKind(Class, 'execute');
  if (kind !== 'AsyncFunction') {
    yield new TrainyardError('WORKFLOW_NOT_ASYNC', `${Class.name}.execute is ${kind}, expected an async function`, {
      hint: 'write async execute(task, modelTuner) { … }',
    });
  }
  if (typeof name !== 'string' || name === '') {
    yield new TrainyardError('WORKFLOW_INVALID', `${Class.name}.name is ${describeValue(name)}, expected a text`);
  }
  if (targets === undefined || targets === null) return;
  if (!Array.isArray(targets) || targets.some((role) => typeof role !== 'string' || role === '')) {
    const found = describeValue(targets);
    yield new TrainyardError('WORKFLOW_INVALID', `${Class.name}.trainableTargets is ${found}, expected a list of roles`, {
      hint: "write trainableTargets = ['werewolf'], or leave it out to train every role",
    });
  }
}
