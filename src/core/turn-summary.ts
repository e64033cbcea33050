/** A turn in short, for people and their tools: where its prompt comes from, how much was said, what was special. No token ids. */
import type { DialectName, Fork, Message, StopReason, Turn } from './types.ts';

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
