/**
 * The two programs of the JavaScript sandbox, each in its own Node process. `subject` runs the code under test and answers calls to it; its
 * answers are treated as mere values. `tester` runs the tests, in which every name of that code is a call into the other process. The code
 * never runs there, so it cannot read the tests, patch `assert` or claim that they passed. The first line is `ready` from the subject and
 * `R` from the tester. Tester lines that begin with U go to the subject, those with V to the grader:
 * { fault }, { loaded, defined }, { test, passed, why }.
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

function subject(): void {
  const nowhere = new Writable({ write: (_chunk, _encoding, done) => done() });
  for (const name of ['stdout', 'stderr']) Object.defineProperty(process, name, { value: nowhere });
  // An unhandled rejection must not end the code: the tests may look at it later.
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

/** Rewrites imports and exports, which scripts do not have; declarations are found by name anyway. */
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

/** Assertion names. Never looked up in the code under test, whose versions could always pass. */
const COMPARES = /^(assert\w*|expect|should|chai|jest|test|it|describe|deepEqual|isDeepStrictEqual|isEqual|_)$/;
/** Names that tests resolve in their own process: code that redefines Math or Buffer cannot replace theirs. */
const OWN_NAMES: ReadonlySet<string> = new Set([...Object.getOwnPropertyNames(globalThis), 'assert', 'expect', 'require']);

const tell = (message: object): void => say(`V${JSON.stringify(message)}`);

async function tester(): Promise<void> {
  let fail = (_error: Error): void => {};
  const peer = new Peer('U', ({ do: what }) => {
    throw new TypeError(`only functions that were passed can be called, found ${what}`);
  });
  // Errors from work that a test started and did not await.
  process.on('uncaughtException', (error) => fail(error)).on('unhandledRejection', () => {});
  say('R');
  const order = JSON.parse(peer.line()) as Order;
  const course = { loaded: false, defined: false };
  // Compiled before any code under test runs: from then on, any failure is the code's doing.
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
    // Even if the test took it for an error it expected.
    const reason = peer.isGone ? 'the code ended its process' : failure;
    tell({ test: number, passed: reason === '', why: reason });
  }
  process.exit(0);
}

/** Never empty. Inspecting what the code threw may itself throw. */
function nameOf(error: unknown): string {
  try {
    return (error instanceof Error && String(error.name)) || 'something thrown';
  } catch {
    return 'something thrown';
  }
}

/** One function per test, which throws on failure; or what is wrong with the tests. `onMissing`: the code lacks a name. */
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

/** Resolves names in tests: those that a test neither has nor defines belong to the code. */
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

/** A module that a test requires and Node lacks. Read from the source: a failing call may be one that only wrong code leads to. */
function moduleLacking(source: string): string | undefined {
  const text = source.replace(/\/\*[\s\S]*?\*\/|^[ \t]*\/\/.*$/gm, '');
  if (/\btry\b|\.catch\b|\bif\b|\brequire\s*=|\bfunction\s+require\b|throws|rejects|toThrow/.test(text)) return undefined;
  const required = /(?<![\w$.'"`]|(?:&&|\|\||\?|:)\s*)(?:require|import)\s*\(\s*(['"`])([^'"`\\\n]+)\1\s*\)/g;
  return [...text.matchAll(required)].map(([, , name]) => name!).find((name) => !isBuiltin(name));
}

/** Compares JSON data. Whole numbers must be equal, others within the tolerance. */
function isExpected(found: unknown, expected: unknown, tolerance: number): boolean {
  if (typeof expected === 'number' && typeof found === 'number') {
    const most = Number.isInteger(expected) ? 0 : tolerance * Math.max(1, Math.abs(expected));
    return found === expected || Math.abs(found - expected) <= most;
  }
  if (typeof expected !== 'object' || expected === null || typeof found !== 'object' || found === null) return found === expected;
  if (Object.getPrototypeOf(found) !== Object.getPrototypeOf(expected)) return false;
  const wanted = expected as Record<string, unknown>;
  const given = found as Record<string, unknown>;
  const keys = Object.keys(wanted);
  if (keys.length !== Object.keys(given).length) return false;
  return keys.every((key) => Object.hasOwn(given, key) && isExpected(given[key], wanted[key], tolerance));
}

type Check = (...args: unknown[]) => unknown;

/** Node's `assert` and Jest's common matchers. Both copy the code's objects first, so that none decides what it equals. */
function provide(peer: Peer) {
  const data = (value: unknown): unknown => {
    if (peer.isStandIn(value) && typeof value !== 'function') {
      const own = peer.own(value);
      // Equal to nothing, because even its own properties are not data.
      return peer.isStandIn(own) ? Symbol('an object') : data(own);
    }
    if (Array.isArray(value)) return value.map(data);
    if (typeof value !== 'object' || value === null || Object.getPrototypeOf(value) !== Object.prototype) return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, data(item)]));
  };
  // Own messages: Node's would read the source, or diff the values line by line.
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
    ...realAssert,
    ok: insist,
    ...Object.fromEntries(['deepEqual', 'deepStrictEqual', 'notDeepEqual', 'notDeepStrictEqual'].map(comparing)),
    ...Object.fromEntries(['throws', 'rejects'].map(throwing)),
  } as unknown as Record<string, Check>;
  const { strictEqual, notStrictEqual, deepStrictEqual, notDeepStrictEqual } = given;
  const assert = Object.assign((...args: [unknown]) => insist(...args), given);
  const strict = Object.assign((...args: [unknown]) => insist(...args), given, {
    equal: strictEqual,
    notEqual: notStrictEqual,
    deepEqual: deepStrictEqual,
    notDeepEqual: notDeepStrictEqual,
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
      // On a copy: the code's object would answer for itself.
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

const withText = (expected: unknown): unknown =>
  typeof expected === 'string' ? (error: unknown) => String((error as Error).message).includes(expected) : expected;

if (process.argv[2] === 'tester') void tester();
else subject();
