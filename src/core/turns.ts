/** Turns as they are seen from outside: in short, and by their names. */
import type { DialectName, Fork, Message, RolloutIdentity, StopReason, Turn } from './types.ts';

/** For people and their tools: where its prompt comes from, how much was said, what was special. No token ids. */
export interface TurnSummary {
  readonly index: number;
  readonly thread: string;
  readonly role: string;
  readonly after: number | null;
  readonly fork: Fork | null;
  readonly promptTokens: number;
  readonly sampledTokens: number;
  readonly stopReason: StopReason;
  readonly policyVersion: number;
  readonly trainable: boolean;
  /** Who answered, where it was not the policy. */
  readonly model: string | null;
  readonly undelivered: boolean;
  readonly dialect: DialectName | null;
  readonly ignored: readonly string[];
  readonly formatError: string | null;
  readonly response: Message;
}

export function turnSummary(turn: Turn): TurnSummary {
  const { index, thread, role, after, fork, stopReason, policyVersion, trainable, request, formatError, response } = turn;
  return {
    index,
    thread,
    role,
    after: after ?? null,
    fork: fork ?? null,
    promptTokens: turn.promptIds.length,
    sampledTokens: turn.sampledIds.length,
    stopReason,
    policyVersion,
    trainable,
    model: turn.model ?? null,
    undelivered: turn.undelivered ?? false,
    dialect: request.dialect ?? null,
    ignored: request.ignored ?? [],
    formatError: formatError ?? null,
    response,
  };
}

/** The id of the completion that a client gets. The seed of a turn is known before it is complete, and no other turn of the rollout has it. */
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
