/**
 * One step of a trajectory as a flow builds it: what the policy was shown, what it said, and what that earned. The twelve fields of the
 * wire format, checked when it is made, all mistakes at once; `generationId` says besides which generation it was.
 *
 * Log-probabilities and version are there because the format has them: what is trained is what the gateway recorded.
 */
import { describeValue, unknownOptions } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Json } from '../core/types.ts';

export interface StepFields {
  /** All tokens the policy was shown. */
  readonly promptIds: readonly number[];
  /** The tokens it sampled. */
  readonly responseIds: readonly number[];
  /** Earned at once; null: the grader says it for the whole trajectory. */
  readonly reward?: number | null | undefined;
  readonly multiModalData?: null | undefined;
  /** One for each of `responseIds`. */
  readonly rolloutLogProbs?: readonly number[] | null | undefined;
  readonly routedExperts?: null | undefined;
  readonly trajectoryUid: string;
  readonly promptUid: string;
  /** From 0, without gaps. */
  readonly stepIndex?: number;
  readonly policyVersion?: number;
  /** Completes the trajectory. */
  readonly isLast?: boolean;
  readonly metadata?: Readonly<Record<string, Json>> | null | undefined;
  /** As `gatewayGenerate` gave it. */
  readonly generationId?: string | undefined;
}

export class Step {
  readonly promptIds: readonly number[];
  readonly responseIds: readonly number[];
  readonly reward: number | null;
  readonly multiModalData: null;
  readonly rolloutLogProbs: readonly number[] | null;
  readonly routedExperts: null;
  readonly trajectoryUid: string;
  readonly promptUid: string;
  readonly stepIndex: number;
  readonly policyVersion: number;
  readonly isLast: boolean;
  readonly metadata: Readonly<Record<string, Json>> | null;
  readonly generationId: string | undefined;

  constructor(fields: StepFields) {
    const mistakes = mistakesIn(fields);
    if (mistakes.length > 0) throw new TrainyardError('WORKFLOW_BAD_RESULT', `not a step: ${mistakes.join('; also: ')}`);
    this.promptIds = fields.promptIds;
    this.responseIds = fields.responseIds;
    this.reward = fields.reward ?? null;
    this.multiModalData = null;
    this.rolloutLogProbs = fields.rolloutLogProbs ?? null;
    this.routedExperts = null;
    this.trajectoryUid = fields.trajectoryUid;
    this.promptUid = fields.promptUid;
    this.stepIndex = fields.stepIndex ?? 0;
    this.policyVersion = fields.policyVersion ?? 0;
    this.isLast = fields.isLast ?? false;
    this.metadata = fields.metadata ?? null;
    this.generationId = fields.generationId;
  }
}

/** As it is sent. */
export function wireOf(step: Step): object {
  return {
    prompt_ids: step.promptIds,
    response_ids: step.responseIds,
    reward: step.reward,
    multi_modal_data: step.multiModalData,
    rollout_log_probs: step.rolloutLogProbs,
    routed_experts: step.routedExperts,
    trajectory_uid: step.trajectoryUid,
    prompt_uid: step.promptUid,
    step_index: step.stepIndex,
    policy_version: step.policyVersion,
    is_last: step.isLast,
    metadata: step.metadata,
    ...(step.generationId === undefined ? {} : { generation_id: step.generationId }),
  };
}

const NAMES: readonly (keyof StepFields)[] = [
  ...(['promptIds', 'responseIds', 'reward', 'multiModalData', 'rolloutLogProbs', 'routedExperts', 'trajectoryUid'] as const),
  ...(['promptUid', 'stepIndex', 'policyVersion', 'isLast', 'metadata', 'generationId'] as const),
];

function mistakesIn(fields: StepFields): readonly string[] {
  if (typeof fields !== 'object' || fields === null) return [`expected an object, found ${describeValue(fields)}`];
  const given = fields as unknown as Readonly<Record<string, unknown>>;
  const mistakes = [...unknownOptions(given, NAMES, 'a step')];
  const check = (name: keyof StepFields, expected: string, isRight: (value: unknown) => boolean, isOptional = true): void => {
    const value = given[name];
    if ((isOptional && value == null) || isRight(value)) return;
    mistakes.push(`${name}: expected ${expected}, found ${describeValue(value)}`);
  };
  check('promptIds', 'token ids', isIds, false);
  check('responseIds', 'token ids', isIds, false);
  check('reward', 'a finite number or null', Number.isFinite);
  check('multiModalData', 'nothing: policies here read text only', () => false);
  check('routedExperts', 'nothing', () => false);
  check('rolloutLogProbs', 'finite numbers up to 0', (value) => isList(value, (one) => Number.isFinite(one) && Number(one) <= 0));
  check('trajectoryUid', 'a name', isName, false);
  check('promptUid', 'a name', isName, false);
  check('stepIndex', 'a whole number from 0 up', isNatural);
  check('policyVersion', 'a whole number from 0 up', isNatural);
  check('isLast', 'true or false', (value) => typeof value === 'boolean');
  check('metadata', 'an object', (value) => typeof value === 'object' && !Array.isArray(value));
  check('generationId', 'a text', isName);
  const { rolloutLogProbs, responseIds } = fields;
  if (mistakes.length === 0 && rolloutLogProbs != null && rolloutLogProbs.length !== responseIds.length) {
    mistakes.push(
      `rolloutLogProbs: expected ${responseIds.length}, one for each of responseIds, found ${rolloutLogProbs.length}`,
    );
  }
  return mistakes;
}

const isNatural = (value: unknown): boolean => Number.isSafeInteger(value) && Number(value) >= 0;
const isName = (value: unknown): boolean => typeof value === 'string' && value !== '';
const isList = (value: unknown, isItem: (item: unknown) => boolean): boolean => Array.isArray(value) && value.every(isItem);
const isIds = (value: unknown): boolean => isList(value, isNatural) && (value as readonly unknown[]).length > 0;
