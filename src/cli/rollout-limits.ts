/** Flags that stand for a setting of another name: `--turns`, and `--grader-deadline`, which is given as a time. */
import type { Limits } from '../core/types.ts';
import { EVAL_DEFAULTS } from '../run/settings.ts';

interface Given {
  readonly turns?: number;
  /** Seconds. */
  readonly graderDeadline?: number;
}

export function withLimits<Flags extends Given>({
  turns,
  graderDeadline,
  ...flags
}: Flags): Omit<Flags, keyof Given> & { readonly limits?: Limits; readonly graderDeadlineMs?: number } {
  return {
    ...flags,
    ...(turns === undefined ? {} : { limits: { ...EVAL_DEFAULTS.limits, turns } }),
    ...(graderDeadline === undefined ? {} : { graderDeadlineMs: Math.round(1000 * graderDeadline) }),
  };
}
