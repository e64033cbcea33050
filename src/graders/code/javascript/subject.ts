/**
 * The scripts of the interpreter with the code under test: what its surroundings offer, and how its names are found.
 *
 * There is no host in it: no files, no network, no modules but small stand-ins for what programs use to read their input.
 */

/** An expression: `(peer) => void`. */
export const SUBJECT = `
(function (peer) {
  const evaluate = eval;
  const module = { exports: {} };
  const quiet = () => {};
  globalThis.module = module;
  globalThis.exports = module.exports;
  globalThis.console = { log: quiet, error: quiet, warn: quiet, info: quiet, debug: quiet, table: quiet, assert: quiet };
  globalThis.require = (name) => { throw new Error('there is no module ' + name); };
  const found = (name) => {
    try {
      return evaluate('(' + name + ')');
    } catch {
      const given = module.exports;
      if (given !== null && given !== undefined && given[name] !== undefined) return given[name];
      return typeof given === 'function' && (given.name === name || given.name === '') ? given : undefined;
    }
  };
  peer.isDefined = (name) => found(name) !== undefined;
  peer.lookUp = (name) => {
    const value = found(name);
    if (value === undefined) throw new ReferenceError(name + ' is not defined');
    return value;
  };
})
`;

/** An expression: `(peer, write, input) => void`, for programs that read and print. */
export const PROGRAM = String.raw`
(function (peer, write, input) {
  const shown = (value, depth) => {
    if (typeof value === 'string') return depth === 0 ? value : "'" + value + "'";
    if (typeof value === 'bigint') return value + 'n';
    if (typeof value === 'function') return '[Function: ' + value.name + ']';
    if (typeof value !== 'object' || value === null) return Object.is(value, -0) ? '-0' : String(value);
    if (depth > 2) return Array.isArray(value) ? '[Array]' : '[Object]';
    if (value instanceof Error) return value.name + ': ' + value.message;
    if (Array.isArray(value)) return value.length === 0 ? '[]' : '[ ' + value.map((item) => shown(item, depth + 1)).join(', ') + ' ]';
    const entries = Object.entries(value).map(([key, item]) => key + ': ' + shown(item, depth + 1));
    return entries.length === 0 ? '{}' : '{ ' + entries.join(', ') + ' }';
  };
  const log = (...values) => write(values.map((value) => shown(value, 0)).join(' ') + '\n');
  const lines = () => { const all = input.split(/\r?\n/); if (all.at(-1) === '') all.pop(); return all; };
  const later = (fn) => setTimeout(fn, 0);
  const source = () => {
    const self = {
      setEncoding: () => self, resume: () => self, pause: () => self, close: () => self, removeAllListeners: () => self, unref: () => self,
      on(name, fn) {
        if (name === 'data' && input !== '') later(() => fn(input));
        if (name === 'line') later(() => lines().forEach((line) => fn(line)));
        if (name === 'readable') later(() => fn());
        if (name === 'end' || name === 'close') setTimeout(fn, 1);
        return self;
      },
      once: (name, fn) => self.on(name, fn),
      read: (() => { let isRead = false; return () => (isRead ? null : ((isRead = true), input)); })(),
    };
    return self;
  };
  let next = 0;
  const readline = () => lines()[next++];
  const stdin = Object.assign(source(), { fd: 0, isTTY: false, [Symbol.asyncIterator]: async function* () { if (input !== '') yield input; } });
  const createInterface = () => Object.assign(source(), {
    [Symbol.asyncIterator]: async function* () { yield* lines(); },
    question: (_, fn) => later(() => fn(readline() ?? '')),
  });
  const exit = (code = 0) => { peer.exit = Number(code); throw { exit: true }; };
  const process = { stdin, stdout: { write: (text) => write(String(text)) }, stderr: { write() {} }, argv: ['node', 'solution.js'], env: {}, exit, on() {} };
  const modules = {
    fs: { readFileSync: (_, how) => (how === undefined ? { toString: () => input, trim: () => input.trim(), split: (...args) => input.split(...args) } : input) },
    readline: { createInterface },
    process,
  };
  globalThis.process = process;
  globalThis.print = log;
  globalThis.readline = readline;
  globalThis.console = { log, info: log, debug: log, error() {}, warn() {} };
  globalThis.require = (name) => {
    const found = modules[String(name).replace(/^node:/, '')];
    if (found === undefined) throw new Error('there is no module ' + name);
    return found;
  };
  globalThis.module = { exports: {} };
  globalThis.exports = globalThis.module.exports;
})
`;
