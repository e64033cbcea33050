/**
 * The two programs of a sandbox for JavaScript, each a Node process of its own. `subject` runs the code under test and answers calls to it;
 * nothing that it says is believed to be more than a value. `tester` runs the tests, in which every name of that code stands for a call into
 * the other process: no code under test ever runs there, so it cannot read the tests, patch `assert` or say that they passed.
 *
 * The first line of the subject is `ready`, that of the tester is `R`. Lines of the tester that begin with U go to the subject; those that begin with V are
 * for the grader: { fault }, { loaded, defined }, { test, passed, why }.
 */
import realAssert from 'node:assert';
import { createRequire, isBuiltin } from 'node:module';
import { Writable } from 'node:stream';
import { constants, runInThisContext } from 'node:vm';
import { objectAnswer, Peer, type Request, say } from './wire.ts';

type Test =
  | { readonly source: string; readonly checks?: true }
  | { readonly args: readonly unknown[]; readonly expected: unknown };

interface Order {
  readonly code: string;
  readonly tests: readonly Test[];
  readonly entry: string | null;
  readonly setup: string;
  readonly tolerance: number;
}

const script = (source: string, name: string): unknown =>
  runInThisContext(source, {
    filename: `${process.cwd()}/${name}`,
    importModuleDynamically: constants.USE_MAIN_CONTEXT_DEFAULT_LOADER,
  });
const globals = globalThis as unknown as Record<string, unknown>;

// ── the code under test ─────────────────────────────────────────────────────────────────────────────────────────────────

function subject(): void {
  const nowhere = new Writable({ write: (_chunk, _encoding, done) => done() });
  // What the code prints is nobody's answer.
  for (const name of ['stdout', 'stderr']) Object.defineProperty(process, name, { value: nowhere });
  // A rejection that nobody handles is not the end of the code: the tests may not have looked at it yet.
  process.on('unhandledRejection', () => {});
  const module: { exports: unknown } = { exports: {} };
  Object.assign(globals, { module, exports: module.exports, require: createRequire(`${process.cwd()}/solution.js`) });
  const named = (name: string): unknown => {
    try {
      return runInThisContext(`(${name})`);
    } catch {
      const given = module.exports as Record<string, unknown> | ((...args: unknown[]) => unknown) | null | undefined;
      if (typeof given === 'function' && (given.name === name || given.name === '')) return given;
      return (given as Record<string, unknown> | null | undefined)?.[name];
    }
  };
  const peer = new Peer('', (request: Request) => {
    if (request.do === 'load') {
      script(asScript(request.code!), 'solution.js');
      return null;
    }
    if (request.do === 'defined') return named(request.name!) !== undefined;
    return request.do === 'name' ? peer.encode(named(request.name!)) : objectAnswer(peer, request);
  });
  peer.serve();
  say('ready');
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

// ── the tests ───────────────────────────────────────────────────────────────────────────────────────────────────────────

/** What compares. The code under test is never asked for it: it would say that all is well. */
const COMPARES = /^(assert\w*|expect|should|chai|jest|test|it|describe|deepEqual|isDeepStrictEqual|isEqual|_)$/;
/** Names that tests have of themselves, Node's among them: code that redefines Math or Buffer does not get to be it. */
const OWN_NAMES: ReadonlySet<string> = new Set([...Object.getOwnPropertyNames(globalThis), 'assert', 'expect', 'require']);

const tell = (message: object): void => say(`V${JSON.stringify(message)}`);

async function tester(): Promise<void> {
  let fail = (_error: Error): void => {};
  const peer = new Peer('U', ({ do: what }) => {
    throw new TypeError(`only functions that were passed can be called, found ${what}`);
  });
  // Failures of what a test started and did not wait for.
  process.on('uncaughtException', (error) => fail(error)).on('unhandledRejection', () => {});
  say('R');
  const order = JSON.parse(peer.line()) as Order;
  const course = { loaded: false, defined: false };
  // All of them before any code under test runs: from then on whatever goes wrong is the code's doing.
  const tests = compiled(order, peer, () => {
    if (course.defined) tell(Object.assign(course, { defined: false }));
  });
  if (typeof tests === 'string') return tell({ fault: tests });
  peer.serve(() => fail(new Error('a promise that is never settled')));
  const outcome = async (test: () => unknown): Promise<string> => {
    const { promise: failed, reject } = Promise.withResolvers<never>();
    fail = reject;
    try {
      await Promise.race([failed, test()]);
      return '';
    } catch (error) {
      return nameOf(error);
    }
  };
  const why = await outcome(() => peer.ask({ do: 'load', code: order.code }));
  if (why === '') tell(Object.assign(course, { loaded: true, defined: true }));
  for (const [number, test] of tests.entries()) {
    const failure = why || (await outcome(test));
    // Also where the test took it for an error that it expected.
    const reason = peer.isGone ? 'the code ended its process' : failure;
    tell({ test: number, passed: reason === '', why: reason });
  }
  process.exit(0);
}

/** Never empty. What the code threw may itself throw when it is looked at. */
function nameOf(error: unknown): string {
  try {
    return (error instanceof Error && String(error.name)) || 'something thrown';
  } catch {
    return 'something thrown';
  }
}

/** A function for each test, which throws where it fails; or what is wrong with the tests. `onMissing`: the code lacks a name. */
function compiled({ tests, entry, setup, tolerance }: Order, peer: Peer, onMissing: () => void): string | (() => unknown)[] {
  const scope = scopeFor(peer, entry, onMissing);
  const { data, insist, ...surroundings } = provide(peer);
  Object.assign(globals, surroundings);
  const made: (() => unknown)[] = [];
  for (const test of tests) {
    if (!('source' in test)) {
      made.push(async () => insist(isExpected(data(await scope[entry!]!(...test.args)), test.expected, tolerance)));
      continue;
    }
    const source = `${setup}\n${test.source}\n${test.checks === true ? `return check(${entry});` : ''}`;
    const lacking = moduleLacking(source);
    if (lacking !== undefined) return `a test requires ${lacking}, which tests do not have`;
    try {
      const run = script(`(function (scope) { with (scope) { return (async function () {${source}\n})(); } })`, 'test.js');
      made.push(() => (run as (scope: object) => unknown)(scope));
    } catch {
      return 'a test is not JavaScript';
    }
  }
  return made;
}

type Scope = Readonly<Record<string, (...args: readonly unknown[]) => unknown>>;

/** Where names of tests are looked up: what they neither have of themselves nor define is the code's. */
function scopeFor(peer: Peer, entry: string | null, onMissing: () => void): Scope {
  const isTheirs = (name: string): boolean => {
    const found = peer.ask({ do: 'defined', name }) === true;
    if (!found) onMissing();
    return found;
  };
  return new Proxy({} as Scope, {
    has: (_, name) => {
      if (name === entry) return true;
      if (typeof name !== 'string' || OWN_NAMES.has(name)) return false;
      if (!COMPARES.test(name)) return isTheirs(name);
      tell({ fault: `a test uses ${name} and does not define it` });
      return false;
    },
    get: (_, name) => {
      if (typeof name !== 'string') return undefined;
      if (name === entry && !isTheirs(name)) throw new ReferenceError(`${name} is not defined`);
      return peer.ask({ do: 'name', name });
    },
  });
}

/**
 * A module that a test requires and Node does not have. Read off its text, whatever the code under test will do: a call that fails later may be
 * one that only wrong code leads to. A test that is prepared for it, with `try` or a `require` of its own, is left to itself.
 */
function moduleLacking(source: string): string | undefined {
  const text = source.replace(/\/\*[\s\S]*?\*\/|^[ \t]*\/\/.*$/gm, '');
  if (/\btry\b|\.catch\b|\bif\b|\brequire\s*=|\bfunction\s+require\b|throws|rejects|toThrow/.test(text)) return undefined;
  const required = /(?<![\w$.'"`]|(?:&&|\|\||\?|:)\s*)(?:require|import)\s*\(\s*(['"`])([^'"`\\\n]+)\1\s*\)/g;
  return [...text.matchAll(required)].map(([, , name]) => name!).find((name) => !isBuiltin(name));
}

/** Data as JSON has it. Whole numbers are equal or not; others within the tolerance. */
function isExpected(found: unknown, expected: unknown, tolerance: number): boolean {
  if (typeof expected === 'number' && typeof found === 'number') {
    const most = Number.isInteger(expected) ? 0 : tolerance * Math.max(1, Math.abs(expected));
    return found === expected || Math.abs(found - expected) <= most;
  }
  if (typeof expected !== 'object' || expected === null || typeof found !== 'object' || found === null) return found === expected;
  if (Object.getPrototypeOf(found) !== Object.getPrototypeOf(expected)) return false;
  const [wanted, given] = [expected as Record<string, unknown>, found as Record<string, unknown>];
  const keys = Object.keys(wanted);
  if (keys.length !== Object.keys(given).length) return false;
  return keys.every((key) => Object.hasOwn(given, key) && isExpected(given[key], wanted[key], tolerance));
}

type Check = (...args: unknown[]) => unknown;

/** `assert` of Node and `expect` with the common matchers of Jest. Objects of the code are copied first: none decides what it is equal to. */
function provide(peer: Peer) {
  const data = (value: unknown): unknown => {
    if (peer.isStandIn(value) && typeof value !== 'function') {
      const own = peer.own(value);
      // Equal to nothing: what it is made of is no data either.
      return peer.isStandIn(own) ? Symbol('an object') : data(own);
    }
    if (Array.isArray(value)) return value.map(data);
    if (typeof value !== 'object' || value === null || Object.getPrototypeOf(value) !== Object.prototype) return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, data(item)]));
  };
  // With messages of our own: Node's would look up the source, or compare what is not equal line by line.
  const insist = (value: unknown, message: unknown = 'it does not hold'): void => realAssert(value, message as string);
  const real = realAssert as unknown as Record<string, Check>;
  const comparing = (name: string): [string, Check] => [
    name,
    (a, b, message = 'it does not hold') => real[name]!(data(a), data(b), message),
  ];
  const fitting = (expected: unknown): unknown =>
    peer.isStandIn(expected) ? (error: unknown) => error instanceof Error && error.name === (expected as Error).name : expected;
  const throwing = (name: string): [string, Check] => [
    name,
    (fn, expected, ...more) => real[name]!(fn, fitting(expected), ...more),
  ];
  const given = {
    ...{ ...realAssert, ok: insist },
    ...Object.fromEntries(['deepEqual', 'deepStrictEqual', 'notDeepEqual', 'notDeepStrictEqual'].map(comparing)),
    ...Object.fromEntries(['throws', 'rejects'].map(throwing)),
  } as unknown as Record<string, Check>;
  const { strictEqual, notStrictEqual, deepStrictEqual, notDeepStrictEqual } = given;
  const assert = Object.assign((...args: [unknown]) => insist(...args), given);
  const strict = Object.assign((...args: [unknown]) => insist(...args), given, {
    ...{ equal: strictEqual, notEqual: notStrictEqual, deepEqual: deepStrictEqual, notDeepEqual: notDeepStrictEqual },
  });
  Object.assign(assert, { strict });
  const quiet = (): void => {};
  const console = { assert, log: quiet, error: quiet, warn: quiet, info: quiet, debug: quiet, table: quiet };
  const ownRequire = createRequire(`${process.cwd()}/test.js`);
  const require = (name: string): unknown => {
    const [isAssert, isStrict] = /^(?:node:)?assert(\/strict)?$/.exec(name) ?? [];
    return isAssert === undefined ? ownRequire(name) : isStrict === undefined ? assert : strict;
  };
  return { data, insist, assert, expect: expecting(given, insist), console, require };
}

function expecting({ deepStrictEqual, throws }: Record<string, Check>, insist: (value: unknown) => void) {
  const holds = (check: () => unknown): boolean => {
    try {
      check();
      return true;
    } catch {
      return false;
    }
  };
  const isEqual = (a: unknown, b: unknown): boolean => holds(() => deepStrictEqual!(a, b));
  const matchers = (value: never, wanted: boolean) => {
    const check = (isSo: unknown): void => insist(Boolean(isSo) === wanted);
    return {
      toBe: (other: unknown) => check(Object.is(value, other)),
      toEqual: (other: unknown) => check(isEqual(value, other)),
      toStrictEqual: (other: unknown) => check(isEqual(value, other)),
      toBeCloseTo: (other: number, digits = 2) => check(Math.abs(value - other) < 10 ** -digits / 2),
      toBeTruthy: () => check(value),
      toBeFalsy: () => check(!value),
      toBeNull: () => check(value === null),
      toBeUndefined: () => check(value === undefined),
      toBeDefined: () => check(value !== undefined),
      toBeNaN: () => check(Number.isNaN(value)),
      toBeGreaterThan: (other: number) => check(value > other),
      toBeGreaterThanOrEqual: (other: number) => check(value >= other),
      toBeLessThan: (other: number) => check(value < other),
      toBeLessThanOrEqual: (other: number) => check(value <= other),
      // Of a copy: an object of the code's would be asked whether it contains what it should.
      toContain: (item: never) =>
        check(typeof value === 'string' ? (value as string).includes(item) : Array.from(value).includes(item)),
      toContainEqual: (item: unknown) => check(Array.from(value).some((one) => isEqual(one, item))),
      toHaveLength: (length: number) => check((value as string).length === length),
      toMatch: (pattern: RegExp | string) =>
        check(pattern instanceof RegExp ? pattern.test(value) : String(value).includes(pattern)),
      toThrow: (expected?: unknown) => check(holds(() => throws!(value, withText(expected)))),
    };
  };
  return (value: never) => Object.assign(matchers(value, true), { not: matchers(value, false) });
}

/** For `assert.throws`, a text that the error's message has in it. */
const withText = (expected: unknown): unknown =>
  typeof expected === 'string' ? (error: unknown) => String((error as Error).message).includes(expected) : expected;

if (process.argv[2] === 'tester') void tester();
else subject();
