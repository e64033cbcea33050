/**
 * Values and calls between the Node process that tests and the one under test, as lines of JSON. Data is copied. Functions and class
 * instances stay in place; the other side gets a stand-in that forwards requests and equals only itself. A promise's outcome follows later.
 * Both sides answer requests while they wait for a reply, so callbacks work. A thread reads the lines, because a call must block until its
 * reply. Imports nothing from Trainyard: the sandbox contains only this folder.
 */
import { writeSync } from 'node:fs';
import { MessageChannel, type MessagePort, receiveMessageOnPort, Worker } from 'node:worker_threads';

/** The other process has ended. */
export class Gone extends Error {}

type Wired = string | number | boolean | null | { readonly [tag: string]: unknown };

export interface Request {
  readonly do: string;
  readonly id?: number;
  readonly name?: string;
  readonly key?: string;
  readonly isIterator?: boolean;
  readonly code?: string;
  readonly value?: Wired;
  readonly self?: Wired;
  readonly args?: readonly Wired[];
}

interface Message extends Partial<Request> {
  /** `call` numbers a request; `reply` is the number of the request it answers. */
  readonly call?: number;
  readonly reply?: number;
  /** Id of a promise. */
  readonly settled?: number;
  readonly raised?: Wired;
  readonly changed?: readonly (readonly [place: number, value: Wired])[];
  /** The sender has nothing left to do; the number of messages it had received by then. */
  readonly idle?: number;
}

const MOST_DEPTH = 100;
/** Calls from tests to code, back to callbacks, and so on. */
const MOST_NESTED_CALLS = 100;
const ERRORS = { Error, TypeError, RangeError, SyntaxError, ReferenceError, EvalError, URIError } as const;
const ARRAYS = {
  Int8Array,
  Uint8Array,
  Uint8ClampedArray,
  Int16Array,
  Uint16Array,
  Int32Array,
  Uint32Array,
  Float32Array,
  Float64Array,
  BigInt64Array,
  BigUint64Array,
} as unknown as Readonly<Record<string, new (items: readonly unknown[]) => object>>;

type Codec = readonly [is: (value: unknown) => boolean, parts: (value: never) => unknown, made: (parts: never) => unknown];

/** Data that JSON cannot express, by tag: its test, the value sent instead, and its reconstruction. */
const CODECS: Readonly<Record<string, Codec>> = {
  u: [(value) => value === undefined, () => 1, () => undefined],
  n: [(value) => typeof value === 'number', (value: number) => (Object.is(value, -0) ? '-0' : String(value)), Number],
  B: [(value) => typeof value === 'bigint', String, BigInt],
  m: [(value) => value instanceof Map, (map: Map<unknown, unknown>) => [...map], (pairs: []) => new Map(pairs)],
  s: [(value) => value instanceof Set, (set: Set<unknown>) => [...set], (items: []) => new Set(items)],
  D: [(value) => value instanceof Date, (date: Date) => date.getTime(), (time: number) => new Date(time)],
  R: [
    (value) => value instanceof RegExp,
    ({ source, flags }: RegExp) => [source, flags],
    ([source, flags]: [string, string]) => new RegExp(source, flags),
  ],
  E: [
    (value) => value instanceof Error,
    ({ name, message }: Error) => [String(name), String(message)],
    ([name, message]: [string, string]) => errorNamed(String(name), String(message)),
  ],
  T: [
    (value) => ArrayBuffer.isView(value) && !(value instanceof DataView),
    (array: Uint8Array) => [Buffer.isBuffer(array) ? 'Uint8Array' : array.constructor.name, Array.from(array)],
    ([name, items]: [string, []]) => new ARRAYS[name]!(items),
  ],
};

type AnyFunction = (...args: unknown[]) => unknown;
type AnyClass = new (...args: unknown[]) => unknown;
type Target = AnyFunction & AnyClass & Record<PropertyKey, unknown>;

export class Peer {
  isGone = false;
  readonly #prefix: string;
  readonly #answer: (request: Request) => Wired;
  readonly #lines: MessagePort;
  readonly #arrived = new Int32Array(new SharedArrayBuffer(4));
  readonly #objects = new Map<number, unknown>();
  readonly #ids = new Map<unknown, number>();
  readonly #standIns = new Map<number, object>();
  readonly #idOfStandIn = new WeakMap<object, number>();
  readonly #promises = new Map<number, PromiseWithResolvers<unknown>>();
  readonly #replies = new Map<number, Message>();
  #calls = 0;
  #nested = 0;
  #sent = 0;
  #received = 0;
  #idleAt = -1;

  /** `answer` handles all requests but calls of functions that this side passed. */
  constructor(prefix: string, answer: (request: Request) => Wired) {
    this.#prefix = prefix;
    this.#answer = answer;
    const { port1, port2 } = new MessageChannel();
    const reader = { port: port2, arrived: this.#arrived };
    new Worker(`(${readLines})()`, { eval: true, workerData: reader, transferList: [port2] }).unref();
    this.#lines = port1;
    // Waits for the thread, so that its start does not count as the code's time.
    Atomics.wait(this.#arrived, 0, 0);
  }

  /** The next line, or '' at the end. Blocks. */
  line(): string {
    for (;;) {
      const seen = Atomics.load(this.#arrived, 0);
      const found = receiveMessageOnPort(this.#lines);
      if (found !== undefined) return found.message as string;
      Atomics.wait(this.#arrived, 0, seen);
    }
  }

  /**
   * Answers requests from the event loop from now on. The tester passes `onStuck`, called if each side waits for the other with nothing
   * left to do. The subject reports when it is idle, then blocks for the next request.
   */
  serve(onStuck?: () => void): void {
    this.#lines.on('message', (line: string) => this.#take(line)).unref();
    process.on('beforeExit', () => {
      if (this.isGone && onStuck === undefined) return;
      if (onStuck === undefined) this.#send({ idle: this.#received });
      if (onStuck !== undefined && (this.isGone || this.#idleAt === this.#sent)) onStuck();
      else this.#take(this.line());
      // Keeps Node from exiting.
      setImmediate(() => {});
    });
  }

  ask(request: Request, originals: readonly unknown[] = []): unknown {
    const call = ++this.#calls;
    if (!this.isGone) this.#send({ ...request, call });
    while (!this.#replies.has(call)) {
      if (this.isGone) throw new Gone('the code ended its process');
      this.#take(this.line());
    }
    const reply = this.#replies.get(call)!;
    this.#replies.delete(call);
    // Numeric only: `originals['__proto__']` is Array.prototype.
    for (const [place, changed] of reply.changed ?? []) putBack(originals.at(Number(place)), this.decode(changed));
    if (reply.raised !== undefined) throw this.decode(reply.raised);
    return this.decode(reply.value);
  }

  isStandIn(value: unknown): value is object {
    return this.#idOfStandIn.has(value as object);
  }

  own(standIn: object): unknown {
    return this.ask({ do: 'own', id: this.#idOfStandIn.get(standIn)! });
  }

  #send(message: Message): void {
    if (message.idle === undefined) this.#sent += 1;
    say(`${this.#prefix}${JSON.stringify(message)}`);
  }

  #take(line: string): void {
    if (line === '') {
      this.isGone = true;
      for (const { reject } of this.#promises.values()) reject(new Gone('the code ended its process'));
      return;
    }
    const message = JSON.parse(line) as Message;
    if (message.idle !== undefined) {
      this.#idleAt = message.idle;
      return;
    }
    this.#received += 1;
    if (message.reply !== undefined) this.#replies.set(message.reply, message);
    else if (message.settled !== undefined) {
      const promise = this.#promises.get(message.settled);
      if (message.raised === undefined) promise?.resolve(this.decode(message.value));
      else promise?.reject(this.decode(message.raised));
    } else if (message.call !== undefined) this.#send({ ...this.#served(message as Message & Request), reply: message.call });
  }

  #served(request: Request): Message {
    this.#nested += 1;
    const served = this.#attempted(() => {
      if (this.#nested > MOST_NESTED_CALLS) throw new RangeError('calls are nested too deeply');
      const isCall = request.do === 'call' || request.do === 'new';
      return isCall ? this.#called(request) : { value: this.#answer(request) };
    });
    this.#nested -= 1;
    return served;
  }

  /** Encodes what `make` throws, which may itself throw when inspected. */
  #attempted(make: () => Message): Message {
    try {
      return make();
    } catch (error) {
      try {
        return { raised: this.encode(error) };
      } catch {
        return { raised: { E: ['Error', ''] } };
      }
    }
  }

  /** Also returns the arguments that the call changed. */
  #called({ do: how, id, self, args: given = [] }: Request): Message {
    const target = this.object(id) as Target;
    const args = given.map((arg) => this.decode(arg));
    const value = this.encode(how === 'new' ? new target(...args) : Reflect.apply(target, this.decode(self), args));
    const changed = args.flatMap((arg, place) => {
      if (typeof arg !== 'object' || arg === null || arg instanceof Promise || this.isStandIn(arg)) return [];
      const after = this.encode(arg);
      return JSON.stringify(after) === JSON.stringify(given[place]) ? [] : [[place, after] as const];
    });
    return { value, changed };
  }

  object(id: number | undefined): unknown {
    return this.#objects.get(id!);
  }

  reference(value: unknown): { readonly o: readonly [id: number, isFunction: boolean] } {
    const id = this.#ids.get(value) ?? this.#ids.size + 1;
    this.#ids.set(value, id);
    this.#objects.set(id, value);
    return { o: [id, typeof value === 'function'] };
  }

  encode(value: unknown, depth = 0): Wired {
    if (depth > MOST_DEPTH) throw new RangeError('nested too deeply');
    if (value === null || typeof value === 'boolean' || typeof value === 'string') return value;
    if (typeof value === 'number' && Number.isFinite(value) && !Object.is(value, -0)) return value;
    if (this.isStandIn(value)) return { back: this.#idOfStandIn.get(value) };
    if (typeof value === 'function' || typeof value === 'symbol') return this.reference(value);
    const inner = (item: unknown): Wired => this.encode(item, depth + 1);
    if (Array.isArray(value)) return { l: Array.from(value, inner) };
    if (value instanceof Promise) return this.#promised(value);
    const known = Object.entries(CODECS).find(([, [is]]) => is(value));
    if (known !== undefined) return { [known[0]]: inner(known[1][1](value as never)) };
    const prototype: unknown = Object.getPrototypeOf(value);
    const entries = Object.entries(value as object);
    const isPlain = prototype === Object.prototype || prototype === null;
    if (!isPlain || entries.some(([, item]) => typeof item === 'function')) return this.reference(value);
    return { d: entries.map(([key, item]) => [key, inner(item)]) };
  }

  #promised(promise: Promise<unknown>): Wired {
    const isKnown = this.#ids.has(promise);
    const [id] = this.reference(promise).o;
    const settle = (make: () => Message): void => this.#send({ settled: id, ...this.#attempted(make) });
    const rethrow = (error: unknown): never => {
      throw error;
    };
    if (!isKnown) {
      promise.then(
        (value) => settle(() => ({ value: this.encode(value) })),
        (error: unknown) => settle(() => rethrow(error)),
      );
    }
    return { P: id };
  }

  decode(data: unknown): unknown {
    if (typeof data !== 'object' || data === null) return data;
    const [tag = '', inner] = Object.entries(data)[0] ?? [];
    if (Object.hasOwn(CODECS, tag)) return CODECS[tag]![2](this.decode(inner) as never);
    if (tag === 'l') return (inner as unknown[]).map((item) => this.decode(item));
    if (tag === 'd') {
      return Object.fromEntries((inner as [string, unknown][]).map(([key, item]) => [String(key), this.decode(item)]));
    }
    if (tag === 'P') return this.#promise(inner as number);
    if (tag === 'back') return this.object(inner as number);
    if (tag === 'o') return this.#standIn((inner as [number])[0], (inner as [number, unknown])[1] === true);
    throw new TypeError('not a value');
  }

  #promise(id: number): Promise<unknown> {
    const known = this.#promises.get(id) ?? Promise.withResolvers<unknown>();
    this.#promises.set(id, known);
    return known.promise;
  }

  #standIn(id: number, isFunction: boolean): object {
    const known = this.#standIns.get(id);
    if (known !== undefined) return known;
    const call = (how: string, args: unknown[], self?: unknown): unknown =>
      this.ask({ do: how, id, self: this.encode(self), args: args.map((arg) => this.encode(arg)) }, args);
    const asked = (how: string, key: PropertyKey, more: Partial<Request> = {}): unknown => {
      if (typeof key === 'symbol' && key !== Symbol.iterator) return undefined;
      return this.ask({ do: how, id, ...(typeof key === 'symbol' ? { isIterator: true } : { key: String(key) }), ...more });
    };
    const made: object = new Proxy(isFunction ? callable() : {}, {
      apply: (_, self: unknown, args: unknown[]) => call('call', args, this.isStandIn(self) ? self : undefined),
      construct: (_, args: unknown[]) => call('new', args) as object,
      get: (_, key) => asked('get', key),
      set: (_, key, value: unknown) => {
        asked('set', key, { value: this.encode(value) });
        return true;
      },
      has: (_, key) => asked('has', key) === true,
      getPrototypeOf: () => this.ask({ do: 'proto', id }) as object | null,
    });
    this.#standIns.set(id, made);
    this.#idOfStandIn.set(made, id);
    return made;
  }
}

/** Answers the tester's requests about the subject's objects. The tester answers none: it can be called back, never inspected. */
export function objectAnswer(peer: Peer, { do: what, id, key, isIterator, value }: Request): Wired {
  const target = peer.object(id) as Target;
  const name = isIterator === true ? Symbol.iterator : key!;
  if (what === 'get') return name === 'prototype' ? peer.reference(target[name]) : peer.encode(target[name]);
  if (what === 'has') return name in target;
  if (what === 'own') return peer.encode(Object.assign({}, target));
  if (what === 'set') {
    target[name] = peer.decode(value);
    return null;
  }
  if (what !== 'proto') throw new TypeError(`there is no ${what}`);
  const prototype: unknown = Object.getPrototypeOf(target);
  return prototype === null ? null : peer.reference(prototype);
}

export function say(line: string): void {
  let left = Buffer.from(`${line}\n`);
  while (left.length > 0) left = left.subarray(writeSync(1, left));
}

/** A function declaration: unlike arrows and methods, it also supports `new`. */
function callable(): object {
  function standIn() {}
  return standIn;
}

function putBack(original: unknown, changed: unknown): void {
  if (Array.isArray(original)) original.splice(0, original.length, ...(changed as unknown[]));
  else if (original instanceof Map) {
    original.clear();
    for (const [key, item] of changed as Map<unknown, unknown>) original.set(key, item);
  } else if (original instanceof Set) {
    original.clear();
    for (const item of changed as Set<unknown>) original.add(item);
  } else if (typeof original === 'object' && original !== null) {
    for (const key of Object.keys(original)) delete (original as Record<string, unknown>)[key];
    Object.assign(original, changed);
  }
}

function errorNamed(name: string, message: string): Error {
  const known = Object.hasOwn(ERRORS, name) ? ERRORS[name as keyof typeof ERRORS] : undefined;
  return known === undefined ? Object.assign(new Error(message), { name }) : new known(message);
}

/**
 * Runs in the reader thread, from this function's source: loading the file again would take as long as starting Node. Never blocks, because
 * Node waits for its threads when the code ends its process.
 */
function readLines(): void {
  const { Socket } = process.getBuiltinModule('node:net');
  const { port, arrived } = process.getBuiltinModule('node:worker_threads').workerData as {
    readonly port: MessagePort;
    readonly arrived: Int32Array;
  };
  let parts: string[] = [];
  const post = (...lines: readonly string[]): void => {
    for (const line of lines) port.postMessage(line);
    Atomics.add(arrived, 0, 1);
    Atomics.notify(arrived, 0);
  };
  const read = (chunk: string): void => {
    const [first = '', ...rest] = chunk.split('\n');
    parts.push(first);
    if (rest.length === 0) return;
    post(parts.join(''), ...rest.slice(0, -1));
    parts = [rest.at(-1)!];
  };
  new Socket({ fd: 0, writable: false })
    .setEncoding('utf8')
    .on('data', read)
    .on('close', () => post(''))
    .on('error', () => {});
  post();
}
