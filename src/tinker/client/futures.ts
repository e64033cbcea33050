/**
 * Waits for the result of an accepted request: polls its future and makes something of every documented outcome.
 *
 * A future that the server has forgotten is made anew by sending the same request again, twice at most: same body, same `seq_id`, so
 * that a server which did the work gives the result of it and does nothing again. How a result is decoded is not known here.
 */
import { type ErrorCode, TrainyardError } from '../../core/errors.ts';
import { PROTOBUF } from '../wire/messages.ts';
import { completeMetadataReply, failedReply, tryAgainReply } from '../wire/verbs.ts';
import type { Caller } from './caller.ts';
import type { HttpReply } from './http.ts';
import { pause } from './patience.ts';
import { parseJson, type Refusals } from './refusals.ts';

/** Longer than servers hold a poll is not waited on one socket. */
const POLL_TIMEOUT_MS = 45_000;
/** For a future of which nothing is heard but "not yet". */
const LONGEST_WAIT_MS = 30 * 60_000;
const RESUBMISSIONS = 2;
const BAD_REQUESTS = 3;
/** Between polls that the server answers at once: from, to. */
const PAUSE_MS = [20, 1000] as const;

export type Payload =
  | { readonly kind: 'json'; readonly value: unknown }
  | { readonly kind: 'protobuf'; readonly bytes: Uint8Array };

export interface AwaitedRequest {
  readonly verb: string;
  /** As the wire calls it: Sample, ForwardBackward … */
  readonly requestType: string;
  readonly purpose: 'sample' | 'train';
  /** Sends the request again and gives the id of its new future. */
  readonly resubmit: () => Promise<string>;
}

type Outcome =
  | { readonly kind: 'result'; readonly payload: Payload }
  | { readonly kind: 'not yet' }
  | { readonly kind: 'large' }
  | { readonly kind: 'forgotten' }
  | { readonly kind: 'bad request'; readonly error: TrainyardError };

export async function retrieve(
  { caller, refusals }: { readonly caller: Caller; readonly refusals: Refusals },
  request: AwaitedRequest,
  firstId: string,
  signal: AbortSignal,
): Promise<Payload> {
  const until = performance.now() + LONGEST_WAIT_MS;
  const left = { resubmissions: RESUBMISSIONS, badRequests: BAD_REQUESTS };
  let id = firstId;
  let metadataOnly = true;
  let wait: number = PAUSE_MS[0];
  for (let iteration = 0; ; iteration++) {
    const asked = performance.now();
    const reply = await caller.ask(poll(request, id, metadataOnly, iteration), `retrieve_future of ${request.verb}`, {
      signal,
      repeatable: true,
      longPoll: true,
    });
    const outcome = outcomeOf(reply, request, refusals);
    if (outcome.kind === 'result') return outcome.payload;
    if (outcome.kind === 'large') {
      if (!metadataOnly) throw refusals.garbled(reply, request.verb, 'metadata, where the whole result was asked for');
      metadataOnly = false;
      continue;
    }
    if (outcome.kind === 'forgotten') {
      if (left.resubmissions-- === 0) throw refusals.ofStatus(reply, request.verb);
      id = await request.resubmit();
      continue;
    }
    if (outcome.kind === 'bad request' && left.badRequests-- === 0) throw outcome.error;
    if (performance.now() > until) throw waitedTooLong(request.verb);
    if (performance.now() - asked < PAUSE_MS[1]) {
      await pause(wait, signal);
      wait = Math.min(wait * 2, PAUSE_MS[1]);
    }
  }
}

function poll({ requestType, purpose }: AwaitedRequest, id: string, metadataOnly: boolean, iteration: number) {
  const body = Buffer.from(JSON.stringify({ request_id: id, allow_metadata_only: metadataOnly }));
  return {
    method: 'POST',
    path: '/api/v1/retrieve_future',
    pool: purpose,
    timeoutMs: POLL_TIMEOUT_MS,
    body,
    headers: {
      'content-type': 'application/json',
      accept: `${PROTOBUF}, application/json`,
      'x-tinker-request-iteration': String(iteration),
      'x-tinker-request-type': requestType,
    },
  } as const;
}

/** Throws for what has failed and for what cannot be understood. */
function outcomeOf(reply: HttpReply, request: AwaitedRequest, refusals: Refusals): Outcome {
  const { status } = reply;
  if (status === 408) return { kind: 'not yet' };
  if (status === 410 || (status === 404 && parseJson(reply.body) !== undefined)) return { kind: 'forgotten' };
  if (status >= 300) {
    const error = refusals.ofStatus(reply, request.verb);
    if (status === 400 && error.code === 'POLICY_REFUSED') return { kind: 'bad request', error };
    throw error;
  }
  if (reply.contentType.includes(PROTOBUF)) return { kind: 'result', payload: { kind: 'protobuf', bytes: reply.body } };
  const value = parseJson(reply.body);
  if (typeof value !== 'object' || value === null) throw refusals.garbled(reply, request.verb);
  if (tryAgainReply.safeParse(value).success) return { kind: 'not yet' };
  if (completeMetadataReply.safeParse(value).success) return { kind: 'large' };
  const failed = failedReply.safeParse(value);
  if (failed.success) {
    const code: ErrorCode = request.purpose === 'sample' ? 'ENGINE_FAILED' : 'TRAINER_FAILED';
    throw refusals.ofFailure(failed.data.error, failed.data.category, request.verb, code);
  }
  return { kind: 'result', payload: { kind: 'json', value } };
}

function waitedTooLong(verb: string): TrainyardError {
  const minutes = LONGEST_WAIT_MS / 60_000;
  return new TrainyardError('POLICY_UNREACHABLE', `the server has not finished ${verb} within ${minutes} minutes`, {
    hint: 'look at what the server is doing; a smaller batch takes less time',
  });
}
