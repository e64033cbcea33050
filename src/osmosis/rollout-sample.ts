/**
 * One conversation of a rollout as graders see it. What is assigned is checked at once: a reward that is no finite number is refused where
 * it is given, not where it would be trained.
 */
import { describeValue } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Json, Message } from '../core/types.ts';

export interface RolloutSampleFields {
  readonly id: string;
  readonly messages: readonly Message[];
  readonly label?: Json | null;
  readonly reward?: number | null;
  readonly removeSample?: boolean;
  readonly metrics?: Record<string, number>;
  readonly extraFields?: Record<string, unknown>;
}

export class RolloutSample {
  /** The name of the agent or session. */
  readonly id: string;
  readonly messages: readonly Message[];
  readonly label: Json | null;
  /** Numbers for reports; those that are not finite are left out of them. */
  readonly metrics: Record<string, number>;
  readonly extraFields: Record<string, unknown>;
  #reward: number | null = null;
  #removeSample = false;

  constructor(fields: RolloutSampleFields) {
    if (typeof fields.id !== 'string' || fields.id === '') throw bad('id', 'a name', fields.id);
    if (!Array.isArray(fields.messages)) throw bad('messages', 'a list of messages', fields.messages);
    this.id = fields.id;
    this.messages = fields.messages;
    this.label = fields.label ?? null;
    this.metrics = { ...fields.metrics };
    this.extraFields = { ...fields.extraFields };
    this.reward = fields.reward ?? null;
    this.removeSample = fields.removeSample ?? false;
  }

  /** Finite; null: not graded yet. */
  get reward(): number | null {
    return this.#reward;
  }

  set reward(reward: number | null) {
    if (reward !== null && !Number.isFinite(reward)) throw bad('reward', 'a finite number or null', reward, 'GRADER_BAD_REWARD');
    this.#reward = reward;
  }

  /** Takes the sample out: it needs no reward, and none of its turns is trained. */
  get removeSample(): boolean {
    return this.#removeSample;
  }

  set removeSample(remove: boolean) {
    if (typeof remove !== 'boolean') throw bad('removeSample', 'true or false', remove);
    this.#removeSample = remove;
  }
}

function bad(field: string, expected: string, found: unknown, code: 'GRADER_BAD_REWARD' | 'GRADER_FAILED' = 'GRADER_FAILED') {
  return new TrainyardError(code, `the ${field} of a sample: expected ${expected}, found ${describeValue(found)}`);
}
