/** How turns are named outside: the id of the completion that a client got, from which the turn is found again. */
import type { RolloutIdentity, Turn } from './types.ts';

/** The seed of a turn is known before it is complete, and no other turn of the rollout has it. */
export function completionId({ rolloutId }: Pick<RolloutIdentity, 'rolloutId'>, seed: number): string {
  return `${rolloutId.replaceAll(/[^\w-]/g, '_')}-${seed.toString(36)}`;
}

/**
 * The turn of this index or completion id. An id may have the prefix that a dialect puts before it (`chatcmpl-`, `resp_`, `msg_`). Of
 * several answers to one call, which share an id, it is the first.
 */
export function turnNamed(identity: RolloutIdentity, turns: readonly Turn[], name: number | string): Turn | undefined {
  if (typeof name === 'number' || /^\d+$/.test(name)) return turns.find(({ index }) => index === Number(name));
  return turns.find(({ sampling }) => {
    const id = completionId(identity, sampling.seed);
    return name === id || name === `chatcmpl-${id}` || name === `resp_${id}` || name === `msg_${id}`;
  });
}
