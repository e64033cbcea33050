/**
 * `/fetch_batch` and `/pool`: complete groups for whoever trains somewhere else, and what became of all that was kept. For the admin alone: a
 * batch holds every agent's words, and is handed out once.
 */

import { invalid, parsed } from '../gateway/dialects/parameters.ts';
import { refused } from '../gateway/http-errors.ts';
import { type HttpReply, type HttpRequest, jsonReply } from '../http/message.ts';
import type { GroupPool } from '../rollout/group-pool.ts';
import type { ServedStep } from '../rollout/served-steps.ts';
import type { FlowParts } from './flow-parts.ts';
import { refusalOf } from './not-taken.ts';
import { channelOf, purposeOf } from './uids.ts';
import { batchRequest } from './wire.ts';

export async function fetchBatch(parts: FlowParts, { signal }: Pick<HttpRequest, 'signal'>, raw: unknown): Promise<HttpReply> {
  const pool = poolOf(parts);
  const asked = parsed(batchRequest, raw);
  const { groups, n, channel, wait_s, max_staleness, stale, batch_id } = asked;
  if (groups > (pool.maxGroups ?? Infinity)) throw invalid('groups', `expected at most ${pool.maxGroups}: no more may wait`);
  const purpose = purposeOf(channel) ?? 'train';
  const policyVersion = asked.policy_version ?? parts.policyVersion();
  const patience = AbortSignal.any([AbortSignal.timeout(wait_s * 1000), ...(signal === undefined ? [] : [signal])]);
  const fetched = await pool
    .fetch(
      {
        purpose,
        groups,
        n: n ?? undefined,
        stale: max_staleness == null ? undefined : { policyVersion, most: max_staleness, rule: stale },
        batchId: batch_id ?? undefined,
      },
      patience,
    )
    .catch((thrown: unknown) => {
      throw refusalOf(thrown) ?? thrown;
    });
  if (fetched.kind !== 'batch') return jsonReply(200, { status: fetched.kind, batch_id: null, steps: null });
  return jsonReply(200, { status: 'batch', batch_id: fetched.batchId, steps: fetched.steps.map(rowOf) });
}

export function showPool(parts: FlowParts): HttpReply {
  const pool = poolOf(parts);
  const counts = (purpose: 'train' | 'eval') => [channelOf(purpose), pool.counts(purpose)] as const;
  return jsonReply(200, Object.fromEntries([counts('train'), counts('eval')]));
}

function poolOf({ pool }: FlowParts): GroupPool {
  if (pool !== undefined) return pool;
  throw refused('not_found', 'no groups are handed out here', {
    hint: 'a run trains its groups itself; trainyard serve hands them out',
  });
}

/** As `/submit_steps` takes them, with what is known beyond. */
function rowOf({ groupId, rolloutId, index, isLast, turn, reward, value, weight }: ServedStep): object {
  return {
    prompt_uid: groupId,
    trajectory_uid: rolloutId,
    step_index: index,
    is_last: isLast,
    prompt_ids: [...turn.promptIds],
    response_ids: [...turn.sampledIds],
    rollout_log_probs: [...turn.logprobs],
    temperature: turn.sampling.effective.temperature,
    policy_version: turn.policyVersion,
    reward,
    trajectory_reward: value,
    weight,
  };
}
