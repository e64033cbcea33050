/**
 * The base classes of AgentScope's tuner. `Workflow`: `execute(task, modelTuner)` runs one episode. It is lowered to core's `Workflow`,
 * with a new instance per episode, so that episodes share no state through `this`. When the entry is read, one more instance is created for
 * its name and to find mistakes; it never runs. `BaseJudge` and `defineJudge` are graders.
 */
import {
  type Workflow as CoreWorkflow,
  type EntryModule,
  type Grader,
  type GraderInput,
  type GraderResult,
  graderSymbol,
  type WorkflowContext,
  type WorkflowResult,
  workflowSymbol,
} from '../../core/contracts.ts';
import { isConcrete, methodKind, processOf, rolesIn } from '../../core/define.ts';
import { checkedFields, checkNames, describeThrown, describeValue, refusing, unknownOptions } from '../../core/describe.ts';
import { TrainyardError } from '../../core/errors.ts';
import { defined, isObject } from '../../core/json.ts';
import type { ByName, Json, PromptMessage, TaskView, Task as WholeTask } from '../../core/types.ts';
import { ModelTuner } from './model-tuner.ts';

const UNNAMED = 'default_workflow';

export abstract class Workflow {
  name: string = UNNAMED;
  /** Roles to train; undefined: all. Evaluated at every model call. */
  trainableTargets: readonly string[] | undefined = undefined;

  abstract execute(task: WorkflowTask, modelTuner: ModelTuner): Promise<WorkflowOutputFields>;

  static [workflowSymbol](this: WorkflowClass, module: EntryModule): CoreWorkflow | undefined {
    // biome-ignore lint/complexity/noThisInStatic: the class that an entry exports, not this one
    return lowered(this, module);
  }
}

function lowered(Class: WorkflowClass, module: EntryModule): CoreWorkflow | undefined {
  if (!isConcrete(Class, 'execute')) return undefined;
  const instance = made(Class, 'WORKFLOW_INIT_FAILED', 'the class is made without arguments, once for each episode', module);
  if (instance === undefined) return undefined;
  const mistakes = [...mistakesOf(Class, checkedFields(instance, ['trainableTargets']))];
  for (const mistake of mistakes) module.problem(mistake);
  if (mistakes.length > 0) return undefined;
  return {
    [workflowSymbol]: true,
    name: instance.name === UNNAMED ? Class.name : instance.name,
    // Unless declared, unknown in advance: each episode registers its own roles.
    ...rolesIn(Class, instance.trainableTargets),
    ...processOf(Class, instance),
    grading: 'when-missing',
    run: (ctx) => episode(Class, ctx),
  };
}

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

type ClassOf<T> = { new (): T; readonly prototype: T; readonly name: string };
type WorkflowClass = ClassOf<Workflow>;

function made<T>(
  Class: ClassOf<T>,
  code: 'WORKFLOW_INIT_FAILED' | 'GRADER_INIT_FAILED',
  hint: string,
  { problem }: EntryModule,
): T | undefined {
  try {
    return new Class();
  } catch (cause) {
    const found = `cannot make a ${Class.name}: its constructor threw ${describeThrown(cause)}`;
    problem(new TrainyardError(code, found, { hint, cause }));
    return undefined;
  }
}

function* mistakesOf(Class: WorkflowClass, { name, trainableTargets: targets }: Workflow): Generator<TrainyardError> {
  const kind = methodKind(Class, 'execute');
  if (kind !== 'AsyncFunction') {
    yield new TrainyardError(
      'WORKFLOW_NOT_ASYNC',
      `${Class.name}.execute is ${kind}, expected an async function`,
      'write async execute(task, modelTuner) { … }',
    );
  }
  if (typeof name !== 'string' || name === '') {
    yield new TrainyardError('WORKFLOW_INVALID', `${Class.name}.name is ${describeValue(name)}, expected a text`);
  }
  if ('trainableTargets' in Class) {
    const found = `${Class.name} has a static trainableTargets, expected a field of its instances`;
    yield new TrainyardError('WORKFLOW_INVALID', found, "write trainableTargets = ['werewolf'], without static");
  }
  if (targets === undefined || targets === null) return;
  if (!Array.isArray(targets) || targets.some((role) => typeof role !== 'string' || role === '')) {
    const found = describeValue(targets);
    yield new TrainyardError(
      'WORKFLOW_INVALID',
      `${Class.name}.trainableTargets is ${found}, expected a list of roles`,
      "write trainableTargets = ['werewolf'], or leave it out to train every role",
    );
  }
}

/** A dataset row without its answer. */
export interface Task {
  /** The last user message. */
  readonly mainQuery: string;
  /** The prompt's other messages. */
  readonly initMessages: readonly PromptMessage[];
  readonly taskId: string;
  /** `env_type` of the row's metadata, or `no_env`. */
  readonly envType: string;
  readonly metadata: ByName<Json>;
}

export class WorkflowTask {
  readonly task: Task;
  readonly taskId: string;
  readonly envType: string;
  readonly metadata: Task['metadata'];
  /** Unique within the run. */
  readonly episodeUuid: string;
  /** The episode's rollout, with its seed, signal, purpose, log and folder. */
  readonly rollout: WorkflowContext;

  constructor(rollout: WorkflowContext) {
    this.rollout = rollout;
    const judged = 'a judge (defineJudge) gets task.task.answer';
    this.task = refusing(taskOf(rollout.task), 'task.task', ['mainQuery', 'initMessages', 'taskId', 'envType'], judged);
    refusing(this, 'task', ['taskId', 'envType', 'episodeUuid'], judged);
    ({ taskId: this.taskId, envType: this.envType, metadata: this.metadata } = this.task);
    this.episodeUuid = rollout.rolloutId;
  }
}

export interface JudgeTask {
  readonly task: Task & { readonly answer: Json | undefined };
  readonly taskId: string;
  readonly metadata: Task['metadata'];
}

function judgeTaskOf(row: WholeTask): JudgeTask {
  const task = { ...taskOf(row), answer: row.answer };
  return { task, taskId: task.taskId, metadata: task.metadata };
}

function taskOf({ id, prompt, metadata }: TaskView): Task {
  const last = prompt.findLastIndex(({ role }) => role === 'user');
  const fields = isObject(metadata) ? metadata : {};
  const { env_type: envType = 'no_env' } = fields;
  return {
    mainQuery: prompt[last]?.content ?? '',
    initMessages: prompt.filter((_, place) => place !== last),
    taskId: id,
    envType: String(envType),
    metadata: fields,
  };
}

/** A number, a list with one number per model call of the episode, or a number with rewards by role, thread or turn. */
export type OutputReward = GraderResult | readonly number[];

export interface WorkflowOutputFields {
  /** Absent or null: the judge decides. */
  readonly reward?: OutputReward | null | undefined;
  readonly isSuccess?: boolean | null | undefined;
  readonly metadata?: ByName<Json> | undefined;
  readonly logMetrics?: ByName<number> | undefined;
}

/** A plain object with these fields works too. Unknown fields are refused: a reward under a wrong name would be silently lost. */
export class WorkflowOutput implements WorkflowOutputFields {
  readonly reward: OutputReward | null;
  readonly isSuccess: boolean | null;
  readonly metadata: ByName<Json>;
  readonly logMetrics: ByName<number>;

  constructor(fields: WorkflowOutputFields = {}) {
    checkNames(fields, FIELDS, 'WorkflowOutput', 'WORKFLOW_BAD_RESULT');
    const { reward, isSuccess, metadata, logMetrics } = fields;
    this.reward = reward ?? null;
    this.isSuccess = isSuccess ?? null;
    this.metadata = metadata ?? {};
    this.logMetrics = logMetrics ?? {};
  }
}

const FIELDS = ['reward', 'isSuccess', 'metadata', 'logMetrics'];

/** Throws WORKFLOW_BAD_RESULT with all mistakes. */
function resultOf(returned: unknown, who: string): WorkflowResult {
  if (!isObject(returned)) throw bad([`${who} returned ${describeValue(returned)}`]);
  const { reward, isSuccess, metadata, logMetrics } = returned as WorkflowOutputFields;
  const numbers: readonly unknown[] = Array.isArray(reward) ? reward : reward == null || isObject(reward) ? [] : [reward];
  const mistakes = [
    ...unknownOptions(returned, FIELDS, `what ${who} returned`),
    ...numbers
      .filter((one) => !Number.isFinite(one))
      .map((one) => `${who} returned reward ${describeValue(one)}, expected a finite number`),
    ...(isSuccess == null || typeof isSuccess === 'boolean'
      ? []
      : [`${who} returned isSuccess ${describeValue(isSuccess)}, expected true or false`]),
  ];
  if (mistakes.length > 0) throw bad(mistakes);
  const earned = reward == null ? undefined : rewardOf(reward);
  const success = isSuccess ?? undefined;
  const said = metadata ?? undefined;
  const metrics = logMetrics ?? undefined;
  return defined({ reward: earned, success, metadata: said, metrics });
}

/** The value of a list is its sum. */
function rewardOf(reward: OutputReward): GraderResult {
  const isList = (given: OutputReward): given is readonly number[] => Array.isArray(given);
  return isList(reward) ? { value: reward.reduce((sum, one) => sum + one, 0), byTurn: reward } : reward;
}

function bad(mistakes: readonly string[]): TrainyardError {
  return new TrainyardError(
    'WORKFLOW_BAD_RESULT',
    mistakes.join('; also: '),
    'return new WorkflowOutput({ reward, isSuccess, metadata, logMetrics }); leave reward out where the judge decides',
  );
}

// A judge runs once for each episode whose workflow returned no reward. It is lowered to core's `Grader`: it sees the answer, runs in a
// process that can be killed, and if it fails the episode has no reward, never 0.

export type Verdict = readonly [reward: GraderResult, isSuccess: boolean];
/** `rollout` holds everything that happened in the episode. */
export type ComputeReward = (task: JudgeTask, output: WorkflowOutput, rollout: GraderInput) => Verdict | Promise<Verdict>;

export abstract class BaseJudge {
  abstract computeReward(...given: Parameters<ComputeReward>): ReturnType<ComputeReward>;

  static [graderSymbol](this: JudgeClass, module: EntryModule): Grader | undefined {
    // biome-ignore lint/complexity/noThisInStatic: the class that an entry exports, not this one
    return loweredJudge(this, module);
  }
}

function loweredJudge(Class: JudgeClass, module: EntryModule): Grader | undefined {
  if (!isConcrete(Class, 'computeReward')) return undefined;
  const judge = made(Class, 'GRADER_INIT_FAILED', 'the class is made without arguments', module);
  return judge && graderOf(Class.name, (...given) => judge.computeReward(...given));
}

type JudgeClass = ClassOf<BaseJudge>;

export function defineJudge(computeReward: ComputeReward): Grader {
  if (typeof computeReward !== 'function') {
    throw new TrainyardError(
      'GRADER_INVALID',
      `defineJudge was given ${describeValue(computeReward)}, expected a function`,
      'write defineJudge((task, output) => [reward, isSuccess])',
    );
  }
  return graderOf(computeReward.name || 'judge', computeReward);
}

function graderOf(name: string, computeReward: ComputeReward): Grader {
  return {
    [graderSymbol]: true,
    name,
    grade: async (input) => {
      const { reward, success, metadata, metrics } = input.result;
      const output = new WorkflowOutput({ reward, isSuccess: success, metadata, logMetrics: metrics });
      return judgedReward(await computeReward(judgeTaskOf(input.task), output, input), name);
    },
  };
}

function judgedReward(verdict: unknown, name: string): GraderResult {
  const [reward, success] = Array.isArray(verdict) && verdict.length === 2 ? (verdict as [GraderResult, unknown]) : [];
  if (reward === undefined || typeof success !== 'boolean') {
    throw new TrainyardError('GRADER_BAD_REWARD', `${name} returned ${describeValue(verdict)}, expected [reward, isSuccess]`);
  }
  return typeof reward === 'object' && reward !== null ? { success, ...reward } : { value: reward, success };
}
