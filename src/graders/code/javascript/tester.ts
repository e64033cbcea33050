/**
 * The script of the interpreter with the tests: `assert` and `expect` as tests know them, and names of the code under test as stand-ins.
 * No code under test runs here.
 */

/** What tests may require. */
export const OWN_MODULES = /^(node:)?assert(\/strict)?$/;

/**
 * An expression: `(peer, entry) => { compiled, calling, lacks, isComplete }`. The first two make a test of its source: a function that gives '' or why the test
 * failed. `compiled` throws for what is no JavaScript. `lacks` is something that compares and that a test used without having it: the code under
 * test is never asked for that. `isComplete`: whether the code had all that tests asked it for.
 */
export const TESTER = String.raw`
(function (peer, entry) {
  const data = (value) => (peer.isStandIn(value) && typeof value !== 'function' ? peer.own(value) : value);

  function same(a, b, strict, tolerance) {
    if (Object.is(a, b)) return true;
    if (typeof a === 'number' && typeof b === 'number') return a === b || (!Number.isInteger(b) && Math.abs(a - b) <= tolerance * Math.max(1, Math.abs(b)));
    const areObjects = typeof a === 'object' && a !== null && typeof b === 'object' && b !== null;
    if (!areObjects) return !strict && a == b && typeof a !== 'function' && typeof a !== 'object' && typeof b !== 'object';
    const [left, right] = [data(a), data(b)];
    if (peer.isStandIn(left) || peer.isStandIn(right)) return false;
    if (Array.isArray(left) !== Array.isArray(right)) return false;
    if (left instanceof Date || right instanceof Date) return left instanceof Date && right instanceof Date && left.getTime() === right.getTime();
    if (left instanceof RegExp || left instanceof Error) return right instanceof left.constructor && String(left) === String(right);
    if (left instanceof Map || right instanceof Map) {
      return left instanceof Map && right instanceof Map && left.size === right.size && [...left].every(([key, item]) => right.has(key) && same(item, right.get(key), strict, tolerance));
    }
    if (left instanceof Set || right instanceof Set) {
      return left instanceof Set && right instanceof Set && left.size === right.size && [...left].every((item) => right.has(item) || [...right].some((other) => same(item, other, strict, tolerance)));
    }
    const keys = Object.keys(left);
    return keys.length === Object.keys(right).length && keys.every((key) => Object.hasOwn(right, key) && same(left[key], right[key], strict, tolerance));
  }

  class AssertionError extends Error {
    name = 'AssertionError';
  }
  const insist = (holds, message) => {
    if (!holds) throw message instanceof Error ? message : new AssertionError(typeof message === 'string' ? message : 'assertion failed');
  };
  const fits = (error, expected) => {
    if (expected === undefined || typeof expected === 'string') return true;
    if (expected instanceof RegExp) return expected.test(String(error));
    if (peer.isStandIn(expected)) return error instanceof Error && error.name === expected.name;
    if (typeof expected === 'function') return error instanceof expected || (expected.prototype === undefined && expected(error) === true);
    return Object.keys(expected).every((key) => (expected[key] instanceof RegExp ? expected[key].test(error[key]) : same(error[key], expected[key], true, 0)));
  };
  const thrown = (fn) => {
    try { fn(); } catch (error) { return { error }; }
    return undefined;
  };
  const assert = (value, message) => insist(value, message);
  Object.assign(assert, {
    ok: assert,
    fail: (message) => insist(false, message),
    equal: (a, b, message) => insist(a == b || (a !== a && b !== b), message),
    notEqual: (a, b, message) => insist(a != b, message),
    strictEqual: (a, b, message) => insist(Object.is(a, b), message),
    notStrictEqual: (a, b, message) => insist(!Object.is(a, b), message),
    deepEqual: (a, b, message) => insist(same(a, b, false, 0), message),
    deepStrictEqual: (a, b, message) => insist(same(a, b, true, 0), message),
    notDeepEqual: (a, b, message) => insist(!same(a, b, false, 0), message),
    notDeepStrictEqual: (a, b, message) => insist(!same(a, b, true, 0), message),
    throws: (fn, expected, message) => { const got = thrown(fn); insist(got !== undefined && fits(got.error, expected), message); },
    doesNotThrow: (fn, message) => insist(thrown(fn) === undefined, message),
    rejects: async (given, expected, message) => {
      let got;
      try { await (typeof given === 'function' ? given() : given); } catch (error) { got = { error }; }
      insist(got !== undefined && fits(got.error, expected), message);
    },
    match: (text, pattern, message) => insist(pattern.test(text), message),
  });
  assert.strict = assert;
  assert.AssertionError = AssertionError;

  const matchers = (value, wanted) => {
    const check = (holds) => insist(Boolean(holds) === wanted);
    return {
      toBe: (other) => check(Object.is(value, other)),
      toEqual: (other) => check(same(value, other, true, 0)),
      toStrictEqual: (other) => check(same(value, other, true, 0)),
      toBeCloseTo: (other, digits = 2) => check(Math.abs(value - other) < 10 ** -digits / 2),
      toBeTruthy: () => check(value),
      toBeFalsy: () => check(!value),
      toBeNull: () => check(value === null),
      toBeUndefined: () => check(value === undefined),
      toBeDefined: () => check(value !== undefined),
      toBeNaN: () => check(Number.isNaN(value)),
      toBeGreaterThan: (other) => check(value > other),
      toBeGreaterThanOrEqual: (other) => check(value >= other),
      toBeLessThan: (other) => check(value < other),
      toBeLessThanOrEqual: (other) => check(value <= other),
      // Of a copy: an object of the code's would be asked whether it contains what it should.
      toContain: (item) => check(typeof value === 'string' ? value.includes(item) : Array.from(value).includes(item)),
      toContainEqual: (item) => check(Array.from(value).some((one) => same(one, item, true, 0))),
      toHaveLength: (length) => check(value.length === length),
      toMatch: (pattern) => check(pattern instanceof RegExp ? pattern.test(value) : String(value).includes(pattern)),
      toThrow: (expected) => { const got = thrown(value); check(got !== undefined && (typeof expected === 'string' ? String(got.error.message).includes(expected) : fits(got.error, expected))); },
    };
  };
  const quiet = () => {};
  globalThis.assert = assert;
  globalThis.expect = (value) => Object.assign(matchers(value, true), { not: matchers(value, false) });
  globalThis.console = { assert, log: quiet, error: quiet, warn: quiet, info: quiet, debug: quiet };
  globalThis.require = (name) => {
    if (${OWN_MODULES}.test(name)) return assert;
    throw new Error('tests have no module ' + name);
  };
  /** Names that the tests' own surroundings have are theirs: code that redefines Math does not get to be it. */
  const compares = /^(assert\w*|expect|should|chai|jest|test|it|describe|deepEqual|isDeepStrictEqual|isEqual|_)$/;
  const made = { lacks: '', isComplete: true };
  const has = (name) => {
    const isThere = peer.ask({ do: 'defined', name }) === true;
    made.isComplete &&= isThere;
    return isThere;
  };
  const isTheirs = (name) => {
    if (!compares.test(name)) return has(name);
    made.lacks ||= name;
    return false;
  };
  let isEntryKnown = false;
  const named = (name) => {
    // The others were asked for when it was seen whether they are the code's.
    if (name === entry && !isEntryKnown) has(name);
    isEntryKnown ||= name === entry;
    return peer.ask({ do: 'name', name });
  };
  const scope = new Proxy({}, {
    has: (_, name) => typeof name === 'string' && (name === entry || (!(name in globalThis) && isTheirs(name))),
    get: (_, name) => (typeof name === 'string' ? named(name) : undefined),
  });

  const outcome = (fn) => {
    try {
      const [ok, error] = peer.settled(Promise.resolve(fn()));
      return peer.gone ? 'the code was stopped' : ok ? '' : nameOf(error);
    } catch (error) {
      return peer.gone ? 'the code was stopped' : nameOf(error);
    }
  };
  const nameOf = (error) => (error instanceof Error ? String(error.name) : 'something thrown') || 'an error';
  return Object.assign(made, {
    compiled: (source, checks) => {
      const call = checks ? '\nreturn check(' + entry + ');' : '';
      const test = (0, eval)('(function (scope) { with (scope) { return (async function () {' + source + '\n' + call + '\n})(); } })');
      return () => outcome(() => test(scope));
    },
    calling: (source, tolerance) => () => outcome(async () => {
      const { args, expected } = JSON.parse(source);
      const found = await named(entry)(...args);
      insist(same(found, expected, true, tolerance));
    }),
  });
})
`;
