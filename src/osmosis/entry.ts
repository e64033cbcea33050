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
import { TrainyardError } from '../core/errors.ts';
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

/** Texts that cannot be a reference are refused here, before any module is loaded. */
export function checkReferences(parts: EntryParts): void {
  const mistakes = NAMES.flatMap((name) => {
    const given = parts[name];
    return typeof given === 'string' && !isReference(given) ? [noColon(name, given)] : [];
  });
  if (mistakes.length > 0) throw together(mistakes);
}

export async function loadEntry(parts: EntryParts): Promise<BackendEntry> {
  const problems: TrainyardError[] = [];
  const values: Record<string, unknown> = {};
  for (const name of NAMES) {
    try {
      values[name] = await resolved(parts[name]);
    } catch (thrown) {
      problems.push(thrown instanceof TrainyardError ? thrown : unloadable(String(parts[name]), thrown));
    }
  }
  if (problems.length > 0) throw together(problems);
  return lowered(values);
}

/** For values only: a text has to be loaded first. */
export function lowered(values: Readonly<Record<string, unknown>>): BackendEntry {
  const problems: TrainyardError[] = [];
  const module: EntryModule = {
    exports: Object.entries(values).filter(([, value]) => value !== undefined && value !== null),
    problem: (mistake) => void problems.push(mistake),
  };
  const { workflow: given, workflowConfig, grader: givenGrader } = values;
  const workflow = attempt(module, () => asWorkflow(given, module));
  const grader = attempt(module, () => asGrader(givenGrader, module));
  if (workflow === undefined && problems.length === 0) problems.push(notFound('workflow', given));
  if (grader === undefined && givenGrader !== undefined && givenGrader !== null && problems.length === 0) {
    problems.push(notFound('grader', givenGrader));
  }
  if (workflow !== undefined) checkOffered(workflow, module);
  const isConfigured = (workflowConfig ?? undefined) !== undefined;
  // A shape takes its own class of config and no other; what it does not take would be lost without a word.
  if (workflow !== undefined && workflow !== given && isConfigured && workflow.config !== workflowConfig && problems.length === 0)
    problems.push(notTaken(workflow, workflowConfig));
  if (workflow === undefined || problems.length > 0) throw together(problems);
  // A shape reads its config itself; a workflow as it is gets the given one.
  const configured = workflow === given && isConfigured ? { ...workflow, config: workflowConfig } : workflow;
  const said = configured.concurrency ?? (workflow === given ? maxConcurrentOf(workflowConfig) : undefined);
  const hasConfig = isConfigured || workflow.config !== undefined;
  return { workflow: configured, grader, concurrency: said ?? (hasConfig ? null : CAREFUL) };
}

function attempt<T>(module: EntryModule, lower: () => T | undefined): T | undefined {
  try {
    return lower();
  } catch (thrown) {
    module.problem(
      thrown instanceof TrainyardError
        ? thrown
        : new TrainyardError('WORKFLOW_INVALID', describeThrown(thrown), { cause: thrown }),
    );
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

async function resolved(given: unknown): Promise<unknown> {
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
  if (specifier.includes(':')) throw noColon('a module', given);
  return pathToFileURL(createRequire(join(process.cwd(), 'package.json')).resolve(specifier)).href;
}

function noColon(what: string, text: string): TrainyardError {
  return new TrainyardError('USAGE', `${what}: invalid import path ${JSON.stringify(text)}, expected "module:export"`, {
    hint: 'write "./rollout.ts:MyWorkflow", or give the value itself',
  });
}

function unloadable(reference: string, cause: unknown): TrainyardError {
  return new TrainyardError('ENTRY_UNLOADABLE', `cannot import ${JSON.stringify(reference)}: ${describeThrown(cause)}`, {
    cause,
  });
}

function notTaken({ name }: Workflow, config: unknown): TrainyardError {
  return new TrainyardError(
    'CONFIG_INVALID',
    `workflowConfig is ${describeValue(config)}, which the workflow ${name} does not take`,
    {
      hint: 'give an instance of its config class, such as one that extends AgentWorkflowConfig, or leave it out',
    },
  );
}

function notFound(what: 'workflow' | 'grader', given: unknown): TrainyardError {
  const define = what === 'workflow' ? 'defineWorkflow' : 'defineGrader';
  return new TrainyardError(
    what === 'workflow' ? 'WORKFLOW_NOT_FOUND' : 'GRADER_NOT_FOUND',
    `expected a ${what}, found ${describeValue(given)}`,
    {
      hint: `give what ${define}(…) made, or a concrete class of a shape, such as one that extends ${what === 'workflow' ? 'AgentWorkflow' : 'Grader'}`,
    },
  );
}
