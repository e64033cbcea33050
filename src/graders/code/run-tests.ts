/**
 * Runs a task's tests on code that a policy wrote. The code runs in a sandbox and is given arguments or an input, never what is expected: that
 * stays here, and is compared here with the data or the text that came back. So the code can neither read, patch nor impersonate its tests; it
 * passes only by returning the right values. The process that calls functions is `subject.ts` or `subject.py`; programs that read and print
 * get a fresh sandbox per test.
 */
import { execFileSync } from 'node:child_process';
import { realpathSync } from 'node:fs';
import { extname } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { unscorable } from '../../core/define.ts';
import { messageOf, TrainyardError } from '../../core/errors.ts';
import { isObject } from '../../core/json.ts';
import type { Json } from '../../core/types.ts';
import { siblingScript } from '../../processes/channel.ts';
import type { ConfinedProcess, ReadableFile, Sandbox, SandboxProgram } from '../../processes/sandbox.ts';
import { jsonEqual, parsed } from '../json-match.ts';

export type CodeLanguage = 'javascript' | 'python';

export type CodeTests =
  | { readonly kind: 'program'; readonly tests: readonly { readonly input: string; readonly output: string }[] }
  | {
      readonly kind: 'function';
      readonly tests: readonly { readonly args: readonly Json[]; readonly expected: Json }[];
      readonly entry: string;
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

export interface TestsResult {
  /** One per test, in order. */
  readonly passed: readonly boolean[];
  /** As the code's own process says: informational, never affects `passed`. Absent for programs, which are not loaded separately. */
  readonly loaded?: boolean | undefined;
  /** Whether the code defined the function. */
  readonly defined?: boolean | undefined;
  readonly timedOut: boolean;
}

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
  /** What calls the functions of the code. */
  readonly subject: string;
}

/** Where our scripts and Node appear inside: reveals nothing about this machine. */
const INSIDE = '/opt/trainyard';
/** Overhead of Node itself. */
const NODE_MB = 128;

const INTERPRETERS: Readonly<Record<CodeLanguage, (memoryMb: number) => Interpreter>> = {
  javascript(memoryMb) {
    const source = fileURLToPath(siblingScript(import.meta.url, 'subject'));
    const subject = `${INSIDE}/subject${extname(source)}`;
    return {
      name: 'Node',
      program: `${INSIDE}/node`,
      args: ['--disable-warning=ExperimentalWarning', `--max-old-space-size=${memoryMb}`],
      readable: [
        { source: realpathSync(process.execPath), target: `${INSIDE}/node` },
        { source, target: subject },
      ],
      memoryMb: memoryMb + NODE_MB,
      file: 'solution.js',
      subject,
    };
  },
  python(memoryMb) {
    const { program, readable } = pythonHome();
    const source = fileURLToPath(new URL('./subject.py', import.meta.url));
    const subject = `${INSIDE}/subject.py`;
    return {
      name: 'Python',
      program,
      // -I ignores the environment and the user's packages; text is UTF-8 everywhere.
      args: ['-I', '-B', '-X', 'utf8'],
      readable: [...readable, { source, target: subject }],
      memoryMb,
      file: 'solution.py',
      subject,
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
  return { program, readable, args: [...args, ...more], limits, signal };
}

const MOST_OUTPUT_BYTES = 16 * 2 ** 20;
const cancelled = () => new TrainyardError('CANCELLED', 'the tests were cancelled');

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
  return { passed, timedOut };
}

/** Ignores trailing spaces on lines and blank lines at the end. */
function plainLines(text: string): string {
  // Not a regular expression: one would take quadratic time on a text of mostly spaces.
  const lines = text.trimEnd().split(/\r?\n/);
  return lines.map((line) => line.trimEnd()).join('\n');
}

const START_MS = 20_000;
/** The first line of the subject, written before it receives any code. */
const READY = 'ready';

/** Time counts once the subject has started: a busy machine must not make code look slow. */
async function functions(sandbox: Sandbox, interpreter: Interpreter, run: CodeRun<'function'>): Promise<TestsResult> {
  const { code, tolerance, timeoutMs, signal, tests } = run;
  const { limits, ...program } = programFor(interpreter, run, [interpreter.subject]);
  const subject = sandbox.start({ ...program, limits: { ...limits, wallMs: START_MS + timeoutMs } });
  const lines = createInterface({ input: subject.stdout, crlfDelay: Number.POSITIVE_INFINITY })[Symbol.asyncIterator]();
  const ask = async (request: Json): Promise<Json | undefined> => {
    subject.stdin.write(`${JSON.stringify(request)}\n`);
    const { value, done } = await lines.next();
    return done === true ? undefined : parsed(value)?.value;
  };
  let timer: NodeJS.Timeout | undefined;
  let timedOut = false;
  const timeIsUp = () => {
    timedOut = true;
    subject.kill();
  };
  try {
    if ((await lines.next()).value !== READY) throw await notBegun(subject, interpreter.name);
    timer = setTimeout(timeIsUp, timeoutMs);
    const course = await ask({ code, entry: tests.entry });
    const passed: boolean[] = [];
    for (const { args, expected } of tests.tests) passed.push(isExpected(await ask(args), expected, tolerance));
    if (signal?.aborted) throw cancelled();
    return { passed, loaded: isSet(course, 'loaded'), defined: isSet(course, 'defined'), timedOut };
  } finally {
    clearTimeout(timer);
    subject.kill();
    // It may not outlive this call.
    await Promise.allSettled([subject.ended]);
  }
}

/** Without a value, the call failed or did not end. */
function isExpected(reply: Json | undefined, expected: Json, tolerance: number): boolean {
  return (
    isObject(reply) &&
    Object.hasOwn(reply, 'value') &&
    jsonEqual(expected, reply['value'] as Json, { tolerance, wholeExactly: true })
  );
}

const isSet = (reply: Json | undefined, name: string) => isObject(reply) && reply[name] === true;

async function notBegun(process: ConfinedProcess, language: string): Promise<TrainyardError> {
  const end = await process.ended;
  if (end.kind === 'cancelled') return cancelled();
  const lines = process.stderr.trim().split('\n');
  const why = lines.findLast((line) => /error/i.test(line)) ?? (lines.at(-1) || end.kind);
  return new TrainyardError('SANDBOX_FAILED', `${language} could not be started in the sandbox: ${why}`);
}
