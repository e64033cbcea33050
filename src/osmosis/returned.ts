/**
 * What a workflow returned, checked as in a run of our own, where the turns that it may name are in another process: its reward is the one
 * number, rewards by turn are not sent, and which turns are trained is the controller's to say.
 */
import type { WorkflowResult } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { asJson, isObject } from '../core/json.ts';
import { toReward } from '../core/reward.ts';
import type { Message, Reward, RolloutIdentity } from '../core/types.ts';
import { resultOf, type SettledResult } from '../rollout/result.ts';
import { jsonOnly } from './callbacks.ts';

export interface Returned extends Omit<SettledResult, 'trainedTurns' | 'reward'> {
  readonly reward?: Reward;
  /** Conversations as the workflow kept them. */
  readonly threads?: Readonly<Record<string, readonly Message[]>>;
}

const MOST_JSON = 16 * 1024 * 1024;

/** Throws WORKFLOW_BAD_RESULT. What is no JSON in metrics and metadata is left out and told: it is no reason to lose a reward. */
export function returnedBy(value: unknown, identity: RolloutIdentity, warn: (text: string) => void): Returned {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return resultOf(value, identity, []);
  const { reward, trainedTurns: _, threads, metadata, metrics, ...rest } = value as WorkflowResult;
  const settled = resultOf(
    {
      ...rest,
      ...(metadata === undefined ? {} : { metadata: jsonOnly(metadata, 'metadata', warn) }),
      ...(metrics === undefined ? {} : { metrics: jsonOnly(metrics, 'metrics', warn) }),
    },
    identity,
    [],
  );
  return {
    ...settled,
    ...(reward === undefined || reward === null ? {} : { reward: rewardOf(reward) }),
    ...(threads === undefined ? {} : { threads: threadsOf(threads) }),
  };
}

/** Rewards by turn are left behind unseen: which turns there are is only known elsewhere. */
function rewardOf(given: NonNullable<WorkflowResult['reward']>): Reward {
  return toReward(typeof given === 'object' && 'byTurn' in given ? { ...given, byTurn: undefined } : given, 'run');
}

function threadsOf(given: unknown): Readonly<Record<string, readonly Message[]>> {
  const copy = asJson(given, MOST_JSON);
  const isOfLists = isObject(copy) && Object.values(copy).every(Array.isArray);
  if (isOfLists) return copy as unknown as Readonly<Record<string, readonly Message[]>>;
  throw new TrainyardError('WORKFLOW_BAD_RESULT', 'run returned threads that are not lists of messages as JSON, by thread', {
    hint: 'write threads: { name: [{ role, content }, …] }',
  });
}
