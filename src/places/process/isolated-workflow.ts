/**
 * `isolation: 'process'`: rollouts run in child processes that import the entry themselves, one rollout at a time in each. A process gets
 * its task without the answer, a reduced environment, and HTTP keys to the policy for this rollout only, and runs in the sandbox of
 * `rollout-sandbox.ts`. A rollout that goes on after its end is killed with everything it started, and its process replaced. If the process
 * dies, the rollout fails with its last output.
 */
import { constants, existsSync, mkdirSync, writeFileSync } from 'node:fs';
import {
  copyFile,
  type FileHandle,
  mkdir,
  open,
  readdir,
  readlink,
  realpath,
  rm,
  rmdir,
  symlink,
  unlink,
} from 'node:fs/promises';
import { basename, dirname, join, resolve, sep } from 'node:path';
import { CloseStack } from '../../core/async.ts';
import type { Workflow } from '../../core/contracts.ts';
import { TrainyardError, tried } from '../../core/errors.ts';
import { defined } from '../../core/json.ts';
import { environmentIn, reducedEnvironment } from '../../processes/agent-process.ts';
import { findBubblewrap } from '../../processes/bubblewrap.ts';
import { type Answer, type ChildProgram, poolKind, siblingScript, type Thrown } from '../../processes/channel.ts';
import { removeFolder, temporaryFolder } from '../../processes/limits.ts';
import { openProcessPool } from '../../processes/process-pool.ts';
import type { ModuleExport } from '../../rollout/discovery.ts';
import { MOST_REASON, type OwnContext, Rejection, type RolloutNote } from '../../rollout/rollout-context.ts';
import type { IsolationOptions } from '../../rollout/runner.ts';
import { explained, HOME_INSIDE, hiddenBy, type OwnFolders, sandboxCommand, TMP_INSIDE, viewOf } from './rollout-sandbox.ts';
import type { RolloutEnding, RolloutOrder } from './workflow-child.ts';

interface IsolatedWorkflow extends AsyncDisposable {
  /** Throws what the workflow threw, as in process. */
  run(own: OwnContext, handed?: unknown): Promise<unknown>;
}

/** Resolves when every process has imported the module and set the workflow up. Otherwise rejects, also with SANDBOX_MISSING. */
export async function openIsolated(workflow: Workflow, options: IsolationOptions): Promise<IsolatedWorkflow> {
  const { workers, signal, sources } = options;
  const module = importable(workflow, options.module);
  await using opened = new CloseStack();
  const { files, explain, ...surroundings } = await surroundingsOf(workflow, module, options, opened);
  const program = {
    kind: 'workflow',
    words: { ...WORDS, explain },
    script: siblingScript(import.meta.url, 'workflow-child'),
    args: [module.url, module.exportName, options.model === undefined ? '' : resolve(options.model), ...(module.by ?? [])],
    sources,
    ...surroundings,
  };
  const pool = opened.use(await openProcessPool({ program, workers, signal }));
  const held = opened.move();
  return {
    run: async (own, handed) => {
      let process: number | undefined;
      let keepsFiles = false;
      const answer = await pool.call(orderOf(workflow, own, handed), {
        signal: own.ctx.signal,
        onNote: (note) => {
          keepsFiles = heed(own, note) || keepsFiles;
        },
        onBegun: (number) => {
          process = number;
        },
      });
      if (own.folder !== null && keepsFiles) await files?.collect(process, own.folder);
      return endingOf(answer, own.ctx.signal, explain);
    },
    [Symbol.asyncDispose]: () => held[Symbol.asyncDispose](),
  };
}

function importable(workflow: Workflow, module: ModuleExport | undefined): ModuleExport {
  if (module === undefined) {
    const message = `workflow ${workflow.name} was given as a value, which no other process can import`;
    const hint = "isolation: 'process' takes the path of a module that exports the workflow";
    throw new TrainyardError('WORKFLOW_INVALID', message, hint);
  }
  if (poolKind() !== undefined) {
    throw new TrainyardError(
      'USAGE',
      'a run was started inside a process of a workflow',
      'the module with the workflow is imported to run it: start runs only under `if (import.meta.main)`, or from another module',
    );
  }
  return module;
}

type Explain = (message: string) => string;

interface Surroundings extends Pick<ChildProgram, 'env' | 'within' | 'outdated' | 'left'> {
  readonly explain: Explain;
  readonly files: RolloutFiles | undefined;
}

async function surroundingsOf(
  workflow: Workflow,
  { url }: ModuleExport,
  { files: hidden, model }: Pick<IsolationOptions, 'files' | 'model'>,
  opened: CloseStack,
): Promise<Surroundings> {
  if (hidden === undefined) return { env: reducedEnvironment(workflow.env), explain: (message) => message, files: undefined };
  const env = environmentIn({ home: HOME_INSIDE, tmp: TMP_INSIDE }, workflow.env);
  const bubblewrap = findBubblewrap();
  if (hidden.run !== undefined) opened.use(await reserved(hidden.run));
  const files = opened.use(new RolloutFiles());
  const all = { ...hidden, tasks: [...hidden.tasks, ...hiddenBy(workflow, url, hidden.isWorker)] };
  const viewNow = () => viewOf(all, url, [files.root], workflow.usesTokens ? model : undefined);
  const first = viewNow();
  const views = new Map<number, typeof first>();
  return {
    env,
    files,
    explain: (message) => explained(message, first),
    within: (process) => {
      const view = viewNow();
      views.set(process, view);
      return sandboxCommand(bubblewrap, view, files.open(process));
    },
    outdated: (process) => {
      const replaced = views.get(process)?.replaced();
      return replaced && `was no longer kept from ${replaced}, which was replaced or appeared during the run,`;
    },
    left: (process) => {
      views.delete(process);
      void files.leave(process);
    },
  };
}

/** Creates a folder early so that it can be hidden. Ignores errors: its later user reports them. Disposing removes what is empty. */
async function reserved(folder: string): Promise<AsyncDisposable> {
  const made: string[] = [];
  const missing: string[] = [];
  for (let path = resolve(folder); !existsSync(path); path = dirname(path)) missing.unshift(path);
  try {
    for (const path of missing) {
      await mkdir(path);
      made.unshift(path);
    }
  } catch {}
  return {
    async [Symbol.asyncDispose]() {
      try {
        for (const path of made) await rmdir(path);
      } catch {}
    },
  };
}

function orderOf(workflow: Workflow, { ctx, folder }: OwnContext, handed: unknown): RolloutOrder {
  const { task, rolloutId, groupId, purpose, seed } = ctx;
  const roles = new Set(['default', ...Object.keys(workflow.roles)]);
  const addresses = [...roles].map((role) => {
    const { name, baseURL, apiKey } = ctx.model(role);
    return { role, name, baseURL, apiKey };
  });
  return { task, rolloutId, groupId, purpose, seed, folder, addresses, handed };
}

/** Whether the rollout keeps files. Ignores invalid notes: code that found its way to the channel must not end the run. */
function heed({ ctx, print }: OwnContext, said: unknown): boolean {
  const note = (said ?? {}) as Partial<RolloutNote>;
  if (note.kind === 'log' && typeof note.text === 'string') ctx.log(note.text);
  if (note.kind === 'print' && typeof note.text === 'string') print(note.text);
  // Reading it keeps the folder for the grader.
  if (note.kind === 'folder') void ctx.artifactsDir;
  const { reason } = note as { readonly reason?: unknown };
  // `reject` throws here as it did in the child.
  if (note.kind === 'rejected' && typeof reason === 'string') tried(() => ctx.reject(reason));
  return note.kind === 'folder';
}

function endingOf(answer: Answer, signal: AbortSignal, explain: Explain): unknown {
  switch (answer.kind) {
    case 'answered': {
      const ending = (answer.value ?? {}) as Partial<RolloutEnding>;
      if (ending.kind === 'rejected' && typeof ending.reason === 'string')
        throw new Rejection(ending.reason.slice(0, MOST_REASON));
      if (ending.kind === 'returned') return ending.result;
      throw new TrainyardError('WORKFLOW_FAILED', "the workflow's process answered what no rollout ends with");
    }
    case 'threw':
      throw thrownThere(answer.thrown, explain);
    case 'ended':
      throw new TrainyardError('WORKFLOW_FAILED', `the workflow's process ${answer.how} before it returned`);
    case 'unusable':
      throw answer.error;
    case 'unsendable':
      throw new TrainyardError('WORKFLOW_FAILED', `the task cannot be sent to another process: ${answer.message}`);
    case 'late':
    case 'aborted':
    case 'closed':
      signal.throwIfAborted();
      throw new TrainyardError('CANCELLED', 'the run ended before the workflow returned');
  }
}

/** Keeps the child's stack, which shows the place in the user's file. */
function thrownThere({ code, message, stack, hint }: Thrown, explain: Explain): TrainyardError {
  const error = new TrainyardError(code ?? 'WORKFLOW_FAILED', explain(message), defined({ hint }));
  if (stack !== undefined) error.stack = stack;
  return error;
}

const WORDS = {
  whose: 'the workflow',
  starting: 'before it was ready',
  code: 'WORKFLOW_INIT_FAILED',
  late: { code: 'WORKFLOW_INIT_FAILED', what: 'process was not ready' },
  hint: 'every process of the workflow imports the entry: check that it can be imported on its own, without the variables of this shell',
} as const;

// Folders that isolated processes write to: a temporary one, and one mounted in place of the run's artifacts. When a rollout ends, its
// files are copied from there to where its grader looks, out of the process's reach.
//
// Security: processes left running may swap a folder for a link during the copy, to have foreign files copied or deleted. So no path is
// resolved twice: every folder and file is opened once, without following links, and then reached through its descriptor. Links are copied
// as links; those that lead out of the rollout's files are dropped, because readers run outside the sandbox. Linux only, like the sandbox.

export class RolloutFiles implements AsyncDisposable {
  /** Hidden from the processes. */
  readonly root: string = temporaryFolder('trainyard-isolated');
  readonly #empty = join(this.root, 'empty');

  constructor() {
    writeFileSync(this.#empty, '');
  }

  open(process: number): OwnFolders {
    const own = { tmp: this.#folder(process, 'tmp'), artifacts: this.#folder(process, 'artifacts'), empty: this.#empty };
    mkdirSync(join(own.tmp, basename(HOME_INSIDE)), { recursive: true });
    mkdirSync(own.artifacts);
    return own;
  }

  /** Call when the process is gone. Files kept for a grader stay until collected. */
  async leave(process: number): Promise<void> {
    await removeFolder(this.#folder(process, 'tmp'));
  }

  /** Copies what a rollout kept in the process to `folder`. Throws WORKFLOW_FAILED if a limit is exceeded. */
  async collect(process: number | undefined, folder: string): Promise<void> {
    if (process === undefined) return;
    if (await takeOut(join(this.#folder(process, 'artifacts'), basename(folder)), folder)) await dropLinksOut(folder);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await removeFolder(this.root);
  }

  #folder(process: number, name: string): string {
    return join(this.root, String(process), name);
  }
}

async function dropLinksOut(folder: string): Promise<void> {
  const inside = `${await realpath(folder)}${sep}`;
  for (const entry of await readdir(folder, { recursive: true, withFileTypes: true })) {
    if (!entry.isSymbolicLink()) continue;
    const path = join(entry.parentPath, entry.name);
    const target = await realpath(path).catch(() => undefined);
    if (!target?.startsWith(inside)) await rm(path);
  }
}

/** Limits the declared size: a sparse file holds nothing, but its copy takes the space. */
const MOST_BYTES = 2 ** 30;
const MOST_FILES = 100_000;
/** Each level holds a file descriptor. */
const MOST_LEVELS = 64;
/** Non-blocking, because opening a pipe without a writer would wait. */
const NO_LINK = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;

/** Moves a folder's content. Returns whether the folder existed. Throws WORKFLOW_FAILED; what was copied so far stays. */
export async function takeOut(from: string, to: string): Promise<boolean> {
  const opened = await open(from, NO_LINK | constants.O_DIRECTORY).catch(() => undefined);
  if (opened === undefined) return false;
  await using folder = opened;
  await new Copying().folder(folder, to, 1);
  return true;
}

class Copying {
  #bytes = 0;
  #files = 0;

  async folder(folder: FileHandle, to: string, level: number): Promise<void> {
    if (level > MOST_LEVELS) throw tooMuch(`folders ${level} deep, expected at most ${MOST_LEVELS}`);
    await mkdir(to, { recursive: true });
    const here = `/proc/self/fd/${folder.fd}`;
    for (const name of await readdir(here)) {
      if (++this.#files > MOST_FILES) throw tooMuch(`more than ${MOST_FILES} files`);
      await this.#entry(join(here, name), join(to, name), level);
    }
  }

  /** Deletes pipes, sockets and devices without copying them. */
  async #entry(path: string, to: string, level: number): Promise<void> {
    const opened = await open(path, NO_LINK).catch((thrown: NodeJS.ErrnoException) => thrown.code);
    if (opened === 'ELOOP') return await this.#link(path, to);
    if (opened === undefined || typeof opened === 'string') return;
    await using entry = opened;
    const found = await entry.stat();
    if (found.isDirectory()) {
      await this.folder(entry, to, level + 1);
      await rmdir(path).catch(() => {});
      return;
    }
    if (found.isFile()) {
      this.#bytes += found.size;
      if (this.#bytes > MOST_BYTES) throw tooMuch(`files of more than ${MOST_BYTES / 2 ** 20} MB together`);
      await copyFile(`/proc/self/fd/${entry.fd}`, to);
    }
    await unlink(path).catch(() => {});
  }

  async #link(path: string, to: string): Promise<void> {
    const target = await readlink(path).catch(() => undefined);
    if (target !== undefined) await symlink(target, to);
    await unlink(path).catch(() => {});
  }
}

function tooMuch(found: string): TrainyardError {
  return new TrainyardError(
    'WORKFLOW_FAILED',
    `the rollout kept ${found} in its artifactsDir`,
    'keep there what the grader reads, and the rest in a temporary folder',
  );
}
