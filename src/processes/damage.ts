/**
 * What a call left broken in its process: JavaScript's built-ins that are no longer what they were, and what
 * still runs: timers, threads, processes. Both would reach into later calls of the same process.
 *
 * What is looked at: every own property of the constructors and prototypes below. Not what only modules can be reached by (`node:fs`), not
 * globals (programs add their own), not `Error` itself (libraries set its stack limit all the time). It finds mistakes, and generated code
 * that a grader evaluated beside itself; code that is out to hide from it can.
 */

/** Kept from whoever replaces them. */
const { ownKeys, getOwnPropertyDescriptor, getPrototypeOf } = Reflect;
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
const OTHERS = [JSON, Math, Reflect, Error.prototype, getPrototypeOf(Uint8Array.prototype), getPrototypeOf([].values())];

interface Kept {
  readonly name: string;
  readonly owner: object;
  readonly keys: readonly PropertyKey[];
  readonly properties: readonly (PropertyDescriptor | undefined)[];
}

export interface DamageWatch {
  /** A built-in that is not as it was, by name. Takes some 60 µs. */
  builtIn(): string | undefined;
  /** More that runs than there was. What does not keep the process alive (`unref`) is not seen. */
  hasLeftovers(): boolean;
}

/** As they are now is as they should be: libraries may have put in what is missing. */
export function watchDamage(): DamageWatch {
  const kept = [
    ...CONSTRUCTORS.flatMap((owner) => [keptOf(owner.name, owner), keptOf(`${owner.name}.prototype`, owner.prototype)]),
    ...OTHERS.map((owner) => keptOf(nameOf(owner!), owner!)),
  ];
  const before = running();
  return { builtIn: () => changed(kept), hasLeftovers: () => running() > before };
}

function keptOf(name: string, owner: object): Kept {
  const keys = ownKeys(owner);
  return { name, owner, keys, properties: keys.map((key) => getOwnPropertyDescriptor(owner, key)) };
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

function nameOf(owner: object): string {
  const tag = (owner as { readonly [Symbol.toStringTag]?: string })[Symbol.toStringTag];
  return tag ?? (owner === Error.prototype ? 'Error.prototype' : 'TypedArray.prototype');
}

function running(): number {
  const resources = activeResources();
  let count = 0;
  for (let at = 0; at < resources.length; at += 1) if (isRunning(resources[at]!)) count += 1;
  return count;
}
