/**
 * Finds the config of a workflow or grader class: the one that its module exports, or made while it was imported. Checks class and config
 * before anything runs, reporting all mistakes at once. Users subclass a config and give its fields initialisers; those run after the base constructor, so a config can
 * only be checked once its workflow or grader is lowered.
 */
import { announce } from '../../core/context.ts';
import type { EntryModule } from '../../core/contracts.ts';
import { isConcrete, methodKind, processOf } from '../../core/define.ts';
import { checkNames, describeThrown, describeValue } from '../../core/describe.ts';
import { TrainyardError } from '../../core/errors.ts';
import { copyConfig } from '../../core/json.ts';

type ConfigKind = 'workflow' | 'grader';

/** In the global symbol registry, so that two copies of the package agree. */
const configSymbol: unique symbol = Symbol.for('trainyard.osmosis.config') as never;

const MOST_NAME = 256;

/** Limits how many executions run at once; null means no limit besides the run's own. */
export class ConcurrencyConfig {
  readonly maxConcurrent: number | null;

  constructor(fields: { readonly maxConcurrent?: number | null } = {}) {
    checkNames(
      Object(fields) === fields ? fields : { [describeValue(fields)]: 0 },
      ['maxConcurrent'],
      'ConcurrencyConfig',
      'CONFIG_INVALID',
    );
    const { maxConcurrent = null } = fields;
    if (!isLimit(maxConcurrent)) {
      const expected = 'a whole number from 1 up, or null for no limit';
      const found = `ConcurrencyConfig: maxConcurrent: expected ${expected}, found ${describeValue(maxConcurrent)}`;
      throw new TrainyardError('CONFIG_INVALID', found);
    }
    this.maxConcurrent = maxConcurrent;
    Object.freeze(this);
  }
}

export interface ConfigFields {
  readonly name?: string;
  readonly description?: string | null;
  readonly concurrency?: ConcurrencyConfig;
  readonly [extra: string]: unknown;
}

/** The constructor arguments, kept because a subclass's field initialiser may silently overwrite them. */
const givenTo = new WeakMap<object, ConfigFields>();

class BaseConfig {
  /** Required: 1 to 256 characters. */
  name = '';
  description: string | null = null;
  concurrency: ConcurrencyConfig = new ConcurrencyConfig();

  constructor(fields: ConfigFields = {}) {
    Object.assign(this, fields);
    givenTo.set(this, fields);
    announce(this);
  }
}

/** A workflow's config. Subclasses may add fields. */
export class AgentWorkflowConfig extends BaseConfig {
  get [configSymbol](): ConfigKind {
    return 'workflow';
  }
}

/** A grader's config. Subclasses may add fields. */
export class GraderConfig extends BaseConfig {
  get [configSymbol](): ConfigKind {
    return 'grader';
  }
}

const KINDS = {
  workflow: {
    config: 'AgentWorkflowConfig',
    method: 'run',
    notAsync: 'WORKFLOW_NOT_ASYNC',
    badName: 'WORKFLOW_INVALID',
    initFailed: 'WORKFLOW_INIT_FAILED',
    initHint: { hint: 'what belongs to one rollout is built in run' },
  },
  grader: {
    config: 'GraderConfig',
    method: 'grade',
    notAsync: 'GRADER_INVALID',
    badName: 'GRADER_INVALID',
    initFailed: 'GRADER_INIT_FAILED',
    initHint: {},
  },
} as const;

export type ConfiguredClass<Instance> = new (config: unknown) => Instance;

interface Configured {
  readonly named: { readonly name: string /** Absent: no limit. */; readonly concurrency?: number };
  readonly config: BaseConfig | undefined;
}

/** Undefined if the class is abstract, or if it or the module's config is unusable; the latter is reported to `module.problem`. */
export function configured(
  kind: ConfigKind,
  Class: ConfiguredClass<unknown>,
  base: object,
  module: EntryModule,
): Configured | undefined {
  if (!isConcrete(Class, KINDS[kind].method, base)) return undefined;
  const config = configOf(kind, module);
  const mistakes = classMistakes(kind, Class, config);
  for (const mistake of mistakes) module.problem(mistake);
  if (mistakes.length > 0) return undefined;
  const concurrency = config?.concurrency?.maxConcurrent ?? undefined;
  const name = (config?.name ?? Class.name).trim();
  return { config, named: { name, ...(concurrency === undefined ? {} : { concurrency }) } };
}

/** Creates one instance, so that an error in the constructor shows before anything runs. */
function classMistakes(kind: ConfigKind, Class: ConfiguredClass<unknown>, config: BaseConfig | undefined) {
  const { method, notAsync, badName, initFailed, initHint } = KINDS[kind];
  const mistakes: TrainyardError[] = [];
  const found = methodKind(Class, method);
  if (found !== 'AsyncFunction') {
    const hint = `write async ${method}(ctx) { … }`;
    mistakes.push(new TrainyardError(notAsync, `${Class.name}.${method}: expected an async method, found ${found}`, hint));
  }
  if (config === undefined && !isName(Class.name)) {
    mistakes.push(new TrainyardError(badName, `the name of the ${kind} class: ${unlike(NAME, Class.name)}`));
  }
  try {
    const instance = new Class(copyConfig(config) ?? null) as object;
    if (kind === 'workflow') processOf(Class, instance);
  } catch (cause) {
    if (cause instanceof TrainyardError) return [...mistakes, cause];
    const message = `new ${Class.name}(config) threw ${describeThrown(cause)}`;
    mistakes.push(new TrainyardError(initFailed, message, { cause, ...initHint }));
  }
  return mistakes;
}

/** Two classes in one module share its config, whose mistakes are reported once. */
const known = new WeakMap<EntryModule['exports'], Map<ConfigKind, BaseConfig | undefined>>();

function configOf(kind: ConfigKind, module: EntryModule): BaseConfig | undefined {
  const ofModule = known.get(module.exports) ?? new Map<ConfigKind, BaseConfig | undefined>();
  known.set(module.exports, ofModule);
  if (!ofModule.has(kind)) ofModule.set(kind, findConfig(kind, module));
  return ofModule.get(kind);
}

function findConfig(kind: ConfigKind, module: EntryModule): BaseConfig | undefined {
  const found = new Map<BaseConfig, string>();
  for (const [name, value] of module.exports) if (isConfig(value, kind) && !found.has(value)) found.set(value, name);
  for (const made of module.announced ?? [])
    if (isConfig(made, kind) && !found.has(made))
      found.set(made, `${made.constructor.name} ${describeValue(made.name)} (not exported)`);
  const [[config, name] = []] = found;
  if (config === undefined) return undefined;
  if (found.size > 1) {
    const { config: called } = KINDS[kind];
    const names = [...found.values()].toSorted().join(', ');
    module.problem(
      new TrainyardError(
        'CONFIG_INVALID',
        `multiple ${called} instances found: ${names}; expected at most one`,
        `keep only one ${called} instance in the entry module, or move the others to a file of their own`,
      ),
    );
    return undefined;
  }
  const mistakes = configMistakes(config);
  if (mistakes.length === 0) return config;
  module.problem(new TrainyardError('CONFIG_INVALID', `${name}: ${mistakes.join('; also: ')}`));
  return undefined;
}

function isConfig(value: unknown, kind: ConfigKind): value is BaseConfig {
  return typeof value === 'object' && value !== null && configSymbol in value && value[configSymbol] === kind;
}

const NAME = `a name of 1 to ${MOST_NAME} characters`;
const isName = (value: unknown): boolean =>
  typeof value === 'string' && value.trim().length >= 1 && value.trim().length <= MOST_NAME;
const isLimit = (value: unknown): boolean => value == null || (Number.isSafeInteger(value) && (value as number) >= 1);
const isConcurrency = (value: unknown): boolean =>
  value == null || (typeof value === 'object' && 'maxConcurrent' in value && isLimit(value.maxConcurrent));

const FIELDS: Readonly<Record<keyof BaseConfig, readonly [expected: string, isRight: (value: unknown) => boolean]>> = {
  name: [NAME, isName],
  description: ['a text or null', (value) => value == null || typeof value === 'string'],
  concurrency: ['new ConcurrencyConfig({ maxConcurrent: … })', isConcurrency],
};

const unlike = (expected: string, found: unknown): string => `expected ${expected}, found ${describeValue(found)}`;

function configMistakes(config: BaseConfig): readonly string[] {
  const values = config as unknown as Readonly<Record<string, unknown>>;
  const wrong = Object.entries(FIELDS).flatMap(([field, [expected, isRight]]) =>
    isRight(values[field]) ? [] : [`${field}: ${unlike(expected, values[field])}`],
  );
  const lost = Object.entries(givenTo.get(config) ?? {}).flatMap(([field, given]) => {
    if (given === undefined || Object.is(values[field], given)) return [];
    const found = `the constructor was given ${describeValue(given)}, but the class's own initialiser made it ${describeValue(values[field])}`;
    return [`${field}: ${found}; write Object.assign(new ${config.constructor.name}(), { ${field}: … })`];
  });
  return [...wrong, ...lost];
}
