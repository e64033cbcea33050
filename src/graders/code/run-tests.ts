/**
 * Runs a task's tests on code that a policy wrote, in two sandboxes: the code in one, its tests in the other, with lines of data between
 * them. The code never shares a process with its tests, so it cannot read, patch or impersonate them; it can pass only by returning the
 * right values. Each language has the same two programs, `subject` and `tester`: see `javascript/harness.ts`. Programs that read and print
 * get a fresh sandbox per test; their output is compared here.
 */
import { execFileSync } from 'node:child_process';
import { realpathSync } from 'node:fs';
import { basename, dirname } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { unscorable } from '../../core/define.ts';
import { messageOf, TrainyardError } from '../../core/errors.ts';
import type { Json } from '../../core/types.ts';
import { siblingScript } from '../../processes/channel.ts';
import type { ConfinedProcess, ReadableFile, Sandbox, SandboxProgram } from '../../processes/sandbox.ts';

export type CodeLanguage = 'javascript' | 'python';

type FunctionTest =
  /** `checks`: whether it defines `check`, to be called with the function under test. */
  { readonly source: string; readonly checks?: true } | { readonly args: readonly Json[]; readonly expected: Json };

export type CodeTests =
  | { readonly kind: 'program'; readonly tests: readonly { readonly input: string; readonly output: string }[] }
  | {
      readonly kind: 'function';
      readonly tests: readonly FunctionTest[];
      readonly entry: string | undefined;
      readonly setup: string;
    };

export interface CodeRun<K extends CodeTests['kind'] = CodeTests['kind']> {
  readonly code: string;
  readonly tests: Extract<CodeTests, { readonly kind: K }>;
  /** For all tests together. */
  readonly timeoutMs: number;
  readonly memoryMb: number;
  /** For expected numbers that are not whole: relative, or absolute below 1. */
  readonly tolerance: number;
  readonly signal?: AbortSignal | undefined;
}

export type TestsResult =
  | {
      readonly kind: 'ran';
      /** One per test, in order. */
      readonly passed: readonly boolean[];
      /** Informational; never affects `passed`. Absent for programs, which are not loaded separately. */
      readonly loaded?: boolean | undefined;
      /** Whether the code defined all names that tests use. */
      readonly defined?: boolean | undefined;
      readonly timedOut: boolean;
    }
  /** The tests cannot be run: not the code's fault. */
  | { readonly kind: 'fault'; readonly why: string };

/** Throws GRADER_UNSCORABLE if the sandbox fails, which says nothing about the code, and CANCELLED if the signal aborts. */
export async function runTests(sandbox: Sandbox, language: CodeLanguage, run: CodeRun): Promise<TestsResult> {
  const interpreter = INTERPRETERS[language](run.memoryMb);
  try {
    if (run.tests.kind === 'program') return await programs(sandbox, interpreter, run as CodeRun<'program'>);
    return await functions(sandbox, interpreter, run as CodeRun<'function'>);
  } catch (error) {
    if (error instanceof TrainyardError && error.code === 'SANDBOX_FAILED') return unscorable(error.message);
    throw error;
  }
}

interface Interpreter {
  readonly name: string;
  readonly program: string;
  readonly args: readonly string[];
  readonly readable: readonly ReadableFile[];
  readonly memoryMb: number;
  readonly file: string;
  readonly subject: readonly string[];
  readonly tester: readonly string[];
}

/** Where our scripts and Node appear inside: reveals nothing about this machine. */
const INSIDE = '/opt/trainyard';
/** Overhead of Node itself, with its reader thread. */
const NODE_MB = 128;

const INTERPRETERS: Readonly<Record<CodeLanguage, (memoryMb: number) => Interpreter>> = {
  javascript(memoryMb) {
    const harness = fileURLToPath(siblingScript(import.meta.url, 'javascript/harness'));
    const script = `${INSIDE}/javascript/${basename(harness)}`;
    return {
      name: 'Node',
      program: `${INSIDE}/node`,
      args: ['--disable-warning=ExperimentalWarning', `--max-old-space-size=${memoryMb}`],
      readable: [
        { source: realpathSync(process.execPath), target: `${INSIDE}/node` },
        { source: dirname(harness), target: `${INSIDE}/javascript` },
      ],
      memoryMb: memoryMb + NODE_MB,
      file: 'solution.js',
      subject: [script, 'subject'],
      tester: [script, 'tester'],
    };
  },
  python(memoryMb) {
    const { program, readable } = pythonHome();
    const folder = fileURLToPath(new URL('./python', import.meta.url));
    return {
      name: 'Python',
      program,
      // -I ignores the environment and the user's packages; text is UTF-8 everywhere.
      args: ['-I', '-B', '-X', 'utf8'],
      readable: [...readable, { source: folder, target: `${INSIDE}/python` }],
      memoryMb,
      file: 'solution.py',
      subject: [`${INSIDE}/python/subject.py`],
      tester: [`${INSIDE}/python/tester.py`],
    };
  },
};

const ASK = `
import json, os, sys
print(json.dumps([os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable), sys.base_prefix, sys.base_exec_prefix]))
`;
const ASK_MS = 20_000;

let home: Pick<Interpreter, 'program' | 'readable'> | undefined;

/**
 * Finds the real Python: `python3` may be a launcher (pyenv) or in a virtual environment, with its files in a home directory that the
 * sandbox hides. Asks once per process. Throws SANDBOX_MISSING if there is no Python 3.
 */
export function pythonHome(): Pick<Interpreter, 'program' | 'readable'> {
  if (home !== undefined) return home;
  try {
    const said = execFileSync('python3', ['-I', '-c', ASK], {
      encoding: 'utf8',
      timeout: ASK_MS,
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    const [program, ...prefixes] = JSON.parse(said) as string[];
    const folders = new Set(prefixes.map((prefix) => realpathSync(prefix)));
    const readable = [...folders].filter((folder) => !/^\/(usr(\/local)?)?$/.test(folder)).map((source) => ({ source }));
    home = { program: program!, readable };
    return home;
  } catch (cause) {
    throw new TrainyardError('SANDBOX_MISSING', `python3 could not be run: ${messageOf(cause)}`, {
      hint: 'install Python 3 and put it on the PATH: it runs the code under test',
      cause,
    });
  }
}

function programFor(
  { program, args, readable, memoryMb }: Interpreter,
  { timeoutMs, signal }: Pick<CodeRun, 'timeoutMs' | 'signal'>,
  more: readonly string[],
): SandboxProgram {
  const limits = { memoryMb, cpuSeconds: Math.ceil(timeoutMs / 1_000) + 1, outputBytes: MOST_OUTPUT_BYTES };
  return { program, readable, args: [...args, ...more], limits, ...(signal && { signal }) };
}

const MOST_OUTPUT_BYTES = 16 * 2 ** 20;
const cancelled = (): TrainyardError => new TrainyardError('CANCELLED', 'the tests were cancelled');

const MOST_PRINTED_BYTES = 4 * 2 ** 20;

async function programs(sandbox: Sandbox, interpreter: Interpreter, run: CodeRun<'program'>): Promise<TestsResult> {
  const { file } = interpreter;
  const program = { ...programFor(interpreter, run, [file]), files: { [file]: run.code } };
  // Excludes the start of sandboxes: a busy machine must not make code look slow.
  let leftMs = run.timeoutMs;
  let timedOut = false;
  const passed: boolean[] = [];
  for (const { input, output } of run.tests.tests) {
    const wallMs = Math.ceil(leftMs);
    timedOut ||= wallMs < 1;
    if (timedOut) {
      passed.push(false);
      continue;
    }
    const limits = { ...program.limits, wallMs, outputBytes: MOST_PRINTED_BYTES };
    const result = await sandbox.run({ ...program, stdin: input, limits });
    if (result.kind === 'cancelled') throw cancelled();
    leftMs -= result.ranMs;
    timedOut ||= result.kind === 'timeout';
    passed.push(result.kind === 'exited' && result.code === 0 && plainLines(result.stdout) === plainLines(output));
  }
  return { kind: 'ran', passed, timedOut };
}

/** Ignores trailing spaces on lines and blank lines at the end. */
function plainLines(text: string): string {
  // Not a regular expression: one would take quadratic time on a text of mostly spaces.
  const lines = text.trimEnd().split(/\r?\n/);
  return lines.map((line) => line.trimEnd()).join('\n');
}

const START_MS = 20_000;
/** For the tester to report after the time is up; the code may have slowed it down, too. */
const OWN_MS = 5_000;
/** First line of each process, written before it receives any code. */
const READY = 'ready';
const TESTER_READY = 'R';

async function functions(sandbox: Sandbox, interpreter: Interpreter, run: CodeRun<'function'>): Promise<TestsResult> {
  const { code, tolerance, timeoutMs, signal, tests } = run;
  const started: ConfinedProcess[] = [];
  const start = (role: 'subject' | 'tester'): ConfinedProcess => {
    const { limits, ...program } = programFor(interpreter, run, interpreter[role]);
    const process = sandbox.start({ ...program, limits: { ...limits, wallMs: START_MS + timeoutMs + OWN_MS } });
    started.push(process);
    return process;
  };
  try {
    const pair = { subject: start('subject'), tester: start('tester') };
    const order = JSON.stringify({ code, tests: tests.tests, entry: tests.entry ?? null, setup: tests.setup, tolerance });
    const { said, timedOut } = await between(pair, interpreter.name, order, timeoutMs);
    await pair.tester.ended;
    if (signal?.aborted) throw cancelled();
    return resultOf(tests.tests.length, said, timedOut);
  } finally {
    for (const process of started) process.kill();
    // Neither process may outlive this call, even if the other failed.
    await Promise.allSettled(started.map(({ ended }) => ended));
  }
}

/** Relays lines until the tests end; returns the verdicts. Time counts once both have started. Throws SANDBOX_FAILED if one does not. */
async function between(
  { subject, tester }: Readonly<Record<'subject' | 'tester', ConfinedProcess>>,
  language: string,
  order: string,
  timeoutMs: number,
): Promise<{ readonly said: readonly string[]; readonly timedOut: boolean }> {
  const answers = linesOf(subject);
  const lines = linesOf(tester);
  if ((await answers.next()).value !== READY) throw await notBegun(subject, language);
  if ((await lines.next()).value !== TESTER_READY) throw await notBegun(tester, language);
  const said: string[] = [];
  let reachedCode = false;
  let timedOut = false;
  const timeIsUp = (): void => {
    timedOut = true;
    subject.kill();
  };
  const timers = [setTimeout(timeIsUp, timeoutMs), setTimeout(() => tester.kill(), timeoutMs + OWN_MS)];
  try {
    void relay(answers, tester);
    tester.stdin.write(`${order}\n`);
    for await (const line of lines) {
      if (line.startsWith('V')) said.push(line.slice(1));
      if (!line.startsWith('U')) continue;
      reachedCode = true;
      subject.stdin.write(`${line.slice(1)}\n`);
    }
  } finally {
    for (const timer of timers) clearTimeout(timer);
  }
  // Once the tester has reached the code, any failure is the code's doing.
  if (said.length === 0 && !reachedCode) throw await notBegun(tester, language);
  return { said, timedOut };
}

function linesOf({ stdout }: ConfinedProcess): AsyncIterator<string> & AsyncIterable<string> {
  return createInterface({ input: stdout, crlfDelay: Number.POSITIVE_INFINITY })[Symbol.asyncIterator]();
}

async function relay(answers: AsyncIterable<string>, tester: ConfinedProcess): Promise<void> {
  for await (const line of answers) tester.stdin.write(`${line}\n`);
  tester.stdin.end();
}

async function notBegun(process: ConfinedProcess, language: string): Promise<TrainyardError> {
  const end = await process.ended;
  if (end.kind === 'cancelled') return cancelled();
  const lines = process.stderr.trim().split('\n');
  const why = lines.findLast((line) => /error/i.test(line)) ?? (lines.at(-1) || end.kind);
  return new TrainyardError('SANDBOX_FAILED', `${language} could not be started in the sandbox: ${why}`);
}

type Said = Partial<Readonly<{ fault: string; loaded: boolean; defined: boolean; test: number; passed: boolean }>>;

/** A test without a verdict did not pass. */
function resultOf(tests: number, lines: readonly string[], timedOut: boolean): TestsResult {
  const said = lines.map((line) => JSON.parse(line) as Said);
  const fault = said.find((one) => one.fault !== undefined)?.fault;
  if (fault !== undefined) return { kind: 'fault', why: fault };
  const { loaded = false, defined = false } = said.findLast((one) => one.loaded !== undefined) ?? {};
  const passed = Array.from({ length: tests }, (_, index) => said.some((one) => one.test === index && one.passed === true));
  return { kind: 'ran', passed, loaded, defined, timedOut };
}
