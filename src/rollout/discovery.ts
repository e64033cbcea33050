/**
 * Finds the workflow and the grader in the user's entry file: whatever exports carry core's symbols, and nothing else.
 *
 * All mistakes are reported before anything runs.
 */
import { stat } from 'node:fs/promises';
import { extname, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import type { Grader, Workflow } from '../core/contracts.ts';
import { isGrader, isWorkflow } from '../core/define.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';

export interface Entry {
  readonly workflow: Workflow;
  readonly grader: Grader;
  /** Where another process finds the grader; absent where workflow and grader were given as values. */
  readonly graderModule?: { readonly url: string; readonly exportName: string };
}

export async function discover(path: string): Promise<Entry> {
  const file = resolve(path);
  const found = await stat(file).catch(() => undefined);
  if (!found?.isFile()) {
    throw new TrainyardError('FILE_NOT_FOUND', found?.isDirectory() ? `${path} is a folder` : `no entry file at ${path}`, {
      hint: `give the path of the module that exports your workflow${found?.isDirectory() ? `, such as ${path}/agent.ts` : ''}`,
    });
  }
  const url = pathToFileURL(file).href;
  const exported = Object.entries(await load(url, path));
  const workflows = unique(exported, isWorkflow);
  const graders = unique(exported, isGrader);
  const names = exported.map(([name]) => name).join(', ') || 'nothing';
  if (workflows.length === 0) {
    throw new TrainyardError('WORKFLOW_NOT_FOUND', `${path} exports no workflow (it exports ${names})`, {
      hint: unmarked(exported, 'defineWorkflow') ?? 'export default defineWorkflow(async (ctx) => { … })',
    });
  }
  if (graders.length === 0) {
    throw new TrainyardError('GRADER_NOT_FOUND', `${path} exports no grader (it exports ${names})`, {
      hint: unmarked(exported, 'defineGrader') ?? 'export const grader = defineGrader(({ task, messages }) => …)',
    });
  }
  only('workflow', workflows, path);
  only('grader', graders, path);
  const [, workflow] = workflows[0] as [string, Workflow];
  const [exportName, grader] = graders[0] as [string, Grader];
  return { workflow, grader, graderModule: { url, exportName } };
}

/** A plain function among the exports is most likely what was meant. */
function unmarked(exported: readonly [string, unknown][], define: string): string | undefined {
  const name = exported.find(([, value]) => typeof value === 'function')?.[0];
  return name === undefined ? undefined : `${name} is a plain function: wrap it in ${define}(…)`;
}

function only(what: string, found: readonly (readonly [string, unknown])[], path: string): void {
  if (found.length === 1) return;
  throw new TrainyardError(
    'WORKFLOW_AMBIGUOUS',
    `${path} exports ${found.length} ${what}s (${found.map(([name]) => name).join(', ')}), expected one`,
    {
      hint: `keep one ${what} per entry file; move the others to files of their own`,
    },
  );
}

/** One value exported under two names counts once. */
function unique<T>(exported: readonly [string, unknown][], is: (value: unknown) => value is T): [string, T][] {
  const seen = new Map<T, string>();
  for (const [name, value] of exported) if (is(value) && !seen.has(value)) seen.set(value, name);
  return [...seen].map(([value, name]) => [name, value]);
}

async function load(url: string, path: string): Promise<object> {
  try {
    return (await import(url)) as object;
  } catch (cause) {
    if (cause instanceof TrainyardError) throw cause;
    const hint = hintFor(cause, path);
    throw new TrainyardError('ENTRY_UNLOADABLE', `cannot import ${path}: ${firstLine(messageOf(cause))}${placeOf(cause)}`, {
      cause,
      ...(hint ? { hint } : {}),
    });
  }
}

function hintFor(cause: unknown, path: string): string | undefined {
  const code = (cause as { code?: unknown }).code;
  if (code === 'ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX') {
    return 'Node runs TypeScript by removing types; enum, namespace and parameter properties have no meaning without them: use const objects, modules and plain fields';
  }
  if (code === 'ERR_UNKNOWN_FILE_EXTENSION') {
    return extname(path) === '.tsx' || messageOf(cause).includes('.tsx')
      ? 'Node cannot load .tsx; put the workflow into a .ts file without JSX'
      : 'use a .ts, .mts, .js or .mjs file';
  }
  if (code === 'ERR_MODULE_NOT_FOUND' && messageOf(cause).includes("package 'trainyard'")) {
    return 'in a clone of Trainyard, put the entry into a folder without a package.json of its own; elsewhere install the packed package';
  }
  if (code === 'ERR_MODULE_NOT_FOUND') {
    return messageOf(cause).includes('package')
      ? 'install the missing package next to the entry file'
      : 'Node wants full file names in relative imports: write ./file.ts, not ./file';
  }
  if (messageOf(cause).startsWith('Cannot use import statement outside a module')) {
    return 'add "type": "module" to your package.json, or name the file .mts';
  }
  if (code === 'ERR_UNSUPPORTED_DIR_IMPORT') return 'import a file, not a folder: write ./folder/index.ts';
  return undefined;
}

/** Where a syntax error is: Node puts it above the message in the stack. */
function placeOf(cause: unknown): string {
  const place = cause instanceof SyntaxError ? /^file:\/\/\S+?([^/\s]+:\d+)$/m.exec(cause.stack ?? '') : null;
  return place === null ? '' : ` (${place[1]})`;
}

function firstLine(text: string): string {
  return text.split('\n', 1)[0] ?? text;
}
