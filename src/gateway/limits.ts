/**
 * What one request and one rollout may cost, whoever asks. Published in docs/reference/wire-protocol.md, which a test keeps equal to
 * this file. The limits of a run (turns, tokens, wall clock) are settings and stand in the session's spec.
 */
import { TrainyardError } from '../core/errors.ts';
import { MAX_NESTING } from '../core/json.ts';
import { HTTP_LIMITS } from '../http/guard.ts';
import type { Question } from './dialects/dialect.ts';

const MiB = 1024 * 1024;

export const GATEWAY_LIMITS = {
  /** Larger bodies are refused before they are parsed: parsing blocks every other rollout. */
  bodyBytes: 16 * MiB,
  nesting: MAX_NESTING,
  /** Items and members of a body: checking each costs a hundred times what parsing it does. */
  values: 200_000,
  messages: 10_000,
  tools: 1_000,
  /** Parameters that have no effect. */
  ignored: 2_000,
  headers: HTTP_LIMITS.headers,
  headerBytes: HTTP_LIMITS.headerBytes,
  /** Model calls of one rollout at the same time; more wait at the client. */
  callsAtOnce: 256,
  /** Bodies of one rollout: its turns keep what they were asked. */
  rolloutBytes: 1024 * MiB,
  /** Sessions opened over HTTP and not sealed. */
  openSessions: 10_000,
  /** Wrong keys from one address: at once, and per second from then on. */
  wrongKeys: HTTP_LIMITS.wrongKeys,
  wrongKeysPerSecond: HTTP_LIMITS.wrongKeysPerSecond,
  sampleIdLength: 128,
} as const;

/** Throws REQUEST_INVALID where a question, read and well-formed, is more than a request may hold. */
export function checkSize({ messages, tools, ignored }: Question): void {
  const counts = { messages: messages.length, tools: tools.length, ignored: ignored.length };
  for (const name of ['messages', 'tools', 'ignored'] as const) {
    if (counts[name] <= GATEWAY_LIMITS[name]) continue;
    const what = name === 'ignored' ? 'parameters without effect' : name;
    throw new TrainyardError('REQUEST_INVALID', `${counts[name]} ${what}; at most ${GATEWAY_LIMITS[name]} are read`, {
      ...(name === 'ignored' ? {} : { param: name }),
    });
  }
}
