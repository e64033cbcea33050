/**
 * The trajectories known to the flow routes: those of sessions that a run holds, and those opened over HTTP, which this table stores when
 * they complete. Remembers a bounded number of ended ones, so that repeated requests get the same response.
 */
import { randomBytes } from 'node:crypto';
import type { GraderRunner, SessionSpec } from '../../core/contracts.ts';
import { messageOf, TrainyardError } from '../../core/errors.ts';
import type { Grade, Json, Message, Outcome, Task, Trajectory } from '../../core/types.ts';
import type { SessionDefaults } from '../../gateway/control.ts';
import type { Gateway } from '../../gateway/gateway.ts';
import type { Grant } from '../../gateway/identity.ts';
import { type LiveSession, type RestoredSession, sealed } from '../../gateway/sessions.ts';
import { graderInput } from '../../grading/call.ts';
import { httpRefusal, Refusal } from '../../http/refusal.ts';
import { onlyTrained, outcomeByCalls, settle } from '../../rollout/record.ts';
import { flowRefusal } from './flow-protocol.ts';
import { type Beginning, type FlowState, type FlowStep, FlowTrajectory } from './flow-trajectory.ts';

const MOST_REMEMBERED = 1000;

/** Keeps trajectories that were opened over HTTP until they are stored. */
interface FlowJournal {
  /** For generation ids that outlive the process. */
  readonly secret: Uint8Array;
  /** On disk when it resolves, in the order of the calls. */
  said(session: LiveSession, unsaid: () => FlowState): Promise<void>;
  remove(sessionNumber: number): Promise<void>;
}

export interface TableParts {
  readonly gateway: Gateway;
  readonly grader?: GraderRunner | undefined;
  /** The task with its answer, which only the grader sees. */
  taskOf?(trajectory: FlowTrajectory): Task | undefined;
  /** Without it, only sessions that a run holds are known. */
  readonly sessionDefaults?: SessionDefaults | undefined;
  /** The trajectory is durable when this resolves. */
  readonly keep?: ((trajectory: Trajectory) => Promise<void>) | undefined;
  readonly journal?: FlowJournal | undefined;
}

export class TrajectoryTable {
  readonly #parts: TableParts;
  readonly #known = new WeakMap<object, FlowTrajectory>();
  readonly #ended = new Map<string, FlowTrajectory>();
  readonly #owed = new Set<FlowTrajectory>();

  constructor(parts: TableParts) {
    this.#parts = parts;
  }

  /** Throws like the gateway: 404 if the key does not cover the trajectory, 410 if it has ended. */
  find(grant: Grant, uid: string): FlowTrajectory {
    const found = this.get(grant, uid);
    if (found !== undefined) return found;
    if (grant.rollout !== undefined || this.#parts.gateway.hasEnded(uid)) throw sealed(uid);
    throw unknown(uid);
  }

  /** Undefined if the trajectory is unknown. Throws if the key is for another one. */
  get(grant: Grant, name: string): FlowTrajectory | undefined {
    const uid = grant.rollout ?? name;
    if (uid !== name && !this.#isOwnName(grant, name)) throw unknown(name);
    const session = this.#parts.gateway.session(uid);
    if (session === undefined) return this.#endedAs(uid);
    if (grant.session !== undefined && grant.session !== session.number) throw sealed(uid);
    const known = this.#known.get(session) ?? new FlowTrajectory(session);
    this.#known.set(session, known);
    known.isCalled(name);
    return known;
  }

  findOrOpen(grant: Grant, uid: string, beginning: Beginning): FlowTrajectory {
    const known = this.get(grant, uid);
    if (known !== undefined) return known;
    const isNew = grant.rollout === undefined && !this.#parts.gateway.hasEnded(uid);
    return isNew && this.#parts.sessionDefaults !== undefined ? this.open(beginning, uid) : this.find(grant, uid);
  }

  /** `restored`: what an earlier process had of its session. */
  open(beginning: Beginning, uid: string = randomBytes(16).toString('hex'), restored?: RestoredSession): FlowTrajectory {
    const { sessionDefaults, gateway } = this.#parts;
    if (sessionDefaults === undefined)
      throw httpRefusal('not_found', 'this gateway opens no trajectories', { hint: 'use the key of a rollout' });
    const { purpose = 'train', promptUid: groupId = uid, taskId = uid } = beginning;
    const { observer } = sessionDefaults;
    const spec: SessionSpec = {
      ...sessionDefaults,
      identity: { rolloutId: uid, groupId, taskId, purpose },
      roles: {},
      signal: new AbortController().signal,
      observer: {
        ...(observer?.recorded && { recorded: observer.recorded.bind(observer) }),
        sealed: () => this.#remember(trajectory),
      },
    };
    const session = restored === undefined ? gateway.openRemote(spec) : gateway.reopen(spec, true, restored);
    const trajectory = new FlowTrajectory(session, beginning);
    this.#known.set(session, trajectory);
    this.#owed.add(trajectory);
    return trajectory;
  }

  /** Goes on with a trajectory of an earlier process. `said`: to the journal; a step may be in it twice. */
  reopen(uid: string, said: readonly object[], restored: RestoredSession): FlowTrajectory {
    const states = said as readonly FlowState[];
    const steps = [...new Map(states.flatMap((state) => state.steps).map((step) => [step.index, step])).values()];
    const { metadata, ...beginning } = Object.assign({}, ...states) as FlowState;
    const trajectory = this.open(beginning, uid, restored);
    trajectory.take(steps);
    trajectory.metadata = metadata;
    trajectory.journaled = { steps: steps.length };
    return trajectory;
  }

  /** What it has accepted is on disk when this resolves. Without a journal, and in a run, it lives as long as the session. */
  async journal(trajectory: FlowTrajectory): Promise<void> {
    const { journal } = this.#parts;
    if (journal === undefined || trajectory.isHeld || trajectory.kept !== undefined) return;
    const said = JSON.stringify(trajectory.names);
    const count = trajectory.steps.length;
    if (trajectory.journaled.said === said && trajectory.journaled.steps >= count) return;
    await journal.said(trajectory.session, () => trajectory.unsaid);
    trajectory.journaled = { said, steps: Math.max(count, trajectory.journaled.steps) };
  }

  /** Seals and stores a trajectory, unless a run holds it. If it throws, the caller may retry. */
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

  /** Accepts steps. When this resolves, those that end the trajectory are stored, with it, and earlier ones in the journal. */
  async take(trajectory: FlowTrajectory, steps: readonly FlowStep[]): Promise<void> {
    trajectory.take(steps);
    // A repeated request while the trajectory is being stored: wait for that.
    if (trajectory.kept !== undefined) return await this.complete(trajectory);
    if (!steps.some(({ isLast }) => isLast)) return await this.journal(trajectory);
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

  /** Stores all remaining trajectories opened here, complete or not. Throws if one cannot be stored and its sender does not know. */
  async drain(): Promise<void> {
    for (const { session } of this.#owed) session.seal();
    const unlessTold = (thrown: unknown) => {
      const isTold = thrown instanceof Refusal && ['group_closed', 'pool_full'].includes(thrown.row.code);
      if (!isTold) throw thrown;
    };
    await Promise.all([...this.#owed].map((trajectory) => this.complete(trajectory).catch(unlessTold)));
  }

  /** Throws no_grader if there is no grader or no task. `messages`, `fields`: the conversation and metadata that the flow supplies. */
  async grade(trajectory: FlowTrajectory, messages?: readonly Message[], fields: Record<string, Json> = {}): Promise<Grade> {
    const { grader, taskOf } = this.#parts;
    if (grader === undefined) {
      const hint = 'export one from the entry, or serve with --entry and --tasks';
      throw flowRefusal('no_grader', 'there is no grader here', { hint });
    }
    const task = taskOf?.(trajectory);
    if (task === undefined) {
      const name = JSON.stringify(trajectory.taskId ?? trajectory.promptUid);
      const hint = 'say task_id at /init_trajectory, or use the id of a task as prompt_uid';
      throw flowRefusal('no_grader', `there is no task ${name} to grade by`, { hint });
    }
    const result = { metadata: { ...trajectory.saidOfItself, ...fields } };
    const input = graderInput(task, { turns: trajectory.session.turns, outcome: { kind: 'completed' }, result });
    const whole = messages ?? input.messages;
    const last = whole.findLast(({ role }) => role === 'assistant')?.content ?? undefined;
    return await grader.grade({ ...input, messages: whole, ...(last === undefined ? {} : { output: last }) });
  }

  /** A flow's key is for one rollout, which the flow may call by a name that is no other rollout's. */
  #isOwnName({ capability }: Grant, name: string): boolean {
    const { gateway } = this.#parts;
    return capability === 'flow' && gateway.session(name) === undefined && !gateway.hasEnded(name);
  }

  /** Throws if the trajectory was stored incomplete: further data would be acknowledged and lost. */
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
    // The session was idle or hit its deadline. If storing fails now, `drain` tries again.
    if (trajectory.completion === undefined) this.complete(trajectory).catch(() => undefined);
  }

  async #keep(trajectory: FlowTrajectory): Promise<void> {
    const { session, completion } = trajectory;
    // An unused trajectory that was never completed is not worth storing.
    const isNothing = completion === undefined && session.turns.length === 0;
    try {
      if (!isNothing) await this.#parts.keep?.(await this.#recordOf(trajectory));
      this.#owed.delete(trajectory);
      await this.#parts.journal?.remove(session.number);
    } catch (thrown) {
      // Its group is closed for good: no retry can succeed.
      if (thrown instanceof Refusal && thrown.row.code === 'group_closed') {
        this.#owed.delete(trajectory);
        await this.#parts.journal?.remove(session.number);
      }
      throw thrown;
    }
  }

  async #recordOf(trajectory: FlowTrajectory): Promise<Trajectory> {
    const { session, uid, saidOfItself: metadata, purpose, promptUid, taskId = promptUid, trainedTurns } = trajectory;
    const { unanswered, openedAt: startedAt } = session;
    const endedAt = Date.now();
    const outcome = outcomeOf(trajectory);
    const result = metadata === undefined ? {} : { metadata };
    const turns = onlyTrained(session.turns, trainedTurns);
    const identity = { rolloutId: uid, groupId: promptUid, taskId, purpose };
    const ended = { outcome, turns, unanswered, result, artifactsDir: null, startedAt, endedAt };
    return await settle(identity, ended, () => this.#gradeOf(trajectory, outcome));
  }

  async #gradeOf(trajectory: FlowTrajectory, outcome: Outcome): Promise<Grade> {
    const { grader, taskOf } = this.#parts;
    const { reward } = trajectory;
    if (outcome.kind !== 'completed') return { kind: 'ungraded', why: outcome.kind };
    if (reward !== undefined) return { kind: 'graded', reward };
    const canGrade = grader !== undefined && taskOf?.(trajectory) !== undefined;
    return canGrade ? await this.grade(trajectory) : { kind: 'ungraded', why: 'nothing grades what is served' };
  }
}

function outcomeOf({ session, completion }: FlowTrajectory): Outcome {
  if (completion?.error !== undefined) return { kind: 'failed', code: 'WORKFLOW_FAILED', message: completion.error };
  const outcome = outcomeByCalls(session);
  return outcome.kind === 'completed' && completion === undefined ? { kind: 'rejected', reason: 'never_completed' } : outcome;
}

function unknown(uid: string): Refusal {
  return httpRefusal('not_found', `no trajectory ${JSON.stringify(uid.slice(0, 128))} for this key`);
}

/** Writes are atomic, so the sender can retry once there is room. */
function notKept(thrown: unknown): Error {
  if (thrown instanceof Refusal) return thrown;
  if (thrown instanceof TrainyardError && thrown.code === 'STORE_CONFLICT') {
    const hint = 'use a new trajectory_uid';
    return flowRefusal('trajectory_conflict', 'another trajectory of this name was kept before', { hint });
  }
  const isFull = /ENOSPC|SQLITE_FULL|disk is full/i.test(`${messageOf(thrown)} ${messageOf((thrown as Error).cause)}`);
  return flowRefusal(isFull ? 'store_full' : 'store_failed', `the trajectory could not be kept: ${messageOf(thrown)}`, {
    hint: 'nothing of it was written; send it again when there is room',
  });
}
