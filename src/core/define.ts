/**
 * `defineWorkflow`: how a module says "this is the agent".
 *
 * It only checks, marks and names what it is given; nothing is registered anywhere. What is wrong with a definition is thrown when the
 * module is imported, before anything runs.
 */
import { isClass, kindOf } from './classes.ts';
import { type Role, type Workflow, type WorkflowContext, type WorkflowResult, workflowSymbol } from './contracts.ts';
import type { DefaultModelLike } from './default-model.ts';
import { checkDefaultModel, described } from './default-model.ts';
import { TrainyardError } from './errors.ts';
import { defined } from './json.ts';
import type { Trajectory } from './types.ts';

/** `null` is nothing too: a reply may have no content. */
// biome-ignore lint/suspicious/noConfusingVoidType: a function without a return is a workflow too
type Returned = WorkflowResult | string | null | undefined | void;
type Run<Config, RoleName extends string> = (ctx: WorkflowContext<Config, RoleName>) => Promise<Returned>;
/** Made anew for each rollout. */
type WorkflowClass<Config, RoleName extends string> = new (config: Config) => { run: Run<Config, RoleName> };

export interface WorkflowOptions<Config, RoleName extends string> {
  readonly name?: string;
  /** `ctx.config`: data in it is copied for each rollout; functions, tools and other instances are shared. */
  readonly config?: Config;
  /** Names of the seats that the model takes, or for each who plays it while it is not trained. */
  readonly roles?: readonly RoleName[] | { readonly [Name in RoleName]: { readonly default?: DefaultModelLike } };
  /** Roles to train, and no others; absent: all. */
  readonly trainable?: readonly NoInfer<RoleName>[];
  /** Rollouts of it at once; absent: as many as the run has. */
  readonly concurrency?: number;
  /** Runs each rollout in a process of its own, which holds no answers, keys or store. */
  readonly isolation?: 'process';
  /** Names of environment variables that such a process gets: the keys of the agent's own tools. Of the run's own it has none. */
  readonly env?: readonly string[];
  /** When the grader is asked; `when-missing`: only where `run` returned no reward. */
  readonly grading?: 'always' | 'when-missing';
  /** Whether a group may be trained on. */
  readonly accepts?: (group: readonly Trajectory[]) => boolean;
  /** Once in each process that runs it, before its first rollout and after its last. */
  readonly setup?: () => void | Promise<void>;
  readonly teardown?: () => void | Promise<void>;
}

export interface WorkflowDefinition<Config = undefined, RoleName extends string = string>
  extends WorkflowOptions<Config, RoleName> {
  readonly run: Run<Config, RoleName>;
}

/**
 * Marks an async function, an object with an async `run`, or a class with one as a workflow. `options` are for the function and the class.
 * One signature, not overloads: of these the compiler explains a mistake by the last alone, which may not be the one that was meant.
 */
export function defineWorkflow<Config = undefined, const RoleName extends string = string>(
  given: Run<Config, RoleName> | WorkflowClass<Config, RoleName> | WorkflowDefinition<Config, RoleName>,
  options?: WorkflowOptions<Config, RoleName>,
): Workflow;
export function defineWorkflow(
  given: Run<unknown, string> | WorkflowClass<unknown, string> | WorkflowDefinition<unknown>,
  options?: WorkflowOptions<unknown, string>,
): Workflow {
  if (typeof given !== 'function' && options !== undefined) {
    throw new TrainyardError('WORKFLOW_INVALID', 'defineWorkflow was given an object with run and, beside it, options', {
      hint: 'put the options into the object',
    });
  }
  const settings = (typeof given === 'function' ? options : given) ?? {};
  const { run, name } = runOf(given);
  const { config, concurrency, env, accepts, setup, teardown } = settings;
  checkOptions(settings);
  return {
    [workflowSymbol]: true,
    name: settings.name || name || 'workflow',
    roles: rolesOf(settings),
    ...(settings.trainable === undefined ? {} : { othersTrainable: false }),
    isolation: settings.isolation ?? 'none',
    grading: settings.grading ?? 'always',
    run,
    ...defined({ config, concurrency, env, accepts }),
    ...(setup === undefined ? {} : { setup: async () => setup.call(settings) }),
    ...(teardown === undefined ? {} : { teardown: async () => teardown.call(settings) }),
  };
}

function runOf(given: unknown): { readonly run: Workflow['run']; readonly name: string } {
  if (typeof given === 'function' && isClass(given)) {
    const Class = given as WorkflowClass<unknown, string>;
    checkAsync(Class.prototype?.run, `the class ${given.name || 'without a name'}, whose run is`);
    return { run: async (ctx) => new Class(ctx.config).run(ctx), name: given.name };
  }
  const run: unknown = typeof given === 'function' ? given : (given as WorkflowDefinition | undefined)?.run;
  checkAsync(run, typeof given === 'function' || run === undefined ? '' : 'an object whose run is', given);
  return { run: run.bind(given) as Workflow['run'], name: run.name === 'run' ? '' : run.name };
}

/** A plain function could return a promise, but one that forgot to is found only after rollouts were spent: ask for `async`. */
function checkAsync(run: unknown, where: string, given: unknown = run): asserts run is Run<unknown, string> {
  if (kindOf(run) === 'AsyncFunction') return;
  throw new TrainyardError(
    'WORKFLOW_NOT_ASYNC',
    `expected an async function, or an object or a class with an async run(), found ${where === '' ? '' : `${where} `}${typeof run === 'function' ? 'a function that is not async' : kindOf(run ?? given)}`,
    { hint: 'add `async`, or wrap it: defineWorkflow(async (ctx) => yours(ctx))' },
  );
}

function checkOptions({ concurrency, isolation, env, grading, roles, trainable }: WorkflowOptions<unknown, string>): void {
  const mistakes: string[] = [];
  if (concurrency !== undefined && !(Number.isSafeInteger(concurrency) && concurrency >= 1)) {
    mistakes.push(`concurrency: expected a whole number from 1 up, found ${shown(concurrency)}`);
  }
  if (isolation !== undefined && isolation !== 'process') {
    mistakes.push(`isolation: expected "process" or nothing, found ${shown(isolation)}`);
  }
  if (env !== undefined && !(Array.isArray(env) && env.every((name) => typeof name === 'string' && name !== ''))) {
    mistakes.push(`env: expected a list of names of environment variables, found ${described(env)}`);
  } else if (env !== undefined && isolation !== 'process') {
    mistakes.push(`env: only a workflow with isolation "process" has an environment of its own`);
  }
  if (grading !== undefined && grading !== 'always' && grading !== 'when-missing') {
    mistakes.push(`grading: expected "always" or "when-missing", found ${shown(grading)}`);
  }
  const names = Array.isArray(roles) ? roles : roles === undefined ? undefined : Object.keys(roles);
  const strange = names?.filter((role) => typeof role !== 'string' || role === '') ?? [];
  if (strange.length > 0) mistakes.push(`roles: expected names, found ${strange.map(described).join(', ')}`);
  const given = Array.isArray(roles) ? [] : Object.entries((roles ?? {}) as Record<string, unknown>);
  for (const [role, one] of given) {
    const extra = typeof one === 'object' && one !== null ? Object.keys(one).filter((key) => key !== 'default') : undefined;
    if (extra?.length === 0) continue;
    mistakes.push(
      `role ${shown(role)}: expected {} or { default: a model }, found ${described(one)}; which roles are trained is said by trainable`,
    );
  }
  if (trainable !== undefined && !Array.isArray(trainable)) {
    mistakes.push(`trainable: expected a list of roles, found ${described(trainable)}`);
  } else {
    const unknown = trainable?.filter((role) => names !== undefined && !names.includes(role)) ?? [];
    if (unknown.length > 0)
      mistakes.push(`trainable: no role ${unknown.map(shown).join(', ')}; the roles are ${names?.join(', ')}`);
  }
  if (mistakes.length > 0) throw new TrainyardError('WORKFLOW_INVALID', mistakes.join('; also: '));
}

function rolesOf({ roles, trainable }: WorkflowOptions<unknown, string>): Readonly<Record<string, Role>> {
  const isTrained = (name: string): boolean => trainable === undefined || trainable.includes(name);
  const names = roles === undefined ? (trainable ?? []) : Array.isArray(roles) ? roles : Object.keys(roles);
  const given = roles === undefined || Array.isArray(roles) ? {} : (roles as Record<string, { default?: DefaultModelLike }>);
  const role = (name: string): Role => ({ trainable: isTrained(name), ...defaultOf(name, given[name]) });
  return Object.fromEntries(names.map((name) => [name, role(name)]));
}

function defaultOf(role: string, given: { readonly default?: DefaultModelLike } | undefined): Pick<Role, 'default'> {
  if (given?.default === undefined) return {};
  checkDefaultModel(given.default, `role ${JSON.stringify(role)}`);
  return { default: given.default };
}

function shown(value: unknown): string {
  return typeof value === 'object' ? described(value) : (JSON.stringify(value) ?? kindOf(value));
}
