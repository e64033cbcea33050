/**
 * Finds the workflow and the grader among the exports of the user's entry file, by core's symbols alone. Reports all mistakes together,
 * before anything runs.
 */
import { readdir, realpath, stat } from 'node:fs/promises';
import { basename, dirname, extname, join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { type EntryModule, type Grader, graderSymbol, type Workflow, workflowSymbol } from '../core/contracts.ts';
import { asGrader, asWorkflow, isClass } from '../core/define.ts';
import { describeThrown, kindOf } from '../core/describe.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { announcedBy, type Exports, importUserModule, needsTransform, transformerInUse } from '../processes/user-modules.ts';

export interface ModuleExport {
  readonly url: string;
  readonly exportName: string;
  /** Set if the module does not export the workflow: URL and arguments of the module whose `workflowNamed` makes it. */
  readonly by?: readonly [url: string, ...args: string[]];
}

export interface Entry {
  readonly workflow: Workflow;
  readonly grader?: Grader | undefined;
  /** Name of the exported class's base class, or `defineWorkflow`. */
  readonly shape?: string;
  /** Absent if workflow and grader were passed as values. */
  readonly workflowModule?: ModuleExport;
  /** For a flow that was chosen by name. */
  readonly flowModule?: ModuleExport;
  readonly graderModule?: ModuleExport;
}

/**
 * Returns the file's entry and everything wrong with it. `given` supplies the workflow, after the import, if the file need not export one.
 */
export async function inspectEntry(
  path: string,
  given?: () => Workflow,
): Promise<{ readonly entry?: Entry; readonly problems: readonly TrainyardError[] }> {
  const problems: TrainyardError[] = [];
  try {
    const entry = await read(path, (mistake) => problems.push(mistake), given);
    return entry === undefined ? { problems } : { entry, problems };
  } catch (thrown) {
    if (!(thrown instanceof TrainyardError)) throw thrown;
    return { problems: [...problems, thrown] };
  }
}

/** Several mistakes become one error with the first one's code. */
export function together(mistakes: readonly TrainyardError[]): TrainyardError {
  const [first] = mistakes;
  if (first === undefined) return new TrainyardError('WORKFLOW_NOT_FOUND', 'the entry exports no workflow');
  if (mistakes.length === 1) return first;
  const hint = [...new Set(mistakes.flatMap((mistake) => mistake.hint ?? []))].join('; ');
  return new TrainyardError(first.code, mistakes.map(({ message }) => message).join('; also: '), { hint, cause: first });
}

async function read(path: string, problem: EntryModule['problem'], given?: () => Workflow): Promise<Entry | undefined> {
  const file = resolve(path);
  const found = await stat(file).catch(() => undefined);
  if (!found?.isFile()) {
    const meant = found?.isDirectory() ? `, such as ${path}/agent.ts` : await nearTo(path);
    throw new TrainyardError(
      'FILE_NOT_FOUND',
      found?.isDirectory() ? `${path} is a folder` : `no entry file at ${path}`,
      `give the path of the module that exports your workflow${meant}`,
    );
  }
  // The real path: a link could be changed during the run to lead to another grader.
  const url = pathToFileURL(await realpath(file)).href;
  const exports = Object.entries(await importEntry(url, path));
  let mistakes = 0;
  const module: EntryModule = {
    exports,
    announced: announcedBy(url),
    problem: (mistake) => {
      mistakes++;
      problem(mistake);
    },
  };
  const chosen = given?.();
  const workflowNames: string[] = [];
  const graderNames: string[] = [];
  const workflows = chosen === undefined ? await workflowsOf(module, workflowNames) : [];
  const mistakesOfWorkflows = mistakes;
  const graders = exportsOf(module, asGrader, graderNames);
  const graderIsMissing = graders.length === 0 && mistakes === mistakesOfWorkflows;
  const meant = graderIsMissing ? exports.find(([name, value]) => isMeantAsGrader(name, value)) : undefined;
  const others = exports.filter((one) => one !== meant);
  if (chosen === undefined && workflows.length === 0 && mistakes === 0) module.problem(noWorkflow(path, exports, others));
  if (meant !== undefined) module.problem(noGraderYet(...meant));
  only('workflow', workflowNames, path, module);
  only('grader', graderNames, path, module);
  const [workflow] = workflows;
  const [grader] = graders;
  if (workflow?.value.needsGrader && graderIsMissing && meant === undefined) module.problem(noGrader(path, workflow.name));
  if (mistakes > 0) return undefined;
  const graded = grader === undefined ? {} : { grader: grader.value, graderModule: { url, exportName: grader.name } };
  if (chosen !== undefined) return { workflow: chosen, ...graded };
  if (workflow === undefined) return undefined;
  return {
    workflow: workflow.value,
    shape: shapeOf(workflow.exported),
    workflowModule: { url, exportName: workflow.name },
    ...graded,
  };
}

const MODULE = /\.[cm]?[jt]sx?$/;
const MOST_LETTERS = 2;

/** Names a module in that folder whose name differs in one place, by few letters, or in its ending. */
async function nearTo(path: string): Promise<string> {
  const stem = (name: string): string => basename(name, extname(name)).toLowerCase();
  const wanted = stem(path);
  const differs = (name: string): number => {
    const [short = '', long = ''] = [stem(name), wanted].toSorted((a, b) => a.length - b.length);
    let start = 0;
    let end = 0;
    while (start < short.length && short[start] === long[start]) start++;
    while (end < short.length - start && short.at(-1 - end) === long.at(-1 - end)) end++;
    return long.length - start - end;
  };
  const names = (await readdir(dirname(path)).catch(() => [])).filter((name) => MODULE.test(name));
  const [nearest = ''] = names.toSorted((a, b) => differs(a) - differs(b));
  return nearest !== '' && differs(nearest) <= MOST_LETTERS ? `; did you mean ${join(dirname(path), nearest)}?` : '';
}

interface Found<T> {
  readonly name: string;
  readonly exported: unknown;
  readonly value: T;
}

/**
 * Reports exports that cannot be lowered to `problem`. A value exported under two names counts once, under the first. `meant` receives the
 * names of those that were found or refused.
 */
export function exportsOf<T>(
  module: EntryModule,
  lower: (value: unknown, module: EntryModule) => T | undefined,
  meant: string[] = [],
): readonly Found<T>[] {
  const { exports } = module;
  const firstNames = new Map(exports.toReversed().map(([name, exported]) => [exported, name]));
  return exports.flatMap(([name, exported]) => {
    if (firstNames.get(exported) !== name) return [];
    let isRefused = false;
    const problem = (mistake: TrainyardError): void => {
      isRefused = true;
      module.problem(mistake);
    };
    const value = loweredOr(name, problem, () => lower(exported, { ...module, problem }));
    if (value !== undefined || isRefused) meant.push(name);
    return value === undefined ? [] : [{ name, exported, value }];
  });
}

function loweredOr<T>(name: string, problem: EntryModule['problem'], lower: () => T): T | undefined {
  try {
    return lower();
  } catch (thrown) {
    const found = `export ${name} cannot be used: `;
    const isOurs = thrown instanceof TrainyardError;
    problem(isOurs ? thrown : new TrainyardError('WORKFLOW_INVALID', `${found}${describeThrown(thrown)}`, { cause: thrown }));
    return undefined;
  }
}

/** If nothing is marked, an agent after AReaL counts, which needs neither base class nor wrapper. */
export async function workflowsOf(module: EntryModule, meant: string[] = []): Promise<readonly Found<Workflow>[]> {
  const marked = exportsOf(module, asWorkflow, meant);
  if (meant.length > 0 || !module.exports.some(([, value]) => isAgent(value))) return marked;
  const { agentWorkflow } = await import('../shapes/areal/agent-workflow.ts');
  return exportsOf(module, (value) => (isAgent(value) ? agentWorkflow(value as never) : undefined), meant);
}

/** A class without a base, or an object, whose async run(data, extras) uses the `baseURL` that only such an agent is given. */
function isAgent(value: unknown): boolean {
  const run = runOf(value);
  return kindOf(run) === 'AsyncFunction' && /\bbaseURL\b/.test(String(run)) && isForAgent(run);
}

const isForAgent = (run: unknown): boolean => typeof run === 'function' && run.length === 2;

function runOf(value: unknown): unknown {
  if (typeof value === 'function') {
    return isClass(value) && Object.getPrototypeOf(value) === Function.prototype ? value.prototype.run : undefined;
  }
  return typeof value === 'object' && value !== null && !(workflowSymbol in value) ? Reflect.get(value, 'run') : undefined;
}

function shapeOf(exported: unknown): string {
  let base: unknown = exported;
  while (typeof base === 'function' && !Object.hasOwn(base, workflowSymbol)) base = Object.getPrototypeOf(base);
  return typeof base === 'function' && base.name !== '' ? base.name : 'defineWorkflow';
}

function noGrader(path: string, workflow: string): TrainyardError {
  return new TrainyardError(
    'GRADER_NOT_FOUND',
    `${path} exports no grader, and ${workflow} gives no rewards itself`,
    'export a class that extends Grader and has an async grade(ctx)',
  );
}

/** Catches a grader that was not wrapped: every rollout would lack its reward. Exports with the symbol are abstract bases. */
function isMeantAsGrader(name: string, value: unknown): boolean {
  const isMarked = value instanceof Object && graderSymbol in value;
  return !isMarked && (name === 'grader' || (/grader$/i.test(name) && gradesItself(value)));
}

function gradesItself(value: unknown): boolean {
  if (typeof value !== 'object' && typeof value !== 'function') return false;
  const has = (of: unknown): boolean => of instanceof Object && 'grade' in of && typeof of.grade === 'function';
  return has(value) || (typeof value === 'function' && has(value.prototype));
}

function noGraderYet(name: string, value: unknown): TrainyardError {
  const wrap = `wrap it in defineGrader(…)`;
  if (typeof value !== 'function') {
    const hint = gradesItself(value) ? wrap : `write export const ${name} = defineGrader(({ task, messages }) => …)`;
    return new TrainyardError('GRADER_INVALID', `the export ${name} is no grader, it is ${article(kindOf(value))}`, hint);
  }
  if (isClass(value)) return new TrainyardError('GRADER_INVALID', `the export ${name} is a plain class, no grader`, wrap);
  // A function written in place has the export's name.
  const made = value.name !== '' && value.name !== name ? value.name : undefined;
  return new TrainyardError(
    'GRADER_INVALID',
    `the export ${name} is ${made ? `the function ${made}` : 'a plain function'}, no grader`,
    made ? `if ${made} makes graders, call it: ${name} = ${made}(…); if it grades, ${wrap}` : wrap,
  );
}

function article(kind: string): string {
  return /^(Undefined|Null)$/.test(kind) ? kind.toLowerCase() : `${/^[AEIO]/.test(kind) ? 'an' : 'a'} ${kind}`;
}

function noWorkflow(path: string, exports: EntryModule['exports'], others: EntryModule['exports']): TrainyardError {
  const names = exports.map(([name]) => name).join(', ') || 'nothing';
  return new TrainyardError(
    'WORKFLOW_NOT_FOUND',
    `${path} exports no workflow (it exports ${names})`,
    unmarked(others) ?? 'export default defineWorkflow(async (ctx) => { … })',
  );
}

function unmarked(exported: EntryModule['exports']): string | undefined {
  const base = exported.find(([, value]) => typeof value === 'function' && workflowSymbol in value)?.[0];
  if (base !== undefined) return `${base} is an abstract base class: give it its async method, or export a class that has one`;
  const agent = exported.find(([, value]) => isForAgent(runOf(value)))?.[0];
  if (agent !== undefined)
    return `${agent} is no workflow yet: wrap it in agentWorkflow(…) of trainyard/areal if it is an agent with an async run(data, { baseURL, apiKey })`;
  const [name, value] = exported.find(([, one]) => typeof one === 'function') ?? [];
  return name === undefined
    ? undefined
    : `${name} is a plain ${isClass(value as object) ? 'class' : 'function'}: wrap it in defineWorkflow(…)`;
}

function only(what: string, names: readonly string[], path: string, { problem }: EntryModule): void {
  if (names.length < 2) return;
  const sorted = names.toSorted().join(', ');
  problem(
    new TrainyardError(
      'WORKFLOW_AMBIGUOUS',
      `${path} exports ${names.length} ${what}s (${sorted}), expected one`,
      `keep one ${what} per entry file; move the others to files of their own`,
    ),
  );
}

/** Throws ENTRY_UNLOADABLE. `path`: the user's name for the file. */
export async function importEntry(url: string, path: string): Promise<Exports> {
  try {
    return await importUserModule(url);
  } catch (cause) {
    if (cause instanceof TrainyardError) throw cause;
    const needs = transformerInUse() === '' ? await needsTransform(url) : undefined;
    const place = placeOf(cause) || (needs === undefined ? '' : `: ${needs}`);
    const hint = [...(needs === undefined ? [] : [INSTALL]), hintFor(cause) ?? []].flat().join('; or ');
    throw new TrainyardError('ENTRY_UNLOADABLE', `cannot import ${path}: ${firstLine(messageOf(cause))}${place}`, {
      cause,
      ...(hint ? { hint } : {}),
    });
  }
}

const INSTALL = 'npm install --save-dev tsx, with which Trainyard loads what Node alone does not';

const CANNOT: readonly (readonly [code: string | undefined, says: string, hint: string])[] = [
  [
    'ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX',
    '',
    'Node runs TypeScript by removing types; enum, namespace and parameter properties have no meaning without them: use const objects, modules and plain fields',
  ],
  ['ERR_UNKNOWN_FILE_EXTENSION', '.tsx', 'Node cannot load .tsx; put the workflow into a .ts file without JSX'],
  ['ERR_UNKNOWN_FILE_EXTENSION', '', 'use a .ts, .mts, .js or .mjs file'],
  [
    'ERR_MODULE_NOT_FOUND',
    "package 'trainyard'",
    'in a clone of Trainyard, put the entry into a folder without a package.json of its own; elsewhere install the packed package',
  ],
  ['ERR_MODULE_NOT_FOUND', 'package', 'install the missing package next to the entry file'],
  ['ERR_MODULE_NOT_FOUND', '', 'Node wants full file names in relative imports: write ./file.ts, not ./file'],
  ['ERR_UNSUPPORTED_DIR_IMPORT', '', 'import a file, not a folder: write ./folder/index.ts'],
  [
    undefined,
    'OPENAI_API_KEY',
    "make the client inside the workflow's run, or share one of all rollouts: new OpenAI({ apiKey: 'unused', fetch: rolloutFetch })",
  ],
  [undefined, 'Cannot use import statement outside a module', 'add "type": "module" to your package.json, or name the file .mts'],
];

function hintFor(cause: unknown): string | undefined {
  const found = (cause as { code?: unknown }).code;
  return CANNOT.find(([code, says]) => (code ?? found) === found && messageOf(cause).includes(says))?.[2];
}

/** The location of a syntax error, which Node puts above the message in the stack. */
function placeOf(cause: unknown): string {
  const place = cause instanceof SyntaxError ? /^file:\/\/\S+?([^/\s]+:\d+)$/m.exec(cause.stack ?? '') : null;
  return place === null ? '' : ` (${place[1]})`;
}

function firstLine(text: string): string {
  return text.split('\n', 1)[0] ?? text;
}
