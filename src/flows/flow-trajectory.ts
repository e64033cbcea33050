/**
 * One trajectory as the flow routes know it beyond its session: what it was registered as, which of its turns are steps, whether it is
 * complete, and what that comes to. All rules about the order of steps are here; nothing here does I/O.
 *
 * A submission is looked at as a whole before any of it is taken.
 */
import { sameJson } from '../core/json.ts';
import type { Json, Purpose, Reward, Turn } from '../core/types.ts';
import type { LiveSession } from '../gateway/sessions.ts';
import type { Refusal } from '../http/refusal.ts';
import { flowRefusal } from './flow-protocol.ts';

export interface FlowStep {
  readonly index: number;
  /** Index of the turn. */
  readonly turn: number;
  readonly reward: number | undefined;
  readonly isLast: boolean;
  readonly metadata: Readonly<Record<string, Json>> | undefined;
}

export interface Completion {
  readonly reward: number | undefined;
  readonly error: string | undefined;
  /** How many turns there were; later ones are no part of the trajectory. */
  readonly turns: number;
}

/** What the caller said when the trajectory began. */
export interface Beginning {
  readonly purpose?: Purpose | undefined;
  readonly promptUid?: string | undefined;
  readonly taskId?: string | undefined;
}

/** What a base URL says while nobody has named its prompt. */
export const UNNAMED_PROMPT = '1';

export class FlowTrajectory {
  readonly session: LiveSession;
  /** Whether a run holds the session and decides what it is; else it was opened over HTTP, and is kept by these routes. */
  readonly isHeld: boolean;
  metadata: Readonly<Record<string, Json>> | undefined;
  taskId: string | undefined;
  completion: Completion | undefined;
  /** Where it is being kept or is kept; settled when it is durable. */
  kept: Promise<void> | undefined;
  #purpose: Purpose | undefined;
  #promptUid: string | undefined;
  readonly #steps: FlowStep[] = [];

  /** `beginning`: absent where a run holds the session. */
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

  /** Where nobody named its prompt it is alone in a group: unrelated prompts must not be compared. */
  get promptUid(): string {
    return this.#promptUid ?? this.uid;
  }

  get steps(): readonly FlowStep[] {
    return this.#steps;
  }

  /** Where none were submitted, every turn is one. */
  get stepCount(): number {
    return this.#steps.length > 0 ? this.#steps.length : (this.completion?.turns ?? this.session.turns.length);
  }

  /** Turns that are trained; undefined: all of them. */
  get trainedTurns(): readonly number[] | undefined {
    if (this.#steps.length > 0) return this.#steps.map(({ turn }) => turn);
    const { turns } = this.session;
    const count = this.completion?.turns ?? turns.length;
    return count < turns.length ? turns.slice(0, count).map(({ index }) => index) : undefined;
  }

  /** The last that the policy said in what is trained. */
  get output(): string | undefined {
    const { turns } = this.session;
    const { trainedTurns: trained } = this;
    return turns[trained === undefined ? turns.length - 1 : Math.max(...trained)]?.response.content ?? undefined;
  }

  /**
   * The reward of a step is what it earned at once; the completion's belongs to the last step. A turn is credited with all that was earned
   * from it on, and the trajectory's value is the sum. Where only the end was rewarded that is the same for every turn, and nothing is said
   * by turn. Undefined: nobody gave a reward, so a grader may.
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

  /** The first to name its prompt decides. Throws trajectory_conflict. */
  isOfPrompt(promptUid: string): void {
    this.checkPrompt(promptUid);
    if (promptUid !== UNNAMED_PROMPT) this.#promptUid ??= promptUid;
  }

  checkPrompt(promptUid: string): void {
    if (promptUid === UNNAMED_PROMPT && !this.isHeld) return;
    if (this.#promptUid === undefined || this.#promptUid === promptUid) return;
    const found = `trajectory ${this.uid} belongs to prompt ${this.#promptUid}, not ${promptUid}`;
    throw flowRefusal('trajectory_conflict', found, { param: 'prompt_uid' });
  }

  /** The first to name its purpose decides. Throws trajectory_conflict. */
  isFor(purpose: Purpose | undefined): void {
    this.checkPurpose(purpose);
    this.#purpose ??= purpose;
  }

  checkPurpose(purpose: Purpose | undefined): void {
    if (purpose === undefined || this.#purpose === undefined || this.#purpose === purpose) return;
    throw flowRefusal('trajectory_conflict', `trajectory ${this.uid} is for ${this.#purpose}, not for ${purpose}`, {
      hint: 'the channel is fixed when the trajectory begins; leave it out',
      param: 'channel',
    });
  }

  /** The steps of a submission that are new. Throws step_conflict or trajectory_complete, and then none is taken. */
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

  /** What was taken last could not be kept. */
  untake(steps: readonly FlowStep[]): void {
    this.#steps.length -= steps.length;
  }

  #conflict(message: string, hint?: string): Refusal {
    return flowRefusal('step_conflict', `trajectory ${this.uid}: ${message}`, { hint, param: 'steps' });
  }
}

/** Whether a turn has exactly these ids; those that are not given are not looked at. */
export function hasIds(
  { promptIds, sampledIds }: Turn,
  prompt: readonly number[] | null | undefined,
  response: readonly number[] | null | undefined,
): boolean {
  const isSame = (given: readonly number[], ids: Int32Array): boolean =>
    given.length === ids.length && given.every((id, i) => id === ids[i]);
  return (prompt == null || isSame(prompt, promptIds)) && (response == null || isSame(response, sampledIds));
}
