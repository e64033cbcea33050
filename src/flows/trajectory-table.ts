/**
 * Which trajectories the flow routes know: those of sessions that a run holds, and those opened over HTTP, which are kept from here when
 * they are complete. Of the latter some that ended are remembered, so that what is sent twice is answered twice.
 */
import { randomBytes } from 'node:crypto';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { outcomeByCalls } from '../core/last-word.ts';
import type { Grade, Json, Outcome, Trajectory } from '../core/types.ts';
import type { SessionDefaults } from '../gateway/control.ts';
import type { Gateway } from '../gateway/gateway.ts';
import { refused } from '../gateway/http-errors.ts';
import type { Grant } from '../gateway/keys.ts';
import { sealed } from '../gateway/sessions.ts';
import type { Refusal } from '../http/refusal.ts';
import { onlyTrained } from '../rollout/result.ts';
import { flowResult } from './flow-result.ts';
import { type FlowStep, FlowTrajectory } from './flow-trajectory.ts';
import { refusalOf } from './not-taken.ts';
import { FlowRefusal } from './refusals.ts';

const MOST_REMEMBERED = 1000;

export interface TableParts {
  readonly gateway: Gateway;
  /** Without them only sessions that a run holds are known. */
  readonly sessionDefaults?: SessionDefaults | undefined;
  /** Durable when it resolves. */
  readonly keep?: ((trajectory: Trajectory) => Promise<void>) | undefined;
  /** Asked where neither steps nor completion said what it earned. */
  readonly grade?: ((trajectory: FlowTrajectory) => Promise<Grade>) | undefined;
}

type Given = ConstructorParameters<typeof FlowTrajectory>[2];

export class TrajectoryTable {
  readonly #parts: TableParts;
  readonly #known = new WeakMap<object, FlowTrajectory>();
  readonly #ended = new Map<string, FlowTrajectory>();
  /** Opened here and not kept yet. */
  readonly #owed = new Set<FlowTrajectory>();

  constructor(parts: TableParts) {
    this.#parts = parts;
  }

  /** Throws as the gateway does: 404 for what the key is not for, 410 for what has ended. */
  find(grant: Grant, uid: string): FlowTrajectory {
    const found = this.get(grant, uid);
    if (found !== undefined) return found;
    if (grant.rollout !== undefined || this.#parts.gateway.hasEnded(uid)) throw sealed(uid);
    throw unknown(uid);
  }

  /** Undefined where there is none; throws where the key is for another. */
  get(grant: Grant, uid: string): FlowTrajectory | undefined {
    if (grant.rollout !== undefined && grant.rollout !== uid) throw unknown(uid);
    const session = this.#parts.gateway.session(uid);
    if (session === undefined) return this.#endedAs(uid);
    if (grant.session !== undefined && grant.session !== session.number) throw sealed(uid);
    const known = this.#known.get(session) ?? new FlowTrajectory(session, true);
    this.#known.set(session, known);
    return known;
  }

  /** The trajectory of this name, opened where it is new. */
  findOrOpen(grant: Grant, uid: string, given: Given): FlowTrajectory {
    const known = this.get(grant, uid);
    if (known !== undefined) return known;
    const isNew = grant.rollout === undefined && !this.#parts.gateway.hasEnded(uid);
    return isNew && this.#parts.sessionDefaults !== undefined ? this.open(uid, given) : this.find(grant, uid);
  }

  open(uid: string = randomBytes(16).toString('hex'), given: Given = {}): FlowTrajectory {
    const { sessionDefaults, gateway } = this.#parts;
    if (sessionDefaults === undefined)
      throw refused('not_found', 'this gateway opens no trajectories', { hint: 'use the key of a rollout' });
    const { observer } = sessionDefaults;
    const session = gateway.openRemote({
      ...sessionDefaults,
      identity: {
        rolloutId: uid,
        groupId: given.promptUid ?? uid,
        taskId: given.taskId ?? uid,
        purpose: given.purpose ?? 'train',
      },
      roles: {},
      signal: new AbortController().signal,
      observer: {
        ...(observer?.recorded === undefined ? {} : { recorded: observer.recorded.bind(observer) }),
        sealed: () => this.#remember(trajectory),
      },
    });
    const trajectory = new FlowTrajectory(session, false, given);
    this.#known.set(session, trajectory);
    this.#owed.add(trajectory);
    return trajectory;
  }

  /** Ends it and keeps it, where that is for us to do. Throws where it cannot be kept: then it may be tried again. */
  async complete(trajectory: FlowTrajectory): Promise<void> {
    if (trajectory.isHeld) return;
    trajectory.session.seal();
    trajectory.kept ??= this.#keep(trajectory);
    try {
      await trajectory.kept;
    } catch (thrown) {
      trajectory.kept = undefined;
      throw notKept(thrown);
    }
  }

  /** Steps are there when they are kept, where they end the trajectory; else with the session. */
  async take(trajectory: FlowTrajectory, steps: readonly FlowStep[]): Promise<void> {
    trajectory.take(steps);
    // What somebody else sent first is there when it is kept for him.
    if (trajectory.kept !== undefined) return await this.complete(trajectory);
    if (!steps.some(({ isLast }) => isLast)) return;
    const before = trajectory.completion;
    trajectory.completion ??= { reward: undefined, error: undefined, turns: trajectory.session.turns.length };
    try {
      await this.complete(trajectory);
    } catch (thrown) {
      trajectory.completion = before;
      trajectory.untake(steps);
      throw thrown;
    }
  }

  /** Keeps what was opened here and is not kept yet, complete or not. Throws if one cannot be kept. */
  async drain(): Promise<void> {
    for (const { session } of this.#owed) session.seal();
    await Promise.all([...this.#owed].map((trajectory) => this.complete(trajectory).catch(unlessNotTaken)));
  }

  /** What was kept without being complete is what it is: whatever came now would be acknowledged and lost. */
  #endedAs(uid: string): FlowTrajectory | undefined {
    const ended = this.#ended.get(uid);
    if (ended?.kept !== undefined && ended.completion === undefined) throw sealed(uid);
    return ended;
  }

  #remember(trajectory: FlowTrajectory): void {
    this.#ended.set(trajectory.uid, trajectory);
    for (const [uid, { session }] of this.#ended) {
      if (this.#ended.size <= MOST_REMEMBERED) break;
      if (session !== trajectory.session) this.#ended.delete(uid);
    }
    // Idle, or its deadline has come. What cannot be kept now is tried again at the end.
    if (trajectory.completion === undefined) this.complete(trajectory).catch(() => undefined);
  }

  async #keep(trajectory: FlowTrajectory): Promise<void> {
    const { session } = trajectory;
    // Nobody did anything, and nobody said that it was over.
    if (trajectory.completion === undefined && session.turns.length === 0) return void this.#owed.delete(trajectory);
    const record = await this.#recordOf(trajectory);
    try {
      await this.#parts.keep?.(record);
    } catch (thrown) {
      // It never will be.
      if (refusalOf(thrown)?.row.code === 'group_closed') this.#owed.delete(trajectory);
      throw thrown;
    }
    this.#owed.delete(trajectory);
  }

  async #recordOf(trajectory: FlowTrajectory): Promise<Trajectory> {
    const { session, uid, metadata, steps, purpose, promptUid } = trajectory;
    const { trainedTurns } = flowResult(trajectory);
    const outcome = outcomeOf(trajectory);
    const endedAt = Date.now();
    return {
      rolloutId: uid,
      groupId: promptUid,
      taskId: trajectory.taskId ?? promptUid,
      purpose,
      outcome,
      grade: await this.#gradeOf(trajectory, outcome),
      turns: onlyTrained(session.turns, trainedTurns),
      ...(session.unanswered.length > 0 ? { unanswered: session.unanswered } : {}),
      ...(metadata === undefined && steps.length === 0 ? {} : { metadata: { ...metadata, ...stepsIn(trajectory) } }),
      startedAt: session.openedAt,
      endedAt,
    };
  }

  async #gradeOf(trajectory: FlowTrajectory, outcome: Outcome): Promise<Grade> {
    if (outcome.kind !== 'completed') return { kind: 'ungraded', why: outcome.kind };
    const { reward } = flowResult(trajectory);
    if (reward !== undefined) return { kind: 'graded', reward };
    return (await this.#parts.grade?.(trajectory)) ?? { kind: 'ungraded', why: 'nothing grades what is served' };
  }
}

/** Rewards and metadata as they were submitted. */
function stepsIn({ steps }: FlowTrajectory): Readonly<Record<string, Json>> {
  if (steps.length === 0) return {};
  const rows = steps.map(({ index, turn, reward, metadata }) => [
    String(index),
    { turn, ...(reward === undefined ? {} : { reward }), ...(metadata === undefined ? {} : { metadata }) },
  ]);
  return { steps: Object.fromEntries(rows) };
}

function outcomeOf({ session, completion }: FlowTrajectory): Outcome {
  if (completion?.error !== undefined) return { kind: 'failed', code: 'WORKFLOW_FAILED', message: completion.error };
  const outcome = outcomeByCalls(session);
  return outcome.kind === 'completed' && completion === undefined ? { kind: 'rejected', reason: 'never_completed' } : outcome;
}

function unknown(uid: string): Refusal {
  return refused('not_found', `no trajectory ${JSON.stringify(uid.slice(0, 128))} for this key`);
}

/** Whoever sent it was told. */
function unlessNotTaken(thrown: unknown): void {
  const isTold = thrown instanceof FlowRefusal && ['group_closed', 'pool_full'].includes(thrown.row.code);
  if (!isTold) throw thrown;
}

/** What is on the disk is whole or not there; with room again it works again. */
function notKept(thrown: unknown): Error {
  const refusal = refusalOf(thrown);
  if (refusal !== undefined) return refusal;
  if (thrown instanceof TrainyardError && thrown.code === 'STORE_CONFLICT') {
    return new FlowRefusal('trajectory_conflict', 'another trajectory of this name was kept before', {
      hint: 'use a new trajectory_uid',
    });
  }
  const isFull = /ENOSPC|SQLITE_FULL|disk is full/i.test(`${messageOf(thrown)} ${messageOf((thrown as Error).cause)}`);
  return new FlowRefusal(isFull ? 'store_full' : 'store_failed', `the trajectory could not be kept: ${messageOf(thrown)}`, {
    hint: 'nothing of it was written; send it again when there is room',
  });
}
