/**
 * Who is calling: the one place where a key, a path and headers become a seat in a rollout.
 *
 * The key decides what may be done. A rollout's own key needs nothing else; a key of the whole run says its rollout by path or
 * `x-rollout-id`. Whatever else a request says about its identity must agree: a header that contradicts is 403, and the path of a
 * rollout that the key is not for is 404, whether or not there is such a rollout.
 */

import { currentRollout } from '../core/context.ts';
import { TrainyardError } from '../core/errors.ts';
import type { HttpRequest } from '../http/message.ts';
import type { Refusal } from '../http/refusal.ts';
import { decoded } from '../http/router.ts';
import type { Grant, Keyring } from './keys.ts';
import { type LiveSession, type Seat, type SessionTable, sealed } from './sessions.ts';
import { type Capability, GATEWAY_LIMITS, refused } from './wire-protocol.ts';

type Headers = Pick<HttpRequest, 'header'>;

const KEY_HEADERS = ['x-api-key', 'x-goog-api-key'] as const;
const VISIBLE = /^[\x21-\x7e]+$/;
const SAMPLE_ID = new RegExp(`^[\\x20-\\x7e]{1,${GATEWAY_LIMITS.sampleIdLength}}$`);

/** What the request's key stands for, if it may do this. */
export function authorize(keyring: Keyring, call: Headers, who: readonly Capability[]): Grant {
  const grant = keyring.read(credentialOf(call));
  if (grant === undefined) {
    throw new TrainyardError('SESSION_UNKNOWN', 'this is not a key of this gateway', {
      hint: 'use the base URL and key that were given together, and only while the rollout runs; keys change with every start',
    });
  }
  if (who.includes(grant.capability)) return grant;
  throw new TrainyardError('CAPABILITY_MISSING', `a key for ${grant.capability} may not do this`, {
    hint: `it takes a key for ${who.join(' or ')}`,
  });
}

/** The seat of a model call. `pathSegment`: the rollout as it stands in the path, if it does. */
export function seatOf(sessions: SessionTable, grant: Grant, pathSegment: string | undefined, call: Headers): Seat {
  const session = sessionOf(sessions, grant, pathSegment, call);
  const role = grant.role ?? 'default';
  const thread = call.header('x-sample-id') ?? role;
  checkRollout({ session, role, thread });
  checkThread(session, grant.role, thread);
  return { session, role, thread };
}

/**
 * Throws where code of one rollout calls with another's model handle, as far as that is known: the turn would be trained as the other's.
 * The call is kept as one that failed of the rollout that made it.
 */
export function checkRollout({ session, role, thread }: Seat): void {
  const caller = session.neighbour(currentRollout()?.rolloutId ?? session.rolloutId);
  if (caller === undefined) return;
  const refusal = refused(
    'identity_conflict',
    `code of rollout ${caller.rolloutId} called with the model handle of rollout ${session.rolloutId}`,
    {
      hint: 'take ctx.model() anew in each rollout; a queue that rollouts share must run each call in the context it came from (AsyncResource.bind)',
    },
  );
  void caller.calling({ session: caller, role, thread }, undefined, () => Promise.reject(refusal)).catch(() => {});
  throw refusal;
}

/** Throws REQUEST_INVALID where this is no name of a conversation, or another seat's. `role`: of the caller, where its key is of one. */
export function checkThread(session: LiveSession, role: string | undefined, thread: string): void {
  if (thread === (role ?? 'default')) return;
  if (!SAMPLE_ID.test(thread)) {
    throw new TrainyardError('REQUEST_INVALID', 'x-sample-id: not a name that is printed in at most 128 characters', {
      param: 'x-sample-id',
    });
  }
  // Else one seat could speak in another's conversation.
  if (role !== undefined && Object.hasOwn(session.spec.roles, thread)) {
    throw contradiction('x-sample-id', thread, `role ${JSON.stringify(role)}`);
  }
}

function sessionOf(sessions: SessionTable, grant: Grant, pathSegment: string | undefined, call: Headers): LiveSession {
  const inHeader = call.header('x-rollout-id');
  const inPath = pathSegment === undefined ? undefined : decoded(pathSegment);
  if (grant.rollout !== undefined && inPath !== undefined && inPath !== grant.rollout) throw noRollout(inPath);
  const named = grant.rollout ?? inPath;
  if (inHeader !== undefined && named !== undefined && inHeader !== named) {
    throw contradiction('x-rollout-id', inHeader, grant.rollout === undefined ? 'the path' : 'its key');
  }
  const rollout = named ?? inHeader;
  if (rollout === undefined) {
    throw new TrainyardError('REQUEST_INVALID', 'the request does not say which rollout it belongs to', {
      hint: 'put /r/<rollout> into the base URL, or send x-rollout-id',
    });
  }
  const session = sessions.get(rollout);
  if (session !== undefined && (grant.session === undefined || grant.session === session.number)) return session;
  // A key is only made for a rollout that is open: where it is not, it was.
  if (grant.rollout !== undefined || sessions.hasEnded(rollout)) throw sealed(rollout);
  throw noRollout(rollout);
}

function credentialOf(call: Headers): string {
  const authorization = call.header('authorization');
  const bearer = authorization === undefined ? undefined : /^Bearer +(.*)$/i.exec(authorization.trim())?.[1];
  const others = KEY_HEADERS.map((name) => call.header(name)?.trim());
  const given = new Set([bearer, ...others].filter((key) => key !== undefined && key !== ''));
  const [key] = given;
  if (given.size > 1) throw malformed('Authorization, x-api-key and x-goog-api-key are of different keys');
  if (
    authorization !== undefined &&
    bearer === undefined &&
    authorization.trim() !== '' &&
    !/^Bearer$/i.test(authorization.trim())
  ) {
    throw noKey('the Authorization header is not Bearer');
  }
  if (key === undefined) throw noKey('the request carries no key');
  if (!VISIBLE.test(key)) throw malformed('the key has characters that no key has');
  return key;
}

function noKey(message: string): TrainyardError {
  return new TrainyardError('SESSION_UNKNOWN', message, { hint: 'send it as Authorization: Bearer <key> or as x-api-key' });
}

function malformed(message: string): TrainyardError {
  return new TrainyardError('REQUEST_INVALID', message);
}

function noRollout(rollout: string): Refusal {
  return refused('not_found', `no rollout ${JSON.stringify(rollout.slice(0, 100))} for this key`);
}

function contradiction(header: string, value: string, other: string): Refusal {
  return refused('identity_conflict', `${header} ${JSON.stringify(value.slice(0, 100))} contradicts ${other}`, {
    hint: 'leave one out',
  });
}
