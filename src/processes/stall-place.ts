/**
 * Whose doing it was that the event loop stood still: the place in a call stack that a person can change.
 *
 * Frames of Node and of packages are passed over, from the innermost outwards, because they do what they were told. Where the first frame
 * left is Trainyard's own, or there is none, nobody is named.
 */

/** As `util.getCallSites` gives it, and as it is sent from thread to thread. */
export interface CallSite {
  readonly functionName: string;
  /** A URL or a path; empty for code without a file. */
  readonly scriptName: string;
  /** From 1. */
  readonly lineNumber: number;
}

export interface StallPlace {
  /** Path of the file. */
  readonly file: string;
  readonly line: number;
  /** Empty where the function has no name. */
  readonly functionName: string;
}

/** `own`: URL of the folder whose code nobody is named for. The innermost frame comes first. */
export function blamed(sites: readonly CallSite[], own: string): StallPlace | undefined {
  const first = sites.find(
    ({ scriptName }) => isFile(scriptName) && (isIn(own, scriptName) || !/[\\/]node_modules[\\/]/.test(scriptName)),
  );
  if (first === undefined || isIn(own, first.scriptName)) return undefined;
  return { file: pathOf(first.scriptName), line: first.lineNumber, functionName: first.functionName };
}

function isFile(name: string): boolean {
  return name.startsWith('file:') || name.startsWith('/') || /^[A-Za-z]:\\/.test(name);
}

function isIn(own: string, name: string): boolean {
  return name.startsWith(own) || name.startsWith(pathOf(own));
}

function pathOf(name: string): string {
  return name.startsWith('file:') ? decodeURIComponent(new URL(name).pathname) : name;
}
