/** What can be known of a class or a function before it is used. */

/** Whether a class has a method of its own below the base, and does not call itself abstract. */
export function isConcrete(Class: object, method: string, base?: object): boolean {
  if (Class === base || saysAbstract(Class)) return false;
  const own = methodOf(Class, method);
  return typeof own === 'function' && own !== (base && methodOf(base, method));
}

/** `static abstract = true`, of its own: a subclass does not inherit it. */
export function saysAbstract(Class: object): boolean {
  return Object.hasOwn(Class, 'abstract') && Reflect.get(Class, 'abstract') === true;
}

/** `AsyncFunction`, `Function`, `Undefined`, … */
export function methodKind(Class: object, method: string): string {
  return kindOf(methodOf(Class, method));
}

export function kindOf(value: unknown): string {
  return Object.prototype.toString.call(value).slice(8, -1);
}

/** Whether a function must be called with `new`. */
export function isClass(value: object): boolean {
  return /^class\b/.test(Function.prototype.toString.call(value));
}

function methodOf(Class: object, method: string): unknown {
  return (Class as { readonly prototype?: Readonly<Record<string, unknown>> }).prototype?.[method];
}
