/**
 * The program that runs in the sandbox for JavaScript: two QuickJS interpreters, one with the code under test and one with its tests, and
 * calls between them. Neither can reach anything of Node. Reads an order from its standard input, prints one verdict.
 *
 * On its own (nothing but this folder and two packages are there inside the sandbox), and trusted with nothing: it holds the tests, and no
 * other secret.
 */
import {
  newQuickJSWASMModuleFromVariant,
  type QuickJSContext,
  type QuickJSHandle,
  type QuickJSWASMModule,
} from 'quickjs-emscripten-core';
import { type HarnessAnswer, type HarnessOrder, READY } from './order.ts';
import { REALM } from './realm.ts';
import { PROGRAM, SUBJECT } from './subject.ts';
import { OWN_MODULES, TESTER } from './tester.ts';

const BYTES_PER_MB = 2 ** 20;
const MOST_STACK_BYTES = 512 * 1024;
/** Calls from tests to code to callbacks of tests and so on. */
const MOST_NESTED_CALLS = 40;
const MOST_OUTPUT_CHARS = 2 ** 20;
/** What the tests have beyond the code's time. */
const TESTER_MS = 2_000;

class Realm {
  readonly context: QuickJSContext;
  readonly peer: QuickJSHandle;
  #timeIsUp = false;

  constructor(
    quickjs: QuickJSWASMModule,
    options: {
      readonly memoryMb: number;
      readonly end: number;
      readonly isTester: boolean;
      readonly send: (text: string) => string;
    },
  ) {
    const runtime = quickjs.newRuntime();
    runtime.setMemoryLimit(options.memoryMb * BYTES_PER_MB);
    runtime.setMaxStackSize(MOST_STACK_BYTES);
    runtime.setInterruptHandler(() => {
      this.#timeIsUp ||= performance.now() > options.end;
      return this.#timeIsUp;
    });
    this.context = runtime.newContext();
    const send = this.context.newFunction('send', (text) => this.context.newString(options.send(this.context.getString(text))));
    const pump = this.context.newFunction('pump', () => {
      runtime.executePendingJobs().dispose();
    });
    this.peer = this.call(this.evaluate(REALM), [send, pump, options.isTester ? this.context.true : this.context.false]);
  }

  get timeIsUp(): boolean {
    return this.#timeIsUp;
  }

  /** Throws what the script throws. */
  evaluate(source: string, name = 'script.js'): QuickJSHandle {
    return this.context.unwrapResult(this.context.evalCode(source, name));
  }

  call(fn: QuickJSHandle, args: readonly QuickJSHandle[]): QuickJSHandle {
    return this.context.unwrapResult(this.context.callFunction(fn, this.context.undefined, ...args));
  }

  method(name: string, args: readonly QuickJSHandle[], of: QuickJSHandle = this.peer): QuickJSHandle {
    return this.call(this.context.getProp(of, name), args);
  }

  text(value: string): QuickJSHandle {
    return this.context.newString(value);
  }
}

async function main(): Promise<void> {
  const order = JSON.parse(await read()) as HarnessOrder;
  // Two, each with a memory of its own: even code that found a hole in its interpreter would not be where its tests are.
  const [forCode, forTests] = await Promise.all([interpreter(), interpreter()]);
  process.stdout.write(`${READY}\n`);
  const answer = order.kind === 'program' ? programs(forCode, order) : functions(forCode, forTests, order);
  process.stdout.write(JSON.stringify(answer));
}

function interpreter(): Promise<QuickJSWASMModule> {
  return newQuickJSWASMModuleFromVariant(import('@jitl/quickjs-wasmfile-release-sync'));
}

async function read(): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of process.stdin) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString('utf8');
}

function functions(
  forCode: QuickJSWASMModule,
  forTests: QuickJSWASMModule,
  order: HarnessOrder & { kind: 'function' },
): HarnessAnswer {
  const { memoryMb, timeoutMs, entry, tolerance } = order;
  const end = performance.now() + timeoutMs;
  let nested = 0;
  const into = (realm: () => Realm) => (text: string) => {
    if (nested >= MOST_NESTED_CALLS) return JSON.stringify({ raised: { E: ['RangeError', 'calls are nested too deeply'] } });
    if (realm().timeIsUp) return JSON.stringify({ gone: 'time is up' });
    nested += 1;
    try {
      return realm().context.getString(realm().method('serve', [realm().text(text)]));
    } catch {
      return JSON.stringify({ gone: realm().timeIsUp ? 'time is up' : 'stopped' });
    } finally {
      nested -= 1;
    }
  };
  const subject = new Realm(forCode, { memoryMb, end, isTester: false, send: into(() => tester) });
  const tester = new Realm(forTests, { memoryMb, end: end + TESTER_MS, isTester: true, send: into(() => subject) });
  const made = tester.call(tester.evaluate(TESTER), [
    tester.peer,
    entry === null ? tester.context.undefined : tester.text(entry),
  ]);
  const flag = (value: boolean): QuickJSHandle => (value ? tester.context.true : tester.context.false);
  const tests: QuickJSHandle[] = [];
  // All of them before any code under test runs: from then on whatever goes wrong is the code's doing.
  for (const test of order.tests) {
    try {
      tests.push(
        'source' in test
          ? tester.method('compiled', [tester.text(`${order.setup}\n${test.source}`), flag(test.checks === true)], made)
          : tester.method('calling', [tester.text(JSON.stringify(test)), tester.context.newNumber(tolerance)], made),
      );
    } catch {
      return { kind: 'fault', why: 'a test is not JavaScript' };
    }
  }
  const lacking = order.tests
    .map((test) => ('source' in test ? lackedBy(`${order.setup}\n${test.source}`) : undefined))
    .find(Boolean);
  if (lacking !== undefined) return { kind: 'fault', why: `a test requires ${lacking}, which tests do not have` };
  const why = loaded(subject, order.code);
  const outcome = (test: QuickJSHandle): string => {
    try {
      return tester.context.getString(tester.call(test, []));
    } catch {
      return tester.timeIsUp ? 'time is up' : 'the test could not be run';
    }
  };
  const results = tests.map((test) => why || outcome(test));
  const lacks = tester.context.getString(tester.context.getProp(made, 'lacks'));
  if (lacks !== '') return { kind: 'fault', why: `a test uses ${lacks} and does not define it` };
  const isDefined = why === '' && tester.context.dump(tester.context.getProp(made, 'isComplete')) === true;
  return {
    kind: 'ran',
    why: results,
    course: { loaded: why === '', defined: isDefined, timedOut: subject.timeIsUp || tester.timeIsUp },
  };
}

/**
 * A module that a test requires and does not have. Read off its text, whatever the code under test will do: a call that fails later may be one
 * that only wrong code leads to. A test that is prepared for it, with `try` or a `require` of its own, is left to itself.
 */
function lackedBy(source: string): string | undefined {
  const text = source.replace(/\/\*[\s\S]*?\*\/|^[ \t]*\/\/.*$/gm, '');
  if (/\btry\b|\.catch\b|\bif\b|\brequire\s*=|\bfunction\s+require\b|throws|rejects|toThrow/.test(text)) return undefined;
  const names = [
    ...text.matchAll(/(?<![\w$.'"`]|(?:&&|\|\||\?|:)\s*)(?:require|import)\s*\(\s*(['"`])([^'"`\\\n]+)\1\s*\)/g),
  ].map(([, , name]) => name!);
  return names.find((name) => !OWN_MODULES.test(name));
}

/** '' or why the code does not even load. */
function loaded(realm: Realm, code: string): string {
  realm.call(realm.evaluate(SUBJECT), [realm.peer]);
  try {
    realm.evaluate(asScript(code), 'solution.js');
    realm.method('turn', []);
    return realm.timeIsUp ? 'time is up' : '';
  } catch (error) {
    return realm.timeIsUp ? 'time is up' : `the code threw ${(error as Error).name}`;
  }
}

/** Scripts have no imports and exports; what a module declares is found by its name all the same. */
function asScript(code: string): string {
  return code
    .replace(/^[ \t]*import[ \t]+(?:\*[ \t]+as[ \t]+)?([\w$]+)[ \t]+from[ \t]*(['"][\w:/-]+['"])/gm, 'const $1 = require($2)')
    .replace(
      /^[ \t]*import[ \t]*(\{[^}'"]*\})[ \t]*from[ \t]*(['"][\w:/-]+['"])/gm,
      (_, names: string, from: string) => `const ${names.replace(/\bas\b/g, ':')} = require(${from})`,
    )
    .replace(/^[ \t]*export[ \t]+default[ \t]+(?=(async[ \t]+)?function[ \t*]|class[ \t])/gm, '')
    .replace(/^[ \t]*export[ \t]+default[ \t]+/gm, 'module.exports = ')
    .replace(/^[ \t]*export[ \t]+(?=(async|function|class|const|let|var)\b)/gm, '')
    .replace(/^[ \t]*export[ \t]*\{[^}]*\}[ \t]*;?[ \t]*$/gm, '');
}

/** Modules may wait at their top level, scripts may not: there it is waited inside of a function. */
function asProgram(realm: Realm, code: string): string {
  if (!/\bawait\b/.test(code)) return code;
  const isScript = realm.context.evalCode(`(() => {\n${code}\n})`);
  const { error } = isScript;
  isScript.dispose();
  return error === undefined ? code : `(async () => {\n${code}\n})();`;
}

function programs(quickjs: QuickJSWASMModule, order: HarnessOrder & { kind: 'program' }): HarnessAnswer {
  const end = performance.now() + order.timeoutMs;
  return { kind: 'printed', results: order.inputs.map((input) => printed(quickjs, order, input, end)) };
}

function printed(
  quickjs: QuickJSWASMModule,
  order: HarnessOrder & { kind: 'program' },
  input: string,
  end: number,
): { why: string; output: string } {
  const realm = new Realm(quickjs, { memoryMb: order.memoryMb, end, isTester: false, send: () => '{"gone":"alone"}' });
  const { context } = realm;
  let output = '';
  const write = context.newFunction('write', (text) => {
    if (output.length > MOST_OUTPUT_CHARS) throw new Error('too much output');
    output += context.getString(text);
  });
  realm.call(realm.evaluate(PROGRAM), [realm.peer, write, realm.text(input)]);
  try {
    realm.evaluate(asProgram(realm, asScript(order.code)), 'solution.js');
    while (context.dump(realm.method('turn', [])) === true);
  } catch (error) {
    const code: unknown = context.dump(context.getProp(realm.peer, 'exit'));
    if (realm.timeIsUp) return { why: 'time is up', output: '' };
    if (code !== 0) return { why: `the code threw ${(error as Error).name}`, output: '' };
  }
  return output.length > MOST_OUTPUT_CHARS ? { why: 'output', output: '' } : { why: '', output };
}

await main();
