/**
 * The error model: one class, one table of codes, one wrapper. Every failure is attributed to the boundary it crossed; `boundary()` wraps
 * foreign errors once and lets typed errors through. A message says what was found, `hint` what to do. What each code means stands in
 * error-codes.ts.
 */
import { type Boundary, ERROR_CODES, type ErrorCode } from './error-codes.ts';
import type { Json } from './types.ts';

interface ErrorOptions {
  readonly hint?: string | undefined;
  readonly param?: string | undefined;
  readonly details?: Json | undefined;
  readonly cause?: unknown;
}

export class TrainyardError extends Error {
  override readonly name = 'TrainyardError';
  readonly code: ErrorCode;
  readonly hint: string | undefined;
  /** The request field at fault. */
  readonly param: string | undefined;
  /** Machine-readable details for the program that receives the error. `rollouts`: those stored whose records are at fault. */
  readonly details: Json | undefined;

  /** `more`: the hint, alone or with what else there is to say. */
  constructor(code: ErrorCode, message: string, more: string | ErrorOptions = {}) {
    const { hint, param, details, cause } = typeof more === 'string' ? ({ hint: more } as ErrorOptions) : more;
    super(message, cause === undefined ? undefined : { cause });
    this.code = code;
    this.hint = hint;
    this.param = param;
    this.details = details;
  }

  get boundary(): Boundary {
    return ERROR_CODES[this.code].boundary;
  }
}

/** Runs `fn` and wraps foreign errors in a TrainyardError with this code; `what` says what was being done. */
export async function boundary<T>(code: ErrorCode, what: string, fn: () => T | Promise<T>, hint?: string): Promise<T> {
  try {
    return await fn();
  } catch (cause) {
    if (cause instanceof TrainyardError) throw cause;
    throw new TrainyardError(code, `${what}: ${messageOf(cause)}`, { cause, hint });
  }
}

export function messageOf(thrown: unknown): string {
  try {
    return String(thrown instanceof Error ? thrown.message : thrown);
  } catch {
    return 'something that cannot be shown as text';
  }
}

/** Undefined if it throws: for what some systems lack, or what may be gone by now. */
export function tried<T>(attempt: () => T): T | undefined {
  try {
    return attempt();
  } catch {
    return undefined;
  }
}

// Suggestions for misspelt names. They need nothing of Node, so the page of `trainyard view` has them too.

/** The maximum number of edits that counts as a typo. */
const MOST_SLIPS = 2;

/** The closest known name, ignoring case; undefined if none is close. Short names must be closer: two edits could produce any of them. */
export function nearName(name: string, known: readonly string[]): string | undefined {
  const given = name.toLowerCase();
  const near = known
    .map((one) => ({ one, slips: slips(one.toLowerCase(), given) }))
    .filter(({ one, slips }) => slips <= Math.min(MOST_SLIPS, Math.floor(one.length / 2)))
    .toSorted((a, b) => a.slips - b.slips);
  return near[0]?.one;
}

/** Edit distance with transpositions. Returns `MOST_SLIPS + 1` at once if the lengths differ by more than `MOST_SLIPS`. */
function slips(a: string, b: string): number {
  if (Math.abs(a.length - b.length) > MOST_SLIPS) return MOST_SLIPS + 1;
  let before: number[] = [];
  let row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      const same = a[i - 1] === b[j - 1] ? 0 : 1;
      next[j] = Math.min(row[j]! + 1, next[j - 1]! + 1, row[j - 1]! + same);
      const isSwap = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      if (isSwap) next[j] = Math.min(next[j]!, before[j - 2]! + 1);
    }
    [before, row] = [row, next];
  }
  return row[b.length]!;
}
