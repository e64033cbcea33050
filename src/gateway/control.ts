/**
 * The routes that do not call the model: `sessions`, which viewers and admins read, only admins open and seal, and agent and flow keys
 * cannot reach; and `models`, which describes the only model to OpenAI's and Anthropic's clients.
 */
import { randomUUID } from 'node:crypto';
import { z } from 'zod';
import type { SessionSpec } from '../core/contracts.ts';
import { turnSummary } from '../core/turns.ts';
import { decoded, type HttpReply, type HttpRequest, jsonReply, readJson } from '../http/message.ts';
import { invalid, parsed } from './dialects/dialect.ts';
import type { LiveSession, SessionTable } from './sessions.ts';
import { GATEWAY_LIMITS, refused } from './wire-protocol.ts';

/** Sampling settings and limits of sessions that are opened over HTTP. */
export type SessionDefaults = Pick<SessionSpec, 'sampling' | 'limits' | 'seed' | 'observer'>;

const name = z.string().regex(/^(?!\.{1,2}$)[\w.:~-]{1,128}$/, 'at most 128 letters, digits and . : ~ - _');
const body = z.strictObject({
  rolloutId: name.optional(),
  groupId: name.optional(),
  taskId: name.optional(),
  purpose: z.enum(['train', 'eval']).default('train'),
  roles: z.record(name, z.strictObject({ trainable: z.boolean() })).default({}),
});

export async function openSession(
  sessions: SessionTable,
  defaults: SessionDefaults | undefined,
  call: HttpRequest,
): Promise<HttpReply> {
  const raw = await readJson(call, GATEWAY_LIMITS, {});
  if (defaults === undefined) throw refused('not_found', 'this gateway opens no sessions over HTTP');
  const { rolloutId = randomUUID(), groupId = rolloutId, taskId = rolloutId, purpose, roles } = parsed(body, raw);
  if (Object.keys(roles).length > 100) throw invalid('roles', 'more than 100');
  const identity = { rolloutId, groupId, taskId, purpose };
  const session = sessions.open({ ...defaults, identity, roles, signal: new AbortController().signal }, true);
  await sessions.journal?.opened(session).catch((thrown) => {
    session.seal();
    throw thrown;
  });
  const { baseURL, apiKey } = session.model();
  const keys = Object.keys(roles).map((role) => [role, session.model(role).apiKey] as const);
  return jsonReply(201, { rolloutId, baseURL, apiKey, roles: Object.fromEntries(keys) });
}

export function listSessions(sessions: SessionTable): HttpReply {
  return jsonReply(200, { sessions: Array.from(sessions.all(), summaryOf) });
}

/** With `seal`, seals the session afterwards, and waits until it is stored; the reply shows its state before. */
export async function showSession(
  sessions: SessionTable,
  rollout: string,
  { seal }: { readonly seal: boolean },
): Promise<HttpReply> {
  const session = find(sessions, rollout);
  const { turns, unanswered } = session;
  const reply = jsonReply(200, { ...summaryOf(session), turns: turns.map(turnSummary), unanswered });
  if (seal) session.seal();
  if (seal) await session.kept;
  return reply;
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

export function models(id: string, isAnthropic: boolean, segment: string | undefined): HttpReply {
  const wanted = segment === undefined ? id : decoded(segment);
  if (wanted !== id) throw refused('not_found', `no model ${JSON.stringify(wanted.slice(0, 100))}`);
  const model = isAnthropic
    ? { type: 'model', id, display_name: id, created_at: '1970-01-01T00:00:00Z' }
    : { id, object: 'model', created: 0, owned_by: 'trainyard' };
  if (segment !== undefined) return jsonReply(200, model);
  const data = [model];
  return jsonReply(200, isAnthropic ? { data, has_more: false, first_id: id, last_id: id } : { object: 'list', data });
}
