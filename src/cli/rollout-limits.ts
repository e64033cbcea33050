/** `--turns` as the setting it stands for. */
import type { Limits } from '../core/types.ts';
import { EVAL_DEFAULTS } from '../run/settings.ts';

export function withLimits<Flags extends { readonly turns?: number }>({
  turns,
  ...flags
}: Flags): Omit<Flags, 'turns'> & { readonly limits?: Limits } {
  return turns === undefined ? flags : { ...flags, limits: { ...EVAL_DEFAULTS.limits, turns } };
}
