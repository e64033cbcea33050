/** What can be known of a class before it is used. */

/** Whether a class has a method of its own below the base, and does not call itself abstract. */
export function isConcrete(Class: object, method: string, base: object): boolean {
  if (Class === base || (Object.hasOwn(Class, 'abstract') && (Class as { abstract?: unknown }).abstract === true)) return false;
  return typeof methodOf(Class, method) === 'function' && methodOf(Class, method) !== methodOf(base, method);
}

/** `AsyncFunction`, `Function`, … */
export function methodKind(Class: object, method: string): string {
  return Object.prototype.toString.call(methodOf(Class, method)).slice(8, -1);
}

function methodOf(Class: object, method: string): unknown {
  return (Class as { readonly prototype?: Readonly<Record<string, unknown>> }).prototype?.[method];
}
