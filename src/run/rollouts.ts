/**
 * The rollouts of a run: each is run, graded and stored unless its store has it already, and judged by what it means for the run. The first
 * failure of each kind is told at once; too many end the run.
 */
import { linkSignals } from '../core/async.ts';
import type { Store } from '../core/contracts.ts';
import type { WarningCode } from '../core/error-codes.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Warn } from '../core/events.ts';
import { OVERFLOW_HINT } from '../core/policy.ts';
import { exclusionsOf, overflowOf, sampledTokensIn, tellingIgnored } from '../core/turns.ts';
import type { RolloutIdentity, SamplingSettings, Task, Trajectory, Turn } from '../core/types.ts';
import { type FailureBudget, nothingTrainable } from '../rollout/budget.ts';
import { type RolloutParts, runRollout } from '../rollout/runner.ts';
import { shellWord } from '../settings/settings.ts';

export interface Rollouts {
  /** Runs, grades and stores one rollout, unless the store has it already. Throws if the failure budget is spent or the run was stopped. */
  run(
    identity: Pick<RolloutIdentity, 'rolloutId' | 'groupId' | 'purpose'>,
    task: Task,
    sampling: SamplingSettings,
    signal?: AbortSignal,
  ): Promise<Trajectory>;
  /** Ends a phase; throws if all of its rollouts failed. */
  settle(): void;
  readonly sampledTokens: number;
}

interface KeptRollouts extends RolloutParts {
  readonly store: Store;
}

/** First rollouts that may be without a turn of a trainable role. */
const MOST_UNTRAINED = 8;

export function rolloutsOf(parts: KeptRollouts, warn: Warn, budget: FailureBudget, trains = false, run?: string): Rollouts {
  const warned = new Set<string>();
  const tellIgnored = tellingIgnored(warn);
  /** Those before the first with a trainable turn. Undefined once there is one. */
  let untrained: Trajectory[] | undefined = trains ? [] : undefined;
  const checkTrained = (trajectory: Trajectory): void => {
    if (trajectory.turns.some((turn) => turn.trainable)) untrained = undefined;
    else if (trajectory.turns.length > 0) untrained?.push(trajectory);
    if (untrained?.length === MOST_UNTRAINED) throw nothingTrainable(untrained, `${MOST_UNTRAINED} rollouts were made`);
  };
  let sampledTokens = 0;
  return {
    run: async (identity, task, sampling, given) => {
      const { signal, release } = linkSignals(parts.signal, ...(given === undefined ? [] : [given]));
      try {
        signal.throwIfAborted();
        const kept = await keptRollout(parts.store, { ...identity, taskId: task.id });
        // Acknowledged before a kill, so it counts. Its failure does not: new rollouts show whether the cause persists.
        if (kept !== undefined) return kept;
        const begun = budget.begin();
        try {
          const spec = { identity: { ...identity, taskId: task.id }, task, sampling };
          const trajectory = await runRollout({ ...parts, signal }, spec);
          sampledTokens += sampledTokensIn(trajectory);
          warnOnce(trajectory, warned, warn, run);
          tellIgnored(trajectory);
          checkTrained(trajectory);
          budget.add(trajectory, begun);
          return trajectory;
        } catch (thrown) {
          budget.leave(begun);
          throw thrown;
        }
      } finally {
        release();
      }
    },
    get sampledTokens() {
      return sampledTokens;
    },
    settle: () => budget.settle(),
  };
}

/** The rollout that the store has, in a resumed run. One that is damaged, and left out of training, counts as failed. */
export async function keptRollout(store: Store, identity: RolloutIdentity): Promise<Trajectory | undefined> {
  const { rolloutId } = identity;
  try {
    return await store.read(rolloutId);
  } catch (cause) {
    if (!(cause instanceof TrainyardError) || cause.code !== 'STORE_FORMAT') throw cause;
    const { code, message, hint = '' } = cause;
    const excluded = exclusionsOf(new Set([rolloutId]), await store.marks());
    if (!excluded.some(({ turn }) => turn === undefined)) {
      throw new TrainyardError(code, message, { hint, cause, details: { rollouts: [rolloutId] } });
    }
    const times = { startedAt: Date.now(), endedAt: Date.now() };
    return {
      ...identity,
      outcome: { kind: 'failed', code, message },
      grade: { kind: 'ungraded', why: 'failed' },
      turns: [],
      ...times,
    };
  }
}

/** Reports the first failure of each kind at once; otherwise a run of slow failures would stay silent until its budget is spent. */
function warnOnce(trajectory: Trajectory, warned: Set<string>, warn: Warn, run: string | undefined): void {
  const { rolloutId, purpose, outcome, grade, turns, logs = [], metrics = {} } = trajectory;
  const isSide = ({ fork, trainable }: Turn): boolean => purpose === 'train' && fork?.cause === 'side_call' && !trainable;
  const side = turns.find(isSide);
  const failures = [outcome, grade].flatMap((ending) => (ending.kind === 'failed' ? [ending] : []));
  const show =
    run !== undefined && logs.some(({ from }) => from === 'workflow') && `trainyard show ${shellWord(run)} ${rolloutId}`;
  const kept = `what workflows print is kept with their rollouts and not shown here: ${show}`;
  const hasNoSteps = metrics['steps'] === 0 && turns.length > 0 && !turns.some(({ trainable }) => trainable);
  const overflow = turns.length === 0 ? overflowOf(trajectory) : '';
  const telling = [
    ...failures,
    ...(overflow === '' ? [] : [{ code: 'CONTEXT_OVERFLOW', message: `${overflow}; ${OVERFLOW_HINT}` }]),
    ...(side === undefined ? [] : [{ code: 'SIDE_CALL', message: untrained(side) }]),
    ...(hasNoSteps ? [{ code: 'NO_STEPS', message: 'its flow submitted no step to train; use gatewaySubmitSteps' }] : []),
    ...(show ? [{ code: 'PRINTS_KEPT', message: kept }] : []),
  ];
  for (const { code, message } of telling) {
    if (warned.has(code)) continue;
    warned.add(code);
    // Records hold codes as texts; all of them are ours.
    warn(code as WarningCode, `rollout ${rolloutId}: ${message}`);
  }
}

function untrained({ index }: Turn): string {
  return `turn ${index} looks like a client's call beside its conversation (a title, a topic, a memory) and is not trained; if it is the agent's own work, give it a role or thread of its own, or name it in trainedTurns`;
}
