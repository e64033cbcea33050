/**
 * Tests of Python code, in two sandboxes: the code in one, its tests in the other, and lines of data between them. The code never shares a
 * process with its tests, so it cannot read them, patch them or speak for them; all it can do to pass is to return the right values.
 *
 * Programs that read and print run in a sandbox of their own for each test, and what they print is compared here.
 */
import { execFileSync } from 'node:child_process';
import { realpathSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { messageOf, TrainyardError } from '../../core/errors.ts';
import type { ConfinedProcess, ReadableFile, Sandbox, SandboxEnd, SandboxProgram } from '../../processes/sandbox.ts';
import type { CodeTests, ProgramTest } from './tests-of.ts';
import { allFailed, type CodeRun, samePrinted, type TestsResult } from './tests-result.ts';

const SCRIPTS = fileURLToPath(new URL('./python', import.meta.url));
/** Where the scripts are inside, so that nothing is told about this machine. */
const SCRIPTS_INSIDE = '/opt/trainyard';
/** For starting Python. */
const START_MS = 20_000;
/** For the tests to say that time is up; what the code made them do can hold them up, too. */
const OWN_MS = 5_000;
/** The first lines: of the process with the code, before it has any, and of the one with the tests. */
const READY = 'ready';
const TESTER_READY = 'R';
const MOST_BYTES = 16 * 2 ** 20;
const MOST_OUTPUT_BYTES = 4 * 2 ** 20;

interface Pair {
  readonly subject: ConfinedProcess;
  readonly tester: ConfinedProcess;
}

export function runPython(sandbox: Sandbox, run: CodeRun): Promise<TestsResult> {
  return run.tests.kind === 'program' ? programs(sandbox, run, run.tests.tests) : functions(sandbox, run, run.tests);
}

async function programs(sandbox: Sandbox, run: CodeRun, tests: readonly ProgramTest[]): Promise<TestsResult> {
  const python = pythonHome();
  // Starting sandboxes does not count: a busy machine must not make code slow.
  let leftMs = run.timeoutMs;
  const why: string[] = [];
  for (const { input, output } of tests) {
    const wallMs = Math.ceil(leftMs);
    if (wallMs < 1) why.push('timeout');
    else {
      const program = { ...asked(run, python, ['solution.py']), files: { 'solution.py': run.code }, stdin: input };
      const limits = { ...program.limits, wallMs, outputBytes: MOST_OUTPUT_BYTES };
      const result = await sandbox.run({ ...program, limits });
      if (result.kind === 'cancelled') throw new TrainyardError('CANCELLED', 'the tests were cancelled');
      leftMs -= result.ranMs;
      if (result.kind !== 'exited') why.push(result.kind);
      else why.push(result.code !== 0 ? `exit code ${result.code}` : samePrinted(result.stdout, output) ? '' : 'another output');
    }
  }
  return { kind: 'ran', passed: why.map((one) => one === ''), why, course: { timedOut: why.includes('timeout') } };
}

async function functions(sandbox: Sandbox, run: CodeRun, tests: CodeTests & { kind: 'function' }): Promise<TestsResult> {
  const python = pythonHome();
  const start = (script: string): ConfinedProcess => {
    const { limits, ...program } = asked(run, python, [`${SCRIPTS_INSIDE}/${script}.py`]);
    return sandbox.start({
      ...program,
      limits: { ...limits, wallMs: START_MS + run.timeoutMs + OWN_MS, outputBytes: MOST_BYTES },
    });
  };
  const subject = start('subject');
  const pair = { subject, tester: orElse(() => start('tester'), subject) };
  const { entry, setup } = tests;
  const order = { code: run.code, tests: tests.tests, entry: entry ?? null, setup, tolerance: run.tolerance };
  try {
    const { said, timedOut } = await between(pair, JSON.stringify(order), run.timeoutMs);
    const end = await pair.tester.ended;
    if (run.signal?.aborted) throw new TrainyardError('CANCELLED', 'the tests were cancelled');
    return verdictOf(tests, said, end, timedOut);
  } finally {
    pair.subject.kill();
    pair.tester.kill();
    // Neither may be left when this ends, also where the other one failed.
    await Promise.allSettled([pair.tester.ended, pair.subject.ended]);
  }
}

/** The one that is there does not wait for one that is not. */
function orElse(started: () => ConfinedProcess, other: ConfinedProcess): ConfinedProcess {
  try {
    return started();
  } catch (thrown) {
    other.kill();
    throw thrown;
  }
}

function asked(run: CodeRun, python: PythonHome, args: readonly string[]): SandboxProgram {
  return {
    program: python.program,
    // Isolated from the environment and the user's own packages; text is UTF-8 everywhere.
    args: ['-I', '-B', '-X', 'utf8', ...args],
    readable: [...python.readable, { source: SCRIPTS, target: SCRIPTS_INSIDE }],
    limits: { memoryMb: run.memoryMb, cpuSeconds: Math.ceil(run.timeoutMs / 1_000) + 1 },
    ...(run.signal === undefined ? {} : { signal: run.signal }),
  };
}

interface Heard {
  readonly said: readonly string[];
  readonly timedOut: boolean;
}

/**
 * Carries lines between the two until the tests are done; gives what the tests said to us. Throws SANDBOX_FAILED where one of them did not
 * even begin. The code's time begins when both did.
 */
async function between({ subject, tester }: Pair, order: string, timeoutMs: number): Promise<Heard> {
  const answers = linesOf(subject);
  const lines = linesOf(tester);
  const said: string[] = [];
  let reachedCode = false;
  if ((await answers.next()).value !== READY) throw await notBegun(subject);
  if ((await lines.next()).value !== TESTER_READY) throw await notBegun(tester);
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
      if (line.startsWith('U')) {
        reachedCode = true;
        subject.stdin.write(`${line.slice(1)}\n`);
      } else if (line.startsWith('V')) said.push(line.slice(1));
    }
  } finally {
    for (const timer of timers) clearTimeout(timer);
  }
  // From its first word to the code on, whatever becomes of it is the code's doing.
  if (said.length === 0 && !reachedCode) throw await notBegun(tester);
  return { said, timedOut };
}

function linesOf({ stdout }: ConfinedProcess): AsyncIterator<string> & AsyncIterable<string> {
  return createInterface({ input: stdout, crlfDelay: Number.POSITIVE_INFINITY })[Symbol.asyncIterator]();
}

async function relay(answers: AsyncIterable<string>, tester: ConfinedProcess): Promise<void> {
  for await (const line of answers) tester.stdin.write(`${line}\n`);
  tester.stdin.end();
}

async function notBegun(process: ConfinedProcess): Promise<TrainyardError> {
  const end = await process.ended;
  if (end.kind === 'cancelled') return new TrainyardError('CANCELLED', 'the tests were cancelled');
  const why = process.stderr.trim().split('\n').at(-1) || end.kind;
  return new TrainyardError('SANDBOX_FAILED', `Python could not be started in the sandbox: ${why}`);
}

interface Said {
  readonly fault?: string;
  readonly loaded?: boolean;
  readonly defined?: boolean;
  readonly test?: number;
  readonly passed?: boolean;
  readonly why?: string | null;
}

function verdictOf(tests: CodeTests, lines: readonly string[], tester: SandboxEnd, timedOut: boolean): TestsResult {
  const said = lines.map((line) => JSON.parse(line) as Said);
  const fault = said.find((one) => one.fault !== undefined)?.fault;
  if (fault !== undefined) return { kind: 'fault', why: fault };
  const byTest = new Map(said.flatMap((one) => (one.test === undefined ? [] : [[one.test, one] as const])));
  // Nobody else cancels it than the end of its time.
  const unsaid = tester.kind === 'cancelled' ? 'timeout' : tester.kind;
  const { loaded, defined } = said.find((one) => one.loaded !== undefined) ?? { loaded: false, defined: false };
  const course = { loaded, defined, timedOut };
  if (byTest.size === 0) return { ...allFailed(tests, unsaid), course };
  const reason = (index: number): string => byTest.get(index)?.why ?? (byTest.has(index) ? '' : unsaid);
  return {
    kind: 'ran',
    passed: tests.tests.map((_, index) => byTest.get(index)?.passed === true),
    why: tests.tests.map((_, index) => reason(index)),
    course,
  };
}

interface PythonHome {
  readonly program: string;
  readonly readable: readonly ReadableFile[];
}

const ASK = `
import json, os, sys
print(json.dumps([os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable), sys.base_prefix, sys.base_exec_prefix]))
`;
const ASK_MS = 20_000;

let home: PythonHome | undefined;

/**
 * Where Python really is: `python3` may be a script that looks for one (pyenv), or one of a virtual environment, and what it needs lies
 * somewhere else, often in a home directory that the sandbox does not show. Asked once per process. Throws SANDBOX_MISSING where there is no
 * Python 3.
 */
export function pythonHome(): PythonHome {
  home ??= findPython();
  return home;
}

function findPython(): PythonHome {
  try {
    const said = execFileSync('python3', ['-I', '-c', ASK], {
      encoding: 'utf8',
      timeout: ASK_MS,
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    const [program, ...prefixes] = JSON.parse(said) as string[];
    const folders = [...new Set(prefixes.map((prefix) => realpathSync(prefix)))].filter(
      (folder) => !/^\/(usr(\/local)?)?$/.test(folder),
    );
    return { program: program!, readable: folders.map((source) => ({ source })) };
  } catch (cause) {
    throw new TrainyardError('SANDBOX_MISSING', `python3 could not be run: ${messageOf(cause)}`, {
      hint: 'install Python 3 and put it on the PATH: it runs the code under test',
      cause,
    });
  }
}
