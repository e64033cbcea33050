/** Copies: of a config for each rollout, of data of any kind, of an object without what is undefined. */

/**
 * A config as each rollout gets it: data is copied, so that what one rollout changes no other sees; functions, tools, clients and models are
 * shared, because they are not data and may cost a lot. Plain objects and arrays are copied, however deep; of an instance at the top its own
 * fields are. Everything else is shared.
 */
export function ownCopy<T>(config: T): T {
  if (typeof config !== 'object' || config === null) return config;
  const isInstance = !Array.isArray(config) && !isPlain(config) && !isBuiltIn(config);
  return (isInstance ? withOwnFields(config, new Map()) : copied(config, new Map())) as T;
}

function copied(value: unknown, copies: Map<object, object>): unknown {
  if (typeof value !== 'object' || value === null) return value;
  const known = copies.get(value);
  if (known !== undefined) return known;
  if (Array.isArray(value)) {
    const list: unknown[] = [];
    copies.set(value, list);
    for (const item of value) list.push(copied(item, copies));
    return list;
  }
  if (isBuiltIn(value)) return cloneOrShare(value);
  return isPlain(value) ? withOwnFields(value, copies) : value;
}

function withOwnFields(value: object, copies: Map<object, object>): object {
  const own = Object.create(Object.getPrototypeOf(value)) as object;
  copies.set(value, own);
  for (const [name, item] of Object.entries(value)) {
    // Defined: a field by the name of `__proto__` stays a field.
    Object.defineProperty(own, name, { value: copied(item, copies), enumerable: true, writable: true, configurable: true });
  }
  return own;
}

/** Data that is not in fields. */
function isBuiltIn(value: object): boolean {
  return value instanceof Date || value instanceof Map || value instanceof Set;
}

function cloneOrShare(value: object): object {
  try {
    return structuredClone(value);
  } catch {
    return value;
  }
}

export function isPlain(value: object): boolean {
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === null || prototype === Object.prototype;
}

class NotPlain extends Error {}

/**
 * `structuredClone` for what is nearly always plain data: the same copy, several times faster. Objects and lists as JSON has them are copied
 * here, one that stands in several places once. Anything else, anywhere inside, leaves the whole value to `structuredClone`: dates, maps,
 * bytes, instances, and what cannot be copied at all. Throws what `structuredClone` throws.
 */
export function plainCopy<T>(value: T): T {
  try {
    return plainly(value, new Map()) as T;
  } catch (thrown) {
    if (!(thrown instanceof NotPlain)) throw thrown;
    return structuredClone(value);
  }
}

function plainly(value: unknown, copies: Map<object, unknown>): unknown {
  if (typeof value === 'function' || typeof value === 'symbol') throw new NotPlain();
  if (typeof value !== 'object' || value === null) return value;
  const known = copies.get(value);
  if (known !== undefined) return known;
  const prototype: unknown = Object.getPrototypeOf(value);
  if (prototype === Array.prototype) {
    const items = value as readonly unknown[];
    // Lists with gaps, or with names beside their places.
    if (Object.keys(items).length !== items.length) throw new NotPlain();
    const list: unknown[] = [];
    copies.set(value, list);
    for (const item of items) list.push(plainly(item, copies));
    return list;
  }
  if (prototype !== Object.prototype) throw new NotPlain();
  const copy: Record<string, unknown> = {};
  copies.set(value, copy);
  for (const key of Object.keys(value)) {
    // Assigned, it would set the prototype.
    if (key === '__proto__') throw new NotPlain();
    copy[key] = plainly((value as Readonly<Record<string, unknown>>)[key], copies);
  }
  return copy;
}

/** Without the fields that are undefined, for types that tell absent from undefined. */
export function defined<T extends object>(fields: T): { [K in keyof T]?: Exclude<T[K], undefined> } {
  const given = Object.entries(fields).filter(([, value]) => value !== undefined);
  return Object.fromEntries(given) as { [K in keyof T]?: Exclude<T[K], undefined> };
}
