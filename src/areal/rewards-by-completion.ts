/** Rewards by completion id, as agents and workflows return them, checked: what each completion earned itself. */
import type { WorkflowResult } from '../core/contracts.ts';
import { describeValue } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';

/** The rollout's value is all that was earned; which completions there are is checked by the run. Throws WORKFLOW_BAD_RESULT. */
export function resultOfRewards(entries: readonly (readonly [id: unknown, reward: unknown])[], who: string): WorkflowResult {
  if (entries.length === 0) {
    throw badReturn(`${who} returned an empty map of rewards`, 'return null to reject the episode');
  }
  for (const [id, reward] of entries) {
    if (typeof id !== 'string') throw badReturn(`${who} returned a reward for ${describeValue(id)}, expected a completion id`);
    if (Number.isFinite(reward)) continue;
    throw badReturn(`${who} returned ${describeValue(reward)} for completion ${id}, expected a finite number`);
  }
  const byTurn = Object.fromEntries(entries as readonly (readonly [string, number])[]);
  const value = Object.values(byTurn).reduce((sum, reward) => sum + reward, 0);
  return { reward: { value, byTurn } };
}

/** Of an object without a prototype of its own, or of a Map; undefined for anything else. */
export function entriesOf(value: unknown): readonly (readonly [unknown, unknown])[] | undefined {
  if (value instanceof Map) return [...value];
  if (typeof value !== 'object' || value === null) return undefined;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === null || prototype === Object.prototype ? Object.entries(value) : undefined;
}

export function badReturn(found: string, hint?: string): TrainyardError {
  return new TrainyardError('WORKFLOW_BAD_RESULT', found, hint === undefined ? {} : { hint });
}
