/**
 * The error model: one class, one table of codes, one wrapper. Every failure is attributed to the boundary it crossed; `boundary()` wraps
 * foreign errors once and lets typed errors through. A message says what was found, `hint` what to do. A test keeps the table equal to
 * docs/reference/errors.md.
 */
import type { Json } from './types.ts';

export type Boundary = 'usage' | 'model' | 'workflow' | 'grader' | 'gateway' | 'engine' | 'trainer' | 'store' | 'run';

interface CodeEntry {
  readonly boundary: Boundary;
  /** Exit code of a command that this error ends: 2 if the user can fix the call or its files, else 1. */
  readonly exit: 1 | 2;
  readonly summary: string;
}

export const ERROR_CODES = {
  USAGE: { boundary: 'usage', exit: 2, summary: 'A flag or argument is unknown, missing or malformed.' },
  FILE_NOT_FOUND: { boundary: 'usage', exit: 2, summary: 'A file or folder named on the command line does not exist.' },
  DATASET_INVALID: { boundary: 'usage', exit: 2, summary: 'A row is not a valid task, or a source of tasks cannot be read.' },
  ENTRY_UNLOADABLE: { boundary: 'usage', exit: 2, summary: 'The entry file cannot be imported by Node.' },
  WORKFLOW_NOT_FOUND: { boundary: 'usage', exit: 2, summary: 'The entry exports no workflow.' },
  WORKFLOW_AMBIGUOUS: { boundary: 'usage', exit: 2, summary: 'The entry exports more than one workflow or grader.' },
  WORKFLOW_INVALID: { boundary: 'usage', exit: 2, summary: 'A workflow’s definition is malformed.' },
  WORKFLOW_NOT_ASYNC: { boundary: 'usage', exit: 2, summary: 'A workflow is not an async function.' },
  WORKFLOW_INIT_FAILED: { boundary: 'usage', exit: 2, summary: 'A workflow cannot be made, or its setup failed.' },
  CONFIG_INVALID: { boundary: 'usage', exit: 2, summary: 'A workflow’s or grader’s config is malformed, or there are several.' },
  GRADER_INVALID: { boundary: 'usage', exit: 2, summary: 'A grader’s definition is malformed.' },
  GRADER_INIT_FAILED: { boundary: 'usage', exit: 2, summary: 'A grader cannot be made, or lacks what it needs.' },
  GRADER_NOT_FOUND: { boundary: 'usage', exit: 2, summary: 'The entry exports no grader.' },
  RUN_LOCKED: { boundary: 'run', exit: 1, summary: 'Another process is using the run directory.' },
  RUN_NOT_EMPTY: { boundary: 'usage', exit: 2, summary: 'The run directory already holds a run.' },
  WORKER_MISMATCH: { boundary: 'usage', exit: 2, summary: 'A worker’s code or release is not that of the run.' },
  RESUME_IMPOSSIBLE: { boundary: 'usage', exit: 2, summary: 'A run cannot be taken up again as it was asked.' },
  MODEL_INVALID: { boundary: 'model', exit: 2, summary: 'A model folder is incomplete or not of a supported architecture.' },
  DOWNLOAD_FAILED: { boundary: 'model', exit: 1, summary: 'A model could not be downloaded, or is not what the hub lists.' },
  SAFETENSORS_INVALID: { boundary: 'model', exit: 1, summary: 'A safetensors file is truncated or malformed.' },
  CHECKPOINT_MISMATCH: { boundary: 'model', exit: 1, summary: 'A checkpoint belongs to another model.' },
  TOKENIZER_INVALID: { boundary: 'model', exit: 2, summary: 'tokenizer.json or the chat template is missing or unusable.' },
  RESULT_REFUSED: { boundary: 'workflow', exit: 1, summary: 'Workers returned results of the rollout that cannot be used.' },
  WORKER_LOST: { boundary: 'workflow', exit: 1, summary: 'The workers of a rollout were lost in every attempt.' },
  WORKFLOW_FAILED: { boundary: 'workflow', exit: 1, summary: 'The workflow threw.' },
  WORKFLOW_BAD_RESULT: { boundary: 'workflow', exit: 1, summary: 'The workflow returned something that is not a result.' },
  REWARD_MISSING: { boundary: 'workflow', exit: 2, summary: 'The workflow gave no reward, and there is no grader.' },
  NO_ROLLOUT: { boundary: 'workflow', exit: 1, summary: 'Something that needs a rollout was used outside of one.' },
  DEFAULT_MODEL_FAILED: { boundary: 'workflow', exit: 1, summary: 'The model that plays an untrained role failed.' },
  FAILURE_BUDGET: { boundary: 'workflow', exit: 1, summary: 'Too many rollouts failed; the run stopped instead of spinning.' },
  POLICY_BYPASSED: { boundary: 'workflow', exit: 1, summary: 'No rollout made a model call through the gateway.' },
  NO_SIGNAL: { boundary: 'run', exit: 1, summary: 'Step after step, no group had both better and worse rollouts.' },
  GRADER_FAILED: { boundary: 'grader', exit: 1, summary: 'The grader threw or crashed.' },
  GRADER_TIMEOUT: { boundary: 'grader', exit: 1, summary: 'The grader did not answer before its deadline.' },
  GRADER_BAD_REWARD: { boundary: 'grader', exit: 1, summary: 'The grader returned something that is not a finite reward.' },
  GRADER_UNSCORABLE: { boundary: 'grader', exit: 1, summary: 'The grader says that this rollout cannot be scored.' },
  SANDBOX_MISSING: { boundary: 'grader', exit: 2, summary: 'There is no sandbox on this system.' },
  SANDBOX_FAILED: { boundary: 'grader', exit: 1, summary: 'A sandbox could not be set up; nothing ran in it.' },
  GRADER_BUDGET: { boundary: 'grader', exit: 1, summary: 'Too many gradings failed; the run stopped.' },
  REQUEST_INVALID: { boundary: 'gateway', exit: 1, summary: 'A model request is malformed or asks for something unsupported.' },
  REQUEST_CONFLICT: { boundary: 'gateway', exit: 1, summary: 'An Idempotency-Key was used again for another request.' },
  CAPABILITY_MISSING: { boundary: 'gateway', exit: 1, summary: 'A key is valid but not for what was asked.' },
  SESSION_UNKNOWN: { boundary: 'gateway', exit: 1, summary: 'A model request carries no valid key for this rollout.' },
  SESSION_SEALED: { boundary: 'gateway', exit: 1, summary: 'A model request came after its rollout ended.' },
  LIMIT_REACHED: { boundary: 'gateway', exit: 1, summary: 'The rollout used up its turns or tokens.' },
  CONTEXT_OVERFLOW: { boundary: 'engine', exit: 1, summary: 'The conversation does not fit into the model’s context.' },
  ENGINE_BUSY: { boundary: 'engine', exit: 1, summary: 'The engine or the rollout has too many calls under way.' },
  ENGINE_FAILED: { boundary: 'engine', exit: 1, summary: 'The engine could not sample.' },
  POLICY_UNREACHABLE: { boundary: 'engine', exit: 1, summary: 'The server of the policy cannot be reached or does not answer.' },
  POLICY_REFUSED: { boundary: 'engine', exit: 2, summary: 'The server of the policy refused a request.' },
  POLICY_GARBLED: { boundary: 'engine', exit: 1, summary: 'The server of the policy answered something that cannot be used.' },
  POLICY_DISAGREES: {
    boundary: 'trainer',
    exit: 1,
    summary: 'Engine and trainer give the same tokens different log-probabilities.',
  },
  POLICY_LOST: { boundary: 'engine', exit: 1, summary: 'The server of the policy no longer has the weights in training.' },
  SAMPLE_REFUSED: { boundary: 'trainer', exit: 1, summary: 'A sample cannot be trained as it was sampled.' },
  TRAINER_FAILED: { boundary: 'trainer', exit: 1, summary: 'The trainer could not take a step.' },
  STORE_CONFLICT: { boundary: 'store', exit: 1, summary: 'A record contradicts one that is already kept.' },
  STORE_FORMAT: { boundary: 'store', exit: 1, summary: 'The store file is damaged or of another format version.' },
  STORE_FAILED: { boundary: 'store', exit: 1, summary: 'The store could not write.' },
  CANCELLED: { boundary: 'run', exit: 1, summary: 'The work was cancelled.' },
} as const satisfies Record<string, CodeEntry>;

export type ErrorCode = keyof typeof ERROR_CODES;

export class TrainyardError extends Error {
  override readonly name = 'TrainyardError';
  readonly code: ErrorCode;
  readonly hint: string | undefined;
  /** The request field at fault. */
  readonly param: string | undefined;
  /** Machine-readable details for the program that receives the error. `rollouts`: those stored whose records are at fault. */
  readonly details: Json | undefined;

  constructor(
    code: ErrorCode,
    message: string,
    options: { readonly hint?: string; readonly param?: string; readonly details?: Json; readonly cause?: unknown } = {},
  ) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.code = code;
    this.hint = options.hint;
    this.param = options.param;
    this.details = options.details;
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
    throw new TrainyardError(code, `${what}: ${messageOf(cause)}`, { cause, ...(hint === undefined ? {} : { hint }) });
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
  let [before, row]: [number[], number[]] = [[], Array.from({ length: b.length + 1 }, (_, j) => j)];
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
