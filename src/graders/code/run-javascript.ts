/**
 * Tests of JavaScript code: a Node process in the sandbox, in it one QuickJS interpreter for the code and another one for its tests. Where
 * there is no sandbox the interpreter is the only wall; see `harness.ts`.
 */
import { realpathSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parsedJson } from '../../core/chat-completions.ts';
import { TrainyardError } from '../../core/errors.ts';
import { siblingScript } from '../../processes/channel.ts';
import type { ConfinedProcess, ReadableFile, Sandbox } from '../../processes/sandbox.ts';
import { type HarnessAnswer, type HarnessOrder, READY } from './javascript/order.ts';
import { allFailed, type CodeRun, samePrinted, type TestsResult } from './tests-result.ts';

const FOLDER_INSIDE = '/opt/trainyard';
const NODE_INSIDE = `${FOLDER_INSIDE}/node`;
/** What Node itself takes, and two interpreters at rest. */
const OWN_MEMORY_MB = 192;
/** For starting Node and the interpreters. */
const START_MS = 30_000;
/** Beyond the code's time, for saying what came out of it; then everything is killed: some operations cannot be interrupted. */
const OWN_MS = 5_000;
const MOST_OUTPUT_BYTES = 64 * 2 ** 20;

export async function runJavaScript(sandbox: Sandbox, run: CodeRun): Promise<TestsResult> {
  const { tests, timeoutMs, memoryMb, signal } = run;
  const script = fileURLToPath(siblingScript(import.meta.url, 'javascript/harness'));
  const inside = `${FOLDER_INSIDE}/javascript/${script.slice(dirname(script).length + 1)}`;
  const running = sandbox.start({
    program: NODE_INSIDE,
    args: ['--disable-warning=ExperimentalWarning', '--max-old-space-size=128', inside],
    readable: readable(dirname(script)),
    limits: {
      wallMs: START_MS + timeoutMs + OWN_MS,
      cpuSeconds: Math.ceil((START_MS + timeoutMs + OWN_MS) / 1_000),
      memoryMb: memoryMb * 2 + OWN_MEMORY_MB,
      outputBytes: MOST_OUTPUT_BYTES,
    },
    ...(signal === undefined ? {} : { signal }),
  });
  const said = await saidBy(running, JSON.stringify(orderOf(run)), timeoutMs + OWN_MS);
  const { kind } = await running.ended;
  if (signal?.aborted) throw new TrainyardError('CANCELLED', 'the tests were cancelled');
  if (!said.startsWith(`${READY}\n`)) {
    const lines = running.stderr.trim().split('\n');
    const why = lines.find((line) => /error/i.test(line)) ?? kind;
    throw new TrainyardError('SANDBOX_FAILED', `the interpreter could not be started in the sandbox: ${why}`);
  }
  // Nothing but the harness can print: what is there is its answer, whole or not.
  const answer = parsedJson(said.slice(READY.length)) as HarnessAnswer | undefined;
  return answer === undefined ? allFailed(tests, kind === 'cancelled' ? 'timeout' : kind) : verdictOf(run, answer);
}

/** All that it prints. From its first word on it has `limitMs`. */
async function saidBy(running: ConfinedProcess, order: string, limitMs: number): Promise<string> {
  const chunks: Buffer[] = [];
  let timer: NodeJS.Timeout | undefined;
  running.stdout
    .on('data', (chunk: Buffer) => {
      timer ??= setTimeout(() => running.kill(), limitMs);
      chunks.push(chunk);
    })
    .resume();
  running.stdin.end(order);
  try {
    await running.ended;
  } finally {
    clearTimeout(timer);
  }
  return Buffer.concat(chunks).toString('utf8');
}

function orderOf({ code, tests, timeoutMs, memoryMb, tolerance }: CodeRun): HarnessOrder {
  const common = { code, timeoutMs, memoryMb };
  // Of programs only the input: what they should print stays here.
  if (tests.kind === 'program') return { ...common, kind: 'program', inputs: tests.tests.map(({ input }) => input) };
  return { ...common, kind: 'function', tests: tests.tests, entry: tests.entry ?? null, setup: tests.setup, tolerance };
}

function verdictOf({ tests }: CodeRun, answer: HarnessAnswer): TestsResult {
  if (answer.kind === 'fault') return answer;
  const why =
    answer.kind === 'ran' || tests.kind !== 'program'
      ? (answer as HarnessAnswer & { kind: 'ran' }).why
      : answer.results.map(
          ({ why, output }, index) => why || (samePrinted(output, tests.tests[index]!.output) ? '' : 'another output'),
        );
  const course = answer.kind === 'ran' ? answer.course : { timedOut: why.includes('time is up') };
  return { kind: 'ran', passed: why.map((one) => one === ''), why, course };
}

/** Node, the harness and the packages it needs, each where Node looks for it inside. */
function readable(folder: string): readonly ReadableFile[] {
  const own = createRequire(import.meta.url);
  const core = packageFolder(own, 'quickjs-emscripten-core');
  const variant = packageFolder(own, '@jitl/quickjs-wasmfile-release-sync');
  const types = packageFolder(createRequire(join(core, 'package.json')), '@jitl/quickjs-ffi-types');
  const modules = `${FOLDER_INSIDE}/node_modules`;
  return [
    { source: realpathSync(process.execPath), target: NODE_INSIDE },
    { source: folder, target: `${FOLDER_INSIDE}/javascript` },
    { source: core, target: `${modules}/quickjs-emscripten-core` },
    { source: variant, target: `${modules}/@jitl/quickjs-wasmfile-release-sync` },
    { source: types, target: `${modules}/@jitl/quickjs-ffi-types` },
  ];
}

/** By its entry: packages need not let their package.json be looked up. */
function packageFolder(require: NodeJS.Require, name: string): string {
  const entry = realpathSync(require.resolve(name));
  const mark = join('/', ...name.split('/'), '/');
  return entry.slice(0, entry.lastIndexOf(mark) + mark.length - 1);
}
