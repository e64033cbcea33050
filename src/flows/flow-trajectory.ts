/**
 * What the flow routes know of one trajectory beyond its session: what it was registered as, which of its turns are steps, and whether it
 * is complete. All rules about the order of steps stand here; nothing here does I/O.
 *
 * A submission is looked at as a whole before any of it is taken.
 */
import { sameJson } from '../core/json.ts';
import type { Json, Purpose, Turn } from '../core/types.ts';
import type { LiveSession } from '../gateway/sessions.ts';
import { FlowRefusal } from './refusals.ts';

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
  /** Turns that there were; what comes later is no part of it. */
  readonly turns: number;
}

export class FlowTrajectory {
  readonly session: LiveSession;
  /** Whether a run holds the session and decides what it is; else it was opened over HTTP, and this does. */
  readonly isHeld: boolean;
  metadata: Readonly<Record<string, Json>> | undefined;
  taskId: string | undefined;
  completion: Completion | undefined;
  /** Where it is being kept or is kept; settled when it is durable. */
  kept: Promise<void> | undefined;
  #purpose: Purpose | undefined;
  #promptUid: string | undefined;
  readonly #steps: FlowStep[] = [];

  constructor(session: LiveSession, isHeld: boolean, given: { purpose?: Purpose; promptUid?: string; taskId?: string } = {}) {
    this.session = session;
    this.isHeld = isHeld;
    const { purpose, groupId, taskId } = session.spec.identity;
    this.#purpose = isHeld ? purpose : given.purpose;
    this.#promptUid = isHeld ? groupId : given.promptUid;
    this.taskId = isHeld ? taskId : given.taskId;
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

  /** The first to say it decides; throws where it is something else already. */
  isOfPrompt(promptUid: string): void {
    this.checkPrompt(promptUid);
    if (promptUid !== UNNAMED_PROMPT) this.#promptUid ??= promptUid;
  }

  checkPrompt(promptUid: string): void {
    if (promptUid === UNNAMED_PROMPT && !this.isHeld) return;
    if (this.#promptUid !== undefined && this.#promptUid !== promptUid) {
      throw new FlowRefusal(
        'trajectory_conflict',
        `trajectory ${this.uid} belongs to prompt ${this.#promptUid}, not ${promptUid}`,
        {
          param: 'prompt_uid',
        },
      );
    }
  }

  checkPurpose(purpose: Purpose | undefined): void {
    if (purpose === undefined || this.#purpose === undefined || this.#purpose === purpose) return;
    throw new FlowRefusal('trajectory_conflict', `trajectory ${this.uid} is for ${this.#purpose}, not for ${purpose}`, {
      hint: 'the channel is fixed when the trajectory begins; leave it out',
      param: 'channel',
    });
  }

  /** Once it has turns, what it is for is settled. */
  isFor(purpose: Purpose | undefined): void {
    this.checkPurpose(purpose);
    if (purpose !== undefined) this.#purpose = purpose;
  }

  /** The steps of a submission that are new. Throws step_conflict, and then none is taken. */
  newSteps(given: readonly FlowStep[]): readonly FlowStep[] {
    const staged = [...this.#steps];
    for (const step of given.toSorted((a, b) => a.index - b.index)) {
      const known = staged[step.index];
      if (known !== undefined) {
        if (!sameJson(known, step)) throw this.#conflict(`step ${step.index} was submitted before with something else in it`);
      } else this.#stage(staged, step);
    }
    return staged.slice(this.#steps.length);
  }

  #stage(staged: FlowStep[], step: FlowStep): void {
    const last = staged.findLast(({ isLast }) => isLast);
    if (last !== undefined || this.completion !== undefined) {
      const what = step.isLast && last !== undefined ? `steps ${last.index} and ${step.index} are both the last` : undefined;
      throw new FlowRefusal(
        'trajectory_complete',
        what ?? `trajectory ${this.uid} is complete; step ${step.index} comes too late`,
        {
          param: 'steps',
        },
      );
    }
    if (step.index !== staged.length) {
      throw this.#conflict(
        `step ${step.index} comes before step ${staged.length}`,
        'submit steps in order, from 0, without gaps',
      );
    }
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

  isStep(turn: Turn): boolean {
    return this.#steps.some((step) => step.turn === turn.index);
  }

  #conflict(message: string, hint?: string): FlowRefusal {
    return new FlowRefusal('step_conflict', `trajectory ${this.uid}: ${message}`, {
      ...(hint === undefined ? {} : { hint }),
      param: 'steps',
    });
  }
}

/** What a base URL says while nobody has named its prompt. */
export const UNNAMED_PROMPT = '1';
