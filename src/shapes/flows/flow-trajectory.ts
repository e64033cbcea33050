/**
 * What the flow routes know about a trajectory beyond its session: registration, steps, completion, reward. Holds all rules about the order
 * of steps, and does no I/O.
 */
import { defined, sameJson } from '../../core/json.ts';
import type { ByName, Json, Purpose, Reward, Turn } from '../../core/types.ts';
import type { LiveSession } from '../../gateway/sessions.ts';
import type { Refusal } from '../../http/refusal.ts';
import { sideCalls } from '../../tokens/history.ts';
import { flowRefusal } from './flow-protocol.ts';

export interface FlowStep {
  readonly index: number;
  readonly turn: number;
  readonly reward: number | undefined;
  readonly isLast: boolean;
  readonly metadata: ByName<Json> | undefined;
}

interface Completion {
  readonly reward: number | undefined;
  readonly error: string | undefined;
  /** Number of turns at completion. Later turns are not part of the trajectory. */
  readonly turns: number;
}

export interface Beginning {
  readonly purpose?: Purpose | undefined;
  readonly promptUid?: string | undefined;
  readonly taskId?: string | undefined;
}

/** What a trajectory that was opened over HTTP has accepted since the last time. */
export interface FlowState extends Beginning {
  readonly metadata?: ByName<Json> | undefined;
  readonly steps: readonly FlowStep[];
}

/** The prompt segment of a base URL until the prompt is named. */
export const UNNAMED_PROMPT = '1';

export class FlowTrajectory {
  readonly session: LiveSession;
  /** Whether a run holds the session and decides about it. Otherwise it was opened over HTTP, and these routes store it. */
  readonly isHeld: boolean;
  /** Turns of `/generate`, by index: a flow submits those that are to be trained. */
  readonly generated = new Set<number>();
  metadata: ByName<Json> | undefined;
  taskId: string | undefined;
  completion: Completion | undefined;
  /** Set once storing begins; resolves when the trajectory is durable. */
  kept: Promise<void> | undefined;
  /** How much of it is in a journal. */
  journaled: { readonly said?: string; readonly steps: number } = { steps: 0 };
  #purpose: Purpose | undefined;
  #promptUid: string | undefined;
  /** The flow's own name for a trajectory that a run holds. */
  #ownName: string | undefined;
  readonly #steps: FlowStep[] = [];

  /** `beginning` is absent if a run holds the session. */
  constructor(session: LiveSession, beginning?: Beginning) {
    this.session = session;
    this.isHeld = beginning === undefined;
    const { groupId: promptUid, ...held } = session.spec.identity;
    const own: Beginning = beginning ?? { ...held, promptUid };
    this.#purpose = own.purpose;
    this.#promptUid = own.promptUid;
    this.taskId = own.taskId;
  }

  get uid(): string {
    return this.session.rolloutId;
  }

  get purpose(): Purpose {
    return this.#purpose ?? 'train';
  }

  /** A trajectory whose prompt is never named forms its own group: unrelated prompts must not be compared. */
  get promptUid(): string {
    return this.#promptUid ?? this.uid;
  }

  get names(): Omit<FlowState, 'steps'> {
    return { purpose: this.#purpose, promptUid: this.#promptUid, taskId: this.taskId, metadata: this.metadata };
  }

  /** What no journal has yet. */
  get unsaid(): FlowState {
    const { names, journaled } = this;
    return { ...(JSON.stringify(names) !== journaled.said && names), steps: this.#steps.slice(journaled.steps) };
  }

  get steps(): readonly FlowStep[] {
    return this.#steps;
  }

  /** What its registration said, and its steps by index: graders see it, and it is stored. */
  get saidOfItself(): ByName<Json> | undefined {
    if (this.#steps.length === 0) return this.metadata;
    const rows = this.#steps.map(({ index, turn, reward, metadata }) => [index, defined({ turn, reward, metadata })]);
    return { ...this.metadata, steps: Object.fromEntries(rows) as Json };
  }

  /** If no steps were submitted, every turn of a black box counts as one. */
  get stepCount(): number {
    return this.trainedTurns?.length ?? this.session.turns.length;
  }

  /**
   * Indices of the trained turns. Undefined: all of them. Without steps, those that an agent made below a base URL, which knows of no steps.
   * On a server every other turn is of `/generate`, also one that an earlier process recorded.
   */
  get trainedTurns(): readonly number[] | undefined {
    if (this.#steps.length > 0) return this.#steps.map(({ turn }) => turn);
    const { turns } = this.session;
    const isAgents = ({ index, request }: Turn) => !this.generated.has(index) && (this.isHeld || request.dialect !== undefined);
    const trained = turns.slice(0, this.completion?.turns).filter(isAgents);
    return trained.length < turns.length ? trained.map(({ index }) => index) : undefined;
  }

  /** The text of the last trained turn that is no side call, or, if nothing is trained, of the last turn. */
  get output(): string | undefined {
    const { session, trainedTurns: trained } = this;
    const aside = sideCalls(session.turns);
    const counts = ({ index }: Turn) => (trained?.includes(index) ?? true) && !aside.has(index);
    return (session.turns.findLast(counts) ?? session.turns.at(-1))?.response.content ?? undefined;
  }

  /**
   * Each turn is credited with everything earned from it on; the completion's reward belongs to the last step. The value is the sum. If
   * only the end was rewarded, all turns get the same, and `byTurn` is absent. Undefined if no reward was given: a grader may grade.
   */
  get reward(): Reward | undefined {
    const atTheEnd = this.completion?.reward;
    if (atTheEnd === undefined && this.#steps.every(({ reward }) => reward === undefined)) return undefined;
    let value = atTheEnd ?? 0;
    const fromThere = this.#steps.toReversed().map((step) => {
      value += step.reward ?? 0;
      return [String(step.turn), value] as const;
    });
    const isSame = fromThere.every(([, earned]) => earned === value);
    return { value, ...(isSame ? {} : { byTurn: Object.fromEntries(fromThere.toReversed()) }), source: 'workflow' };
  }

  /** In a run, a flow may choose the uids itself, as on a server; a rollout is still one trajectory. Throws trajectory_conflict. */
  isCalled(name: string): void {
    if (name === this.uid) return;
    this.#ownName ??= name;
    if (this.#ownName === name) return;
    throw flowRefusal('trajectory_conflict', `trajectory ${this.#ownName} is not also ${name}: a rollout is one trajectory`, {
      hint: "use one trajectory uid in a flow's run: fields.trajectoryUid, or one of your own",
      param: 'trajectory_uid',
    });
  }

  /** The first caller to name the prompt decides. Throws trajectory_conflict. */
  isOfPrompt(promptUid: string): void {
    this.checkPrompt(promptUid);
    if (promptUid !== UNNAMED_PROMPT) this.#promptUid ??= promptUid;
  }

  checkPrompt(promptUid: string): void {
    if (promptUid === UNNAMED_PROMPT && !this.isHeld) return;
    // The run decides the group, whatever a flow with names of its own calls it.
    if (this.#ownName !== undefined) return;
    if (this.#promptUid === undefined || this.#promptUid === promptUid) return;
    const found = `trajectory ${this.uid} belongs to prompt ${this.#promptUid}, not ${promptUid}`;
    throw flowRefusal('trajectory_conflict', found, { param: 'prompt_uid' });
  }

  /** The first caller to name the purpose decides. Throws trajectory_conflict. */
  isFor(purpose: Purpose | undefined): void {
    this.checkPurpose(purpose);
    this.#purpose ??= purpose;
  }

  checkPurpose(purpose: Purpose | undefined): void {
    if (purpose === undefined || this.#purpose === undefined || this.#purpose === purpose) return;
    // The protocol's default, which flows write out: an evaluation stays one.
    if (this.isHeld && purpose === 'train') return;
    throw flowRefusal('trajectory_conflict', `trajectory ${this.uid} is for ${this.#purpose}, not for ${purpose}`, {
      hint: 'the channel is fixed when the trajectory begins; leave it out',
      param: 'channel',
    });
  }

  /** Returns the new steps of a submission without accepting them. Throws step_conflict or trajectory_complete. */
  newSteps(given: readonly FlowStep[]): readonly FlowStep[] {
    const staged = [...this.#steps];
    for (const step of given.toSorted((a, b) => a.index - b.index)) {
      const known = staged[step.index];
      if (known === undefined) this.#stage(staged, step);
      else if (!sameJson(known, step)) throw this.#conflict(`step ${step.index} was submitted before with something else in it`);
    }
    return staged.slice(this.#steps.length);
  }

  #stage(staged: FlowStep[], step: FlowStep): void {
    const last = staged.findLast(({ isLast }) => isLast);
    if (last !== undefined || this.completion !== undefined) {
      const tooLate = `trajectory ${this.uid} is complete; step ${step.index} comes too late`;
      const found = last && step.isLast ? `steps ${last.index} and ${step.index} are both the last` : tooLate;
      throw flowRefusal('trajectory_complete', found, { param: 'steps' });
    }
    const hint = 'submit steps in order, from 0, without gaps';
    if (step.index !== staged.length) throw this.#conflict(`step ${step.index} comes before step ${staged.length}`, hint);
    if (staged.some(({ turn }) => turn === step.turn)) throw this.#conflict('one generation is used in two steps');
    staged.push(step);
  }

  take(steps: readonly FlowStep[]): void {
    this.#steps.push(...steps);
  }

  /** Undoes the latest `take`, if its steps could not be stored. */
  untake(steps: readonly FlowStep[]): void {
    this.#steps.length -= steps.length;
  }

  #conflict(message: string, hint?: string): Refusal {
    return flowRefusal('step_conflict', `trajectory ${this.uid}: ${message}`, { hint, param: 'steps' });
  }
}

/** Whether the turn has exactly these ids. Ids that are not given are not compared. */
export function hasIds(
  { promptIds, sampledIds }: Turn,
  prompt: readonly number[] | null | undefined,
  response: readonly number[] | null | undefined,
): boolean {
  const isSame = (given: readonly number[], ids: Int32Array) =>
    given.length === ids.length && given.every((id, i) => id === ids[i]);
  return (prompt == null || isSame(prompt, promptIds)) && (response == null || isSame(response, sampledIds));
}
