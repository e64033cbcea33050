/**
 * Configs of workflows and graders: instances at the top of a module, found by discovery among its exports.
 *
 * A config of one's own is a subclass whose fields have initialisers. Those run after this constructor, so nothing but what a constructor
 * is given can be checked here: the whole is checked when its workflow or grader is lowered, all mistakes at once.
 */
import { describeValue } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { checkNames } from '../core/near-name.ts';

export type ConfigKind = 'workflow' | 'grader';

/** Registered, so that two copies of the package agree. */
const configSymbol: unique symbol = Symbol.for('trainyard.osmosis.config') as never;

const MOST_NAME = 256;

/** So many executions at once; null: as many as the run has. */
export class ConcurrencyConfig {
  readonly maxConcurrent: number | null;

  constructor(fields: { readonly maxConcurrent?: number | null } = {}) {
    checkNames(fields, ['maxConcurrent'], 'ConcurrencyConfig', 'CONFIG_INVALID');
    const { maxConcurrent = null } = fields;
    const mistake = maxConcurrentMistake(maxConcurrent);
    if (mistake !== undefined) throw new TrainyardError('CONFIG_INVALID', `ConcurrencyConfig: ${mistake}`);
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

/** What constructors were given: a field initialiser of a subclass may have taken its place without a word. */
const givenTo = new WeakMap<object, ConfigFields>();

class BaseConfig {
  /** Required: 1 to 256 characters. */
  name = '';
  description: string | null = null;
  concurrency: ConcurrencyConfig = new ConcurrencyConfig();

  constructor(fields: ConfigFields = {}) {
    Object.assign(this, fields);
    givenTo.set(this, fields);
  }
}

/** Of a workflow. Any further fields are the workflow's own. */
export class AgentWorkflowConfig extends BaseConfig {
  get [configSymbol](): ConfigKind {
    return 'workflow';
  }
}

/** Of a grader. Any further fields are the grader's own. */
export class GraderConfig extends BaseConfig {
  get [configSymbol](): ConfigKind {
    return 'grader';
  }
}

export function configKindOf(value: unknown): ConfigKind | undefined {
  if (typeof value !== 'object' || value === null || !(configSymbol in value)) return undefined;
  return value[configSymbol] as ConfigKind;
}

/** What is wrong with a config, in words. */
export function configMistakes(config: AgentWorkflowConfig | GraderConfig): readonly string[] {
  const { name, description, concurrency } = config as Partial<Record<'name' | 'description' | 'concurrency', unknown>>;
  const mistakes: string[] = [];
  const nameIs = nameMistake(name);
  if (nameIs !== undefined) mistakes.push(`name: ${nameIs}`);
  if (description !== undefined && description !== null && typeof description !== 'string') {
    mistakes.push(`description: expected a text or null, found ${describeValue(description)}`);
  }
  const limit = concurrencyMistake(concurrency);
  if (limit !== undefined) mistakes.push(`concurrency: ${limit}`);
  for (const [field, given] of Object.entries(givenTo.get(config) ?? {})) {
    const found: unknown = (config as unknown as Record<string, unknown>)[field];
    if (Object.is(found, given) || given === undefined) continue;
    mistakes.push(
      `${field}: the constructor was given ${describeValue(given)}, but the class's own initialiser made it ${describeValue(found)}; write Object.assign(new ${config.constructor.name}(), { ${field}: … })`,
    );
  }
  return mistakes;
}

/** Undefined: a good name. */
export function nameMistake(name: unknown): string | undefined {
  const length = typeof name === 'string' ? name.trim().length : 0;
  if (length >= 1 && length <= MOST_NAME) return undefined;
  const found = length > MOST_NAME ? `${length}` : describeValue(name);
  return `expected a name of 1 to ${MOST_NAME} characters, found ${found}`;
}

/** Absent: no limit. */
export function limitOf(config: AgentWorkflowConfig | GraderConfig | undefined): number | undefined {
  return config?.concurrency?.maxConcurrent ?? undefined;
}

function concurrencyMistake(concurrency: unknown): string | undefined {
  if (concurrency === undefined || concurrency === null) return undefined;
  if (typeof concurrency === 'object' && 'maxConcurrent' in concurrency) return maxConcurrentMistake(concurrency.maxConcurrent);
  return `expected new ConcurrencyConfig({ maxConcurrent: … }), found ${describeValue(concurrency)}`;
}

function maxConcurrentMistake(given: unknown): string | undefined {
  if (given === null || given === undefined || (Number.isSafeInteger(given) && (given as number) >= 1)) return undefined;
  return `maxConcurrent: expected a whole number from 1 up, or null for no limit, found ${describeValue(given)}`;
}
