/**
 * Records the calls of the functions of src/ in their order, in this thread. A load hook puts a call of the recorder at the start of each function
 * with a block as its body, so it must be installed before anything of src/ is imported. An arrow function without braces is not counted, and
 * an async function that goes on after an `await` is not counted again.
 *
 * Sees neither worker threads nor child processes, and does not measure time.
 */
import { readFileSync } from 'node:fs';
import { registerHooks } from 'node:module';
import { join, relative, sep } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { type ESTree, Visitor } from 'vite';
import { parseSource, repository } from './sources.ts';

export interface TracedFunction {
  /** Below src/. */
  readonly path: string;
  /** `function`, `Class.method`, or `=>` if nothing names it. */
  readonly name: string;
}

/** One call of a function whose end is recorded too: the calls from its own to the last one before it returned, or its promise was settled. */
export interface Span {
  readonly of: TracedFunction;
  readonly first: number;
  /** Undefined until it ends. */
  end: number | undefined;
}

interface Recorder {
  call(id: number): void;
  span(id: number): Disposable;
}

declare global {
  var houseRecorder: Recorder | undefined;
}

const SOURCES = join(repository, 'src');
const SOURCES_URL = `${pathToFileURL(SOURCES).href}/`;

export class Trace {
  readonly calls: TracedFunction[] = [];
  readonly spans: Span[] = [];
  readonly #functions: TracedFunction[] = [];
  readonly #withEnd: ReadonlySet<string>;

  /** Installs the hook. `withEnd`: names of functions whose end is recorded too. */
  constructor(withEnd: readonly string[]) {
    this.#withEnd = new Set(withEnd);
    globalThis.houseRecorder = {
      call: (id) => void this.calls.push(this.#functions[id]!),
      span: (id) => this.#span(this.#functions[id]!),
    };
    registerHooks({
      load: (url, context, next) => {
        const [file] = url.split('?', 1) as [string];
        if (!file.startsWith(SOURCES_URL) || !/\.tsx?$/.test(file)) return next(url, context);
        const path = fileURLToPath(file);
        const source = this.#recorded(relative(SOURCES, path).split(sep).join('/'), readFileSync(path, 'utf8'));
        return { format: 'module-typescript', source, shortCircuit: true };
      },
    });
  }

  /** What is called until the promise is settled. */
  async during(once: () => Promise<unknown>): Promise<readonly TracedFunction[]> {
    const first = this.calls.length;
    await once();
    return this.calls.slice(first);
  }

  #span(of: TracedFunction): Disposable {
    const span: Span = { of, first: this.calls.length, end: undefined };
    this.calls.push(of);
    this.spans.push(span);
    return {
      [Symbol.dispose]: () => {
        span.end = this.calls.length;
      },
    };
  }

  #recorded(path: string, text: string): string {
    const pieces: string[] = [];
    let copied = 0;
    for (const { name, start } of blockBodied(path, text)) {
      const id = this.#functions.push({ path, name }) - 1;
      const call = this.#withEnd.has(name) ? `using houseSpan = houseRecorder.span(${id});` : `houseRecorder.call(${id});`;
      pieces.push(text.slice(copied, start), call);
      copied = start;
    }
    return pieces.join('') + text.slice(copied);
  }
}

/** What a stretch of calls amounts to. */
export interface Walk {
  readonly calls: number;
  readonly functions: number;
  readonly files: number;
  readonly folders: number;
  /** How often a call is of another folder than the call before it. */
  readonly changes: number;
  /** The folders in their order, each with how many calls in a row it has. */
  readonly street: readonly (readonly [folder: string, calls: number])[];
  /** Functions that are called more than five times, most often first. */
  readonly repeated: readonly (readonly [name: string, times: number])[];
}

const OFTEN = 5;
/** Folders of rooms: each folder in them counts as one. */
const HOUSES = new Set(['shapes', 'engines', 'places']);

/** The folder that a file below src/ belongs to; `*` for the public surface. */
export function roomOf(path: string): string {
  const [folder, room, ...rest] = path.split('/') as [string, ...string[]];
  if (room === undefined) return '*';
  return HOUSES.has(folder) && rest.length > 0 ? `${folder}/${room}` : folder;
}

export function walkOf(calls: readonly TracedFunction[]): Walk {
  const street: [folder: string, calls: number][] = [];
  for (const { path } of calls) {
    const folder = roomOf(path);
    const last = street.at(-1);
    if (last?.[0] === folder) last[1]++;
    else street.push([folder, 1]);
  }
  const byName = Map.groupBy(calls, ({ path, name }) => `${path} ${name}`);
  const times = [...byName].map(([name, { length }]) => [name, length] as const);
  return {
    calls: calls.length,
    functions: byName.size,
    files: new Set(calls.map(({ path }) => path)).size,
    folders: new Set(street.map(([folder]) => folder)).size,
    changes: Math.max(0, street.length - 1),
    street,
    repeated: times.filter(([, count]) => count > OFTEN).toSorted(([, a], [, b]) => b - a),
  };
}

type FunctionNode = ESTree.Function | ESTree.ArrowFunctionExpression;

/** The functions with a block as their body, in the order of the text; `start`: behind the brace. */
export function blockBodied(path: string, text: string): readonly { readonly name: string; readonly start: number }[] {
  const found: { name: string; start: number }[] = [];
  const names = new Map<unknown, string>();
  const add = (node: FunctionNode): void => {
    const own = 'id' in node ? node.id?.name : undefined;
    if (node.body?.type === 'BlockStatement') found.push({ name: own ?? names.get(node) ?? '=>', start: node.body.start + 1 });
  };
  const nameMembers = ({ id, body }: ESTree.Class): void => {
    for (const member of body.body) {
      if (!('key' in member) || !('value' in member)) continue;
      names.set(member.value, `${id?.name ?? 'class'}.${text.slice(member.key.start, member.key.end)}`);
    }
  };
  new Visitor({
    ClassDeclaration: nameMembers,
    ClassExpression: nameMembers,
    VariableDeclarator: ({ id, init }) => void names.set(init, text.slice(id.start, id.end).split(':', 1)[0]!),
    Property: ({ key, value }) => void names.set(value, text.slice(key.start, key.end)),
    FunctionDeclaration: add,
    FunctionExpression: add,
    ArrowFunctionExpression: add,
  }).visit(parseSource(`src/${path}`, text).program);
  return found.toSorted((a, b) => a.start - b.start);
}
