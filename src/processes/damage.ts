/**
 * What a call left broken in its process: JavaScript's built-ins that are no longer what they were, and what
 * still runs: timers, threads, processes. Both would reach into later calls of the same process.
 *
 * Functions of constructors and of `Math`, `JSON` and `Reflect` are made read-only: nothing has to be looked at. Methods of prototypes cannot
 * be, because then objects could not have methods of the same name; they are looked at. Not what only modules can be reached by (`node:fs`),
 * not globals (programs add their own), not `Error` itself (libraries set its stack limit all the time). It finds mistakes, and generated
 * code that a grader evaluated beside itself; code that is out to hide from it can.
 */

/** Kept from whoever replaces them. */
const { ownKeys, defineProperty, getOwnPropertyDescriptor, getPrototypeOf } = Reflect;
const { is } = Object;
const asText = String;
const activeResources = process.getActiveResourcesInfo.bind(process);

/** As Node calls what runs. */
const isRunning = (kind: string): boolean =>
  kind === 'Timeout' || kind === 'Immediate' || kind === 'ProcessWrap' || kind === 'MessagePort' || kind === 'Worker';

const CONSTRUCTORS = [
  ...[Object, Function, Array, Number, Boolean, String, Symbol, BigInt, Date, RegExp, Promise, Map, Set, WeakMap, WeakSet],
  ...[ArrayBuffer, Uint8Array, Float64Array, Buffer, URL],
] as const;
const NAMESPACES = [JSON, Math, Reflect];
const PROTOTYPES = [
  ...CONSTRUCTORS.map(({ name, prototype }) => [`${name}.prototype`, prototype] as const),
  ['Error.prototype', Error.prototype] as const,
  ['TypedArray.prototype', getPrototypeOf(Uint8Array.prototype)!] as const,
  ['Array Iterator', getPrototypeOf([].values())!] as const,
];

interface Kept {
  readonly name: string;
  readonly owner: Readonly<Record<PropertyKey, unknown>>;
  readonly keys: readonly PropertyKey[];
  readonly properties: readonly (PropertyDescriptor | undefined)[];
  /** Undefined for what is computed. */
  readonly values: readonly unknown[];
}

interface DamageWatch {
  /** A method that is not as it was, by name. Takes some 10 µs. */
  method(): string | undefined;
  /** The same, also of properties that are computed or new. Takes some 60 µs. */
  builtIn(): string | undefined;
  /** More that runs than there was. What does not keep the process alive (`unref`) is not seen. */
  hasLeftovers(): boolean;
}

/** As they are now is as they should be: libraries may have put in what is missing. */
export function watchDamage(): DamageWatch {
  for (const owner of [...CONSTRUCTORS, ...NAMESPACES]) lockFunctions(owner);
  const kept = PROTOTYPES.map(([name, owner]) => keptOf(name, owner));
  const before = running();
  return { method: () => replaced(kept), builtIn: () => changed(kept), hasLeftovers: () => running() > before };
}

/** Only those that are there: what a library finds missing it may still put in. */
function lockFunctions(owner: object): void {
  for (const key of ownKeys(owner)) {
    const property = getOwnPropertyDescriptor(owner, key);
    if (typeof property?.value !== 'function' || property.configurable === false) continue;
    defineProperty(owner, key, { ...property, writable: false, configurable: false });
  }
}

/** Plain loops, as below. */
function replaced(all: readonly Kept[]): string | undefined {
  for (let at = 0; at < all.length; at += 1) {
    const { name, owner, keys, values } = all[at]!;
    for (let index = 0; index < keys.length; index += 1) {
      const then = values[index];
      if (then !== undefined && !is(owner[keys[index]!], then)) return `${name}.${asText(keys[index])}`;
    }
  }
  return undefined;
}

function keptOf(name: string, owner: object): Kept {
  const keys = ownKeys(owner);
  const properties = keys.map((key) => getOwnPropertyDescriptor(owner, key));
  const values = properties.map((property) => property?.value as unknown);
  return { name, owner: owner as Kept['owner'], keys, properties, values };
}

/** Plain loops: what else there is to go through a list may be what was changed. */
function changed(all: readonly Kept[]): string | undefined {
  for (let at = 0; at < all.length; at += 1) {
    const { name, owner, keys, properties } = all[at]!;
    for (let index = 0; index < keys.length; index += 1) {
      const then = properties[index]!;
      const now = getOwnPropertyDescriptor(owner, keys[index]!);
      if (now === undefined || !is(now.value, then.value) || now.get !== then.get || now.set !== then.set) {
        return `${name}.${asText(keys[index])}`;
      }
    }
    const keysNow = ownKeys(owner);
    if (keysNow.length !== keys.length) return `${name}.${asText(keysNow[keysNow.length - 1])}`;
  }
  return undefined;
}

function running(): number {
  const resources = activeResources();
  let count = 0;
  for (let at = 0; at < resources.length; at += 1) if (isRunning(resources[at]!)) count += 1;
  return count;
}
