/**
 * The control plane over HTTP: open, list, read and seal sessions. For admins and viewers; nothing here calls the model, and no key of
 * a rollout reaches it.
 */
import { randomUUID } from 'node:crypto';
import { z } from 'zod';
import type { SessionSpec } from '../core/contracts.ts';
import { turnSummary } from '../core/turns.ts';
import { decoded } from '../http/router.ts';
import { invalid, parsed } from './dialects/dialect.ts';
import type { LiveSession, SessionTable } from './sessions.ts';
import { refused } from './wire-protocol.ts';

/** What a session opened over HTTP is sampled with and may use. */
export type SessionDefaults = Pick<SessionSpec, 'sampling' | 'limits' | 'seed' | 'observer'>;

const name = z.string().regex(/^(?!\.{1,2}$)[\w.:~-]{1,128}$/, 'at most 128 letters, digits and . : ~ - _');
const body = z.strictObject({
  rolloutId: name.optional(),
  groupId: name.optional(),
  taskId: name.optional(),
  purpose: z.enum(['train', 'eval']).default('train'),
  roles: z.record(name, z.strictObject({ trainable: z.boolean() })).default({}),
});

export function openSession(sessions: SessionTable, defaults: SessionDefaults | undefined, raw: unknown): object {
  if (defaults === undefined) throw refused('not_found', 'this gateway opens no sessions over HTTP');
  const { rolloutId = randomUUID(), groupId = rolloutId, taskId = rolloutId, purpose, roles } = parsed(body, raw);
  if (Object.keys(roles).length > 100) throw invalid('roles', 'more than 100');
  const identity = { rolloutId, groupId, taskId, purpose };
  const session = sessions.open({ ...defaults, identity, roles, signal: new AbortController().signal }, true);
  const { baseURL, apiKey } = session.model();
  const seats = Object.keys(roles).map((role) => [role, session.model(role).apiKey] as const);
  return { rolloutId, baseURL, apiKey, roles: Object.fromEntries(seats) };
}

export function listSessions(sessions: SessionTable): object {
  return { sessions: Array.from(sessions.all(), summaryOf) };
}

export function showSession(sessions: SessionTable, rollout: string): object {
  return detailOf(find(sessions, rollout));
}

/** Answers what `showSession` would have said last. */
export function sealSession(sessions: SessionTable, rollout: string): object {
  const session = find(sessions, rollout);
  const detail = detailOf(session);
  session.seal();
  return detail;
}

function find(sessions: SessionTable, segment: string): LiveSession {
  const session = sessions.get(decoded(segment));
  if (session !== undefined) return session;
  throw refused('not_found', `no open session of rollout ${JSON.stringify(segment.slice(0, 100))}`);
}

function summaryOf(session: LiveSession): object {
  const { rolloutId, turns, sampledTokens, idleMs, openCalls } = session;
  return { rolloutId, turns: turns.length, tokens: sampledTokens, idleSeconds: Math.floor(idleMs / 1000), openCalls };
}

function detailOf(session: LiveSession): object {
  const { turns, unanswered } = session;
  return { ...summaryOf(session), turns: turns.map(turnSummary), unanswered };
}
