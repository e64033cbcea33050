/**
 * The process that runs the code under test. It loads the code, calls the function with each list of arguments, and answers with what came
 * back, as JSON: a line for a line. It knows neither what is expected nor what becomes of its answers, so nothing in it needs protection. It
 * answers {} where the call failed or returned something that is not data. subject.py does the same for Python. Imports nothing from
 * Trainyard: the sandbox contains only this file.
 */
import { readSync, writeSync } from 'node:fs';
import { createRequire } from 'node:module';
import { Readable, Writable } from 'node:stream';
import { constants, runInThisContext } from 'node:vm';

// Taken before the code may replace them: its own mistakes are enough.
const { parse, stringify } = JSON;
const { exit } = process;

let giveUp = () => {};

async function main(): Promise<void> {
  const nowhere = new Writable({ write: (_chunk, _encoding, done) => done() });
  for (const name of ['stdout', 'stderr']) Object.defineProperty(process, name, { value: nowhere });
  Object.defineProperty(process, 'stdin', { value: Readable.from([]) });
  process.on('unhandledRejection', () => {});
  // Nothing is left to run, so what is waited for never comes. The immediate keeps Node from exiting.
  process.on('beforeExit', () => {
    giveUp();
    setImmediate(() => {});
  });
  say('ready');
  const { code, entry } = parse(nextLine()) as { readonly code: string; readonly entry: string };
  const module = { exports: {} };
  Object.assign(globalThis, { module, exports: module.exports, require: createRequire(`${process.cwd()}/solution.js`) });
  let loaded = false;
  let callee: unknown;
  try {
    script(asScript(code));
    loaded = true;
    callee = named(entry, module.exports);
  } catch {}
  say(stringify({ loaded, defined: callee !== undefined }));
  for (;;) say(await answerTo(nextLine(), callee as (...args: unknown[]) => unknown));
}

const script = (source: string) =>
  runInThisContext(source, {
    filename: `${process.cwd()}/solution.js`,
    importModuleDynamically: constants.USE_MAIN_CONTEXT_DEFAULT_LOADER,
  });

/** Declarations are found by name, and exports too: by their name, or if there is nothing else. */
function named(name: string, given: unknown): unknown {
  try {
    return runInThisContext(`(${name})`);
  } catch {
    if (typeof given === 'function' && (given.name === name || given.name === '')) return given;
    return (given as Record<string, unknown> | null | undefined)?.[name];
  }
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

async function answerTo(line: string, callee: (...args: unknown[]) => unknown): Promise<string> {
  const { promise: stuck, reject } = Promise.withResolvers<never>();
  giveUp = reject;
  try {
    return stringify({ value: plain(await Promise.race([stuck, callee(...(parse(line) as unknown[]))])) });
  } catch {
    return '{}';
  }
}

/** Throws for what is no data: functions, sets, dates, numbers that are none. An object of a class is its own properties. */
function plain(value: unknown): unknown {
  if (value === null || typeof value === 'string' || typeof value === 'boolean' || Number.isFinite(value)) return value;
  if (Array.isArray(value)) return Array.from(value, plain);
  if (Object.prototype.toString.call(value) !== '[object Object]') throw new TypeError('no data');
  return Object.fromEntries(Object.entries(value as object).map(([key, item]) => [key, plain(item)]));
}

/** Blocks. The next line comes only after the answer to this one, so nothing follows its end. */
function nextLine(): string {
  const chunks: Buffer[] = [];
  do {
    const chunk = Buffer.alloc(2 ** 16);
    const length = readSync(0, chunk);
    if (length === 0) exit();
    chunks.push(chunk.subarray(0, length));
  } while (chunks.at(-1)!.at(-1) !== 10);
  return Buffer.concat(chunks).toString();
}

function say(line: string): void {
  let left = Buffer.from(`${line}\n`);
  while (left.length > 0) left = left.subarray(writeSync(1, left));
}

void main();
