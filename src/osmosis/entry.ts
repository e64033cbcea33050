/**
 * What a backend is given, made into a workflow and a grader: values, or texts that say where a module exports them. All mistakes are told
 * together, before anything runs.
 */
import { createRequire } from 'node:module';
import { isAbsolute, join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import type { EntryModule, Grader, Workflow } from '../core/contracts.ts';
import { asGrader, asWorkflow } from '../core/define.ts';
import { describeThrown, describeValue } from '../core/describe.ts';
import { type ErrorCode, TrainyardError } from '../core/errors.ts';
import { together } from '../rollout/discovery.ts';
import { noDefaultModels } from './remote-policy.ts';

/** Each a value or `"module:export"`. */
export interface EntryParts {
  readonly workflow: unknown;
  readonly workflowConfig?: unknown;
  readonly grader?: unknown;
  readonly graderConfig?: unknown;
}

export interface BackendEntry {
  readonly workflow: Workflow;
  readonly grader: Grader | undefined;
  /** Rollouts at once; null: as many as come. */
  readonly concurrency: number | null;
}

/** Where nobody said anything about concurrency. */
const CAREFUL = 4;
const NAMES = ['workflow', 'workflowConfig', 'grader', 'graderConfig'] as const;

/** The entry, where all of it are values; undefined where modules have to be loaded. Throws what is wrong with values and references. */
export function entryOf(parts: EntryParts): BackendEntry | undefined {
  const texts = NAMES.filter((name) => typeof parts[name] === 'string');
  const mistakes = texts.filter((name) => !isReference(parts[name] as string)).map((name) => noReference(name, parts[name]));
  if (mistakes.length > 0) throw together(mistakes);
  return texts.length === 0 ? lowered(parts) : undefined;
}

export async function loadEntry(parts: EntryParts): Promise<BackendEntry> {
  const problems: TrainyardError[] = [];
  const values: { -readonly [name in keyof EntryParts]: unknown } = { workflow: undefined };
  for (const name of NAMES) {
    try {
      values[name] = await loaded(parts[name]);
    } catch (cause) {
      const message = `cannot import ${JSON.stringify(parts[name])}: ${describeThrown(cause)}`;
      problems.push(cause instanceof TrainyardError ? cause : new TrainyardError('ENTRY_UNLOADABLE', message, { cause }));
    }
  }
  if (problems.length > 0) throw together(problems);
  return lowered(values);
}

function lowered({ workflow: given, workflowConfig, grader: givenGrader, graderConfig }: EntryParts): BackendEntry {
  const problems: TrainyardError[] = [];
  const values = { workflow: given, workflowConfig, grader: givenGrader, graderConfig };
  const module: EntryModule = {
    exports: Object.entries(values).filter(([, value]) => isGiven(value)),
    problem: (mistake) => void problems.push(mistake),
  };
  const workflow = lower('workflow', given, () => asWorkflow(given, module), problems);
  const grader = isGiven(givenGrader) ? lower('grader', givenGrader, () => asGrader(givenGrader, module), problems) : undefined;
  if (workflow === undefined) throw together(problems);
  // A shape reads its config itself; a workflow as it is gets the given one.
  const isPlain = workflow === given;
  checkOffered(workflow, module);
  // A shape takes its own class of config and no other; what it does not take would be lost without a word.
  if (!isPlain && isGiven(workflowConfig) && workflow.config !== workflowConfig && problems.length === 0) {
    problems.push(notTaken(workflow, workflowConfig));
  }
  if (problems.length > 0) throw together(problems);
  const configured = isPlain && isGiven(workflowConfig) ? { ...workflow, config: workflowConfig } : workflow;
  const concurrency = configured.concurrency ?? (isPlain ? maxConcurrentOf(workflowConfig) : undefined);
  const isConfigured = isGiven(workflowConfig) || workflow.config !== undefined;
  return { workflow: configured, grader, concurrency: concurrency ?? (isConfigured ? null : CAREFUL) };
}

const isGiven = (value: unknown): boolean => value !== undefined && value !== null;

function lower<T>(
  what: 'workflow' | 'grader',
  given: unknown,
  make: () => T | undefined,
  problems: TrainyardError[],
): T | undefined {
  const before = problems.length;
  try {
    const made = make();
    if (made === undefined && problems.length === before) problems.push(notFound(what, given));
    return made;
  } catch (cause) {
    const known = cause instanceof TrainyardError;
    problems.push(known ? cause : new TrainyardError('WORKFLOW_INVALID', describeThrown(cause), { cause }));
    return undefined;
  }
}

function maxConcurrentOf(config: unknown): number | undefined {
  const { concurrency } = (config ?? {}) as { readonly concurrency?: { readonly maxConcurrent?: unknown } };
  const most = concurrency?.maxConcurrent;
  return typeof most === 'number' ? most : undefined;
}

function checkOffered({ name, isolation, roles }: Workflow, { problem }: EntryModule): void {
  if (isolation === 'process') {
    problem(
      new TrainyardError('WORKFLOW_INVALID', `workflow ${name} wants a process per rollout, which LocalBackend does not give`, {
        hint: 'leave isolation out; on a rollout server keys and answers of other rollouts are in the same process',
      }),
    );
  }
  for (const [role, { trainable, default: given }] of Object.entries(roles)) {
    if (!trainable && given !== undefined) problem(noDefaultModels(role));
  }
}

function isReference(text: string): boolean {
  const colon = text.lastIndexOf(':');
  return colon > 0 && colon < text.length - 1;
}

async function loaded(given: unknown): Promise<unknown> {
  if (typeof given !== 'string') return given;
  const colon = given.lastIndexOf(':');
  const [specifier, name] = [given.slice(0, colon), given.slice(colon + 1)];
  const exports = (await import(urlOf(specifier, given))) as Readonly<Record<string, unknown>>;
  if (Object.hasOwn(exports, name)) return exports[name];
  const names = Object.keys(exports).join(', ') || 'nothing';
  throw new TrainyardError('WORKFLOW_NOT_FOUND', `${specifier} does not export ${JSON.stringify(name)}; it exports ${names}`, {
    hint: 'give "module:export", with a name that the module exports',
  });
}

/** Paths are from the working directory; other names are packages that are found from there. */
function urlOf(specifier: string, given: string): string {
  if (specifier.startsWith('file:')) return specifier;
  if (specifier.startsWith('.') || isAbsolute(specifier)) return pathToFileURL(resolve(specifier)).href;
  if (specifier.includes(':')) throw noReference('a module', given);
  return pathToFileURL(createRequire(join(process.cwd(), 'package.json')).resolve(specifier)).href;
}

function noReference(what: string, text: unknown): TrainyardError {
  return new TrainyardError('USAGE', `${what}: invalid import path ${JSON.stringify(text)}, expected "module:export"`, {
    hint: 'write "./rollout.ts:MyWorkflow", or give the value itself',
  });
}

function notTaken({ name }: Workflow, config: unknown): TrainyardError {
  const found = `workflowConfig is ${describeValue(config)}, which the workflow ${name} does not take`;
  return new TrainyardError('CONFIG_INVALID', found, {
    hint: 'give an instance of its config class, such as one that extends AgentWorkflowConfig, or leave it out',
  });
}

function notFound(what: 'workflow' | 'grader', given: unknown): TrainyardError {
  const [code, define, base]: [ErrorCode, string, string] =
    what === 'workflow'
      ? ['WORKFLOW_NOT_FOUND', 'defineWorkflow', 'AgentWorkflow']
      : ['GRADER_NOT_FOUND', 'defineGrader', 'Grader'];
  return new TrainyardError(code, `expected a ${what}, found ${describeValue(given)}`, {
    hint: `give what ${define}(…) made, or a concrete class of a shape, such as one that extends ${base}`,
  });
}
