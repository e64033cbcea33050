/**
 * `defineWorkflow` and `defineGrader`, and the conversion of a module's exports back to workflows and graders. Definitions are only
 * checked, marked and named; mistakes throw on import, before anything runs. Core's symbols mark an export as a workflow or grader, or as
 * something that lowers to one, so this file need not know the authoring styles.
 */
import {
  type DefaultModelLike,
  type EntryModule,
  type Grader,
  graderSymbol,
  type Lowering,
  type Role,
  type Ungraded,
  type Workflow,
  type WorkflowContext,
  type WorkflowResult,
  workflowSymbol,
} from './contracts.ts';
import { baseURLFault, kindOf } from './describe.ts';
import { TrainyardError } from './errors.ts';
import { defined } from './json.ts';

/** `null` counts as no result: a message may have no content. */
// biome-ignore lint/suspicious/noConfusingVoidType: a function without a return is a workflow too
type Returned = WorkflowResult | string | null | undefined | void;
type Run<Config, RoleName extends string> = (ctx: WorkflowContext<Config, RoleName>) => Promise<Returned>;
type WorkflowClass<Config, RoleName extends string> = new (config: Config) => { run: Run<Config, RoleName> };

export interface WorkflowOptions<Config, RoleName extends string>
  extends Partial<Pick<Workflow, 'name' | 'concurrency' | 'env' | 'hidden' | 'grading' | 'accepts'>> {
  /** Becomes `ctx.config`. Plain data is copied for each rollout; functions, tools and other instances are shared. */
  readonly config?: Config;
  /** Names of the roles that the model plays, optionally each with the model that answers for it while it is not trained. */
  readonly roles?: readonly RoleName[] | { readonly [Name in RoleName]: { readonly default?: DefaultModelLike } };
  /** Trains only these roles. Default: all. */
  readonly trainable?: readonly NoInfer<RoleName>[];
  /** Runs each rollout in its own process, which holds no answers, keys or store. */
  readonly isolation?: 'process';
  /** Called once in each process that runs the workflow, before its first rollout and after its last. */
  readonly setup?: () => void | Promise<void>;
  readonly teardown?: () => void | Promise<void>;
}

export interface WorkflowDefinition<Config = undefined, RoleName extends string = string>
  extends WorkflowOptions<Config, RoleName> {
  readonly run: Run<Config, RoleName>;
}

/**
 * Marks an async function, or an object or class with an async `run`, as a workflow. `options` apply to functions and classes. Not
 * overloaded: the compiler explains a mistake only by the last overload, which may not be the one that was meant.
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
    throw new TrainyardError(
      'WORKFLOW_INVALID',
      'defineWorkflow was given an object with run and, beside it, options',
      'put the options into the object',
    );
  }
  const settings = (typeof given === 'function' ? options : given) ?? {};
  const { run, name } = runOf(given);
  const { config, concurrency, env, hidden, accepts, setup, teardown } = settings;
  checkOptions(settings);
  return {
    [workflowSymbol]: true,
    name: settings.name || name || 'workflow',
    roles: rolesOf(settings),
    ...(settings.trainable === undefined ? {} : { othersTrainable: false }),
    isolation: settings.isolation ?? 'none',
    grading: settings.grading ?? 'always',
    run,
    ...defined({ config, concurrency, env, hidden, accepts }),
    ...defined({
      setup: setup && (async () => setup.call(settings)),
      teardown: teardown && (async () => teardown.call(settings)),
    }),
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

/** A plain function could return a promise, but one that forgets to is found only after rollouts were spent. So `async` is required. */
function checkAsync(run: unknown, where: string, given: unknown = run): asserts run is Run<unknown, string> {
  if (kindOf(run) === 'AsyncFunction') return;
  throw new TrainyardError(
    'WORKFLOW_NOT_ASYNC',
    `expected an async function, or an object or a class with an async run(), found ${where === '' ? '' : `${where} `}${typeof run === 'function' ? 'a function that is not async' : kindOf(run ?? given)}`,
    'add `async`, or wrap it: defineWorkflow(async (ctx) => yours(ctx))',
  );
}

/**
 * What a workflow class says about its process, in static fields: `static isolation = 'process'`, `static env = […]`, `static hidden = […]`.
 * Throws WORKFLOW_INVALID, also for an instance that says it: that is known too late.
 */
export function processOf(Class: object, instance: object = {}): Pick<Workflow, 'isolation' | 'env' | 'hidden'> {
  const { isolation, env, hidden } = Class as Pick<WorkflowOptions<unknown, string>, 'isolation' | 'env' | 'hidden'>;
  checkOptions({ isolation, env, hidden } as WorkflowOptions<unknown, string>);
  // An agent without isolation may call anything of its own `hidden`.
  const field = (isolation === undefined ? ['isolation'] : ['isolation', 'hidden']).find((name) => Object.hasOwn(instance, name));
  if (field !== undefined) {
    throw new TrainyardError(
      'WORKFLOW_INVALID',
      `${instance.constructor.name} has a field ${field}, expected a static one`,
      "write static isolation = 'process' and static hidden = […]; or start the run with --isolation process",
    );
  }
  return { isolation: isolation ?? 'none', ...defined({ env, hidden }) };
}

/** The roles of a class that declares them as `defineWorkflow` takes them, in `static roles`. Throws WORKFLOW_INVALID. */
export function rolesIn(Class: object, trainable: readonly string[] | undefined): Pick<Workflow, 'roles' | 'othersTrainable'> {
  const { roles } = Class as Pick<WorkflowOptions<unknown, string>, 'roles'>;
  if (roles === undefined) return { roles: {} };
  const options = { roles, ...defined({ trainable }) };
  checkOptions(options);
  return { roles: rolesOf(options), ...(trainable === undefined ? {} : { othersTrainable: false }) };
}

function checkOptions(options: WorkflowOptions<unknown, string>): void {
  const { concurrency, isolation, env, hidden, grading, roles, trainable } = options;
  const mistakes: string[] = [];
  const check = (isRight: boolean, mistake: string): void => void (isRight || mistakes.push(mistake));
  check(
    concurrency === undefined || isWholeFrom(1, concurrency),
    `concurrency: expected a whole number from 1 up, found ${shown(concurrency)}`,
  );
  const isIsolated = isolation === 'process';
  check(isIsolated || isolation === undefined, `isolation: expected "process" or nothing, found ${shown(isolation)}`);
  const isNames = env === undefined || (Array.isArray(env) && env.every(isName));
  check(isNames, `env: expected a list of names of environment variables, found ${described(env)}`);
  check(
    !isNames || env === undefined || isIsolated,
    'env: only a workflow with isolation "process" has an environment of its own',
  );
  const isPaths = hidden === undefined || (Array.isArray(hidden) && hidden.every(isName));
  check(isPaths, `hidden: expected a list of paths, found ${described(hidden)}`);
  check(!isPaths || hidden === undefined || isIsolated, 'hidden: files are hidden only with isolation "process"');
  check(
    [undefined, 'always', 'when-missing'].includes(grading),
    `grading: expected "always" or "when-missing", found ${shown(grading)}`,
  );
  const names = Array.isArray(roles) ? roles : roles && Object.keys(roles);
  const strange = names?.filter((role) => !isName(role)) ?? [];
  check(strange.length === 0, `roles: expected names, found ${strange.map(described).join(', ')}`);
  for (const [role, one] of Array.isArray(roles) ? [] : Object.entries((roles ?? {}) as Record<string, unknown>)) {
    check(
      typeof one === 'object' && one !== null && Object.keys(one).every((key) => key === 'default'),
      `role ${shown(role)}: expected {} or { default: a model }, found ${described(one)}; which roles are trained is said by trainable`,
    );
  }
  const isList = trainable === undefined || Array.isArray(trainable);
  check(isList, `trainable: expected a list of roles, found ${described(trainable)}`);
  const unknown = isList && names ? (trainable ?? []).filter((role) => !names.includes(role)) : [];
  check(unknown.length === 0, `trainable: no role ${unknown.map(shown).join(', ')}; the roles are ${names?.join(', ')}`);
  if (mistakes.length > 0) throw new TrainyardError('WORKFLOW_INVALID', mistakes.join('; also: '));
}

const isName = (given: unknown) => typeof given === 'string' && given !== '';
const isWholeFrom = (least: number, given: unknown) => Number.isSafeInteger(given) && Number(given) >= least;

function rolesOf({ roles, trainable }: WorkflowOptions<unknown, string>): Readonly<Record<string, Role>> {
  const names = (Array.isArray(roles) ? roles : roles === undefined ? trainable : undefined)?.map((name) => [name, {}] as const);
  const given = names ?? Object.entries((roles ?? {}) as Record<string, Pick<Role, 'default'>>);
  const role = ([name, { default: model }]: readonly [string, Pick<Role, 'default'>]): [string, Role] => {
    if (model !== undefined) checkDefaultModel(model, `role ${JSON.stringify(name)}`);
    return [name, { trainable: trainable?.includes(name) ?? true, ...defined({ default: model }) }];
  };
  return Object.fromEntries(given.map(role));
}

function shown(value: unknown): string {
  return typeof value === 'object' ? described(value) : (JSON.stringify(value) ?? kindOf(value));
}

/** `whose` starts the error message: `role "judge"`. */
export function checkDefaultModel(given: unknown, whose: string): asserts given is DefaultModelLike {
  if (typeof given === 'function') return;
  if (typeof given === 'object' && given !== null && 'name' in given && typeof given.name === 'string') {
    const { api = 'openai' } = given as { readonly api?: unknown };
    const isServer = 'baseURL' in given && (api === 'openai' || api === 'anthropic');
    const fault = isServer ? baseURLFault(given.baseURL) : undefined;
    if (fault !== undefined)
      throw new TrainyardError('WORKFLOW_INVALID', `${whose}: the base URL of its default model: ${fault}`);
    if (isServer) return;
    if ('generate' in given && typeof given.generate === 'function') return;
  }
  throw new TrainyardError(
    'WORKFLOW_INVALID',
    `${whose}: expected a default model, found ${described(given)}`,
    "give { name, baseURL, apiKey, api: 'openai' or 'anthropic' } of a server, or a function from { messages } to a text",
  );
}

/** Omits string values, which may contain a key. */
export function described(given: unknown): string {
  if (given === '') return "''";
  if (typeof given === 'string' || typeof given === 'function') return `a ${typeof given}`;
  if (typeof given !== 'object' || given === null) return String(given);
  return Array.isArray(given) ? 'a list' : `an object with ${Object.keys(given).join(', ') || 'nothing'}`;
}

export type GradeFunction = Grader['grade'];

export interface GraderOptions extends Partial<Omit<Grader, typeof graderSymbol | 'grade'>> {
  grade: GradeFunction;
}

/** Instantiated once per process, so that its constructor loads data once. */
export type GraderClass = new () => Pick<GraderOptions, 'grade'> & Partial<GraderOptions>;

const OPTIONS = ['name', 'concurrency', 'deadlineMs', 'retries', 'asksPolicy', 'judges', 'needsEnv', 'grade'] as const;

/** Marks a function, or an object or class with `grade`, as a grader. Throws GRADER_INVALID for anything else. */
export function defineGrader(given: GradeFunction | GraderOptions | GraderClass): Grader {
  if (typeof given === 'function' && !isClass(given)) {
    return { [graderSymbol]: true, name: given.name || 'grader', grade: given as GradeFunction };
  }
  const name = typeof given === 'function' ? given.name : undefined;
  const options = typeof given === 'function' ? made(given as GraderClass) : given;
  if (typeof options !== 'object' || options === null || typeof options.grade !== 'function') {
    const hint = 'write defineGrader(({ task, messages }) => …)';
    throw invalidGrader(`expected a function, or an object or class with grade, found ${kindOf(given)}`, hint);
  }
  const { concurrency, deadlineMs, retries, asksPolicy, judges, needsEnv } = options;
  const unknown = Object.keys(options).filter((key) => !(OPTIONS as readonly string[]).includes(key));
  // An instance of a class may have fields of its own.
  if (name === undefined && unknown.length > 0)
    throw invalidGrader(`a grader has no ${unknown.join(', ')}; it may have ${OPTIONS.join(', ')}`);
  for (const [option, value, least] of [
    ['concurrency', concurrency, 1],
    ['deadlineMs', deadlineMs, 1],
    ['retries', retries, 0],
  ] as const) {
    if (value !== undefined && !isWholeFrom(least, value))
      throw invalidGrader(`${option}: expected a whole number from ${least} up, found ${String(value)}`);
  }
  // The message does not repeat the value: it may be a key given in place of a name.
  if (needsEnv !== undefined && !(Array.isArray(needsEnv) && needsEnv.every((variable) => /^\w+$/.test(String(variable)))))
    throw invalidGrader('needsEnv: expected a list of names of environment variables');
  return {
    [graderSymbol]: true,
    name: options.name ?? name ?? (options.grade.name || 'grader'),
    ...defined({ concurrency, deadlineMs, retries, asksPolicy, judges, needsEnv }),
    grade: (input, ctx) => options.grade(input, ctx),
  };
}

/** For a grader to return if there is nothing to score: the rollout is stored, but neither trained nor used as a baseline. */
export function rejected(why: string): Ungraded {
  return { kind: 'ungraded', why };
}

/** For a grader to call if it cannot score a rollout that it should. This counts as a failed grading; too many stop the run. */
export function unscorable(why: string): never {
  throw new TrainyardError('GRADER_UNSCORABLE', why);
}

export function missingEnv({ needsEnv = [] }: Grader): readonly string[] {
  return needsEnv.filter((name) => (process.env[name]?.trim() ?? '') === '');
}

function made(Class: GraderClass): GraderOptions {
  try {
    return new Class();
  } catch (cause) {
    throw new TrainyardError('GRADER_INIT_FAILED', `new ${Class.name}() threw`, { cause });
  }
}

function invalidGrader(message: string, hint?: string): TrainyardError {
  return new TrainyardError('GRADER_INVALID', message, hint);
}

/** Undefined if the value is not a workflow, or is an abstract base class. */
export function asWorkflow(value: unknown, module: EntryModule = alone): Workflow | undefined {
  return lowered<Workflow>(value, workflowSymbol, module);
}

export function asGrader(value: unknown, module: EntryModule = alone): Grader | undefined {
  return lowered<Grader>(value, graderSymbol, module);
}

/** Throws each problem as soon as it is found. */
export function moduleOf(exports: object, announced: readonly object[] = []): EntryModule {
  return { exports: Object.entries(exports), announced, problem: alone.problem };
}

const alone: EntryModule = {
  exports: [],
  problem: (mistake: TrainyardError) => {
    throw mistake;
  },
};

function lowered<T>(value: unknown, symbol: symbol, module: EntryModule): T | undefined {
  if ((typeof value !== 'object' && typeof value !== 'function') || value === null || !(symbol in value)) return undefined;
  const marked = (value as Record<symbol, true | Lowering<T>>)[symbol];
  return typeof marked === 'function' ? marked.call(value, module) : (value as T);
}

/** Whether a class overrides the base's method and does not declare itself abstract. */
export function isConcrete(Class: object, method: string, base?: object): boolean {
  if (Class === base || saysAbstract(Class)) return false;
  const own = methodOf(Class, method);
  return typeof own === 'function' && own !== (base && methodOf(base, method));
}

/** Whether the class itself has `static abstract = true`; subclasses do not inherit it. */
export function saysAbstract(Class: object): boolean {
  return Object.hasOwn(Class, 'abstract') && Reflect.get(Class, 'abstract') === true;
}

export function methodKind(Class: object, method: string): string {
  return kindOf(methodOf(Class, method));
}

export function isClass(value: object): boolean {
  return /^class\b/.test(Function.prototype.toString.call(value));
}

function methodOf(Class: object, method: string): unknown {
  return (Class as { readonly prototype?: Readonly<Record<string, unknown>> }).prototype?.[method];
}
