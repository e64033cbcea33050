/**
 * Which pools this process is a child of, from the outermost in: so that a module that opens a pool when it is imported, and is
 * imported by that pool's processes, does not start processes without end.
 *
 * Registered on the global object, so that two copies of the package agree.
 */
const lineageSymbol = Symbol.for('trainyard.process-lineage');

/** Empty in a process that no pool started. */
export function lineage(): readonly string[] {
  return (globalThis as Record<symbol, readonly string[] | undefined>)[lineageSymbol] ?? [];
}

export function setLineage(kinds: readonly string[]): void {
  Object.assign(globalThis, { [lineageSymbol]: kinds });
}
