/**
 * The model of an episode. Used directly it is the policy; `registerModel` and `getModel` tell it whose call it is, so that single roles
 * can be trained while the others are played by their default models.
 *
 * All roles share one policy. Which of them are trained is asked at every call, so a change takes effect at once; what the run says
 * (`--trainable`) wins over what the workflow says.
 */
import type { WorkflowContext } from '../core/contracts.ts';
import { described } from '../core/define.ts';
import { checkNames, describeValue } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { type DefaultModelGiven, defaultModelOf, modelNameOf } from './default-model.ts';
import { TunedModel } from './tuned-model.ts';

/** Whoever says which roles are trained; undefined: all. */
export interface Targets {
  readonly trainableTargets?: readonly string[] | undefined;
}

export interface RegisterOptions {
  /** Who plays the role while it is not trained; absent: the policy, untrained. */
  readonly defaultModel?: DefaultModelGiven | undefined;
}

export class ModelTuner extends TunedModel {
  readonly #rollout: WorkflowContext;
  readonly #targets: Targets;
  readonly #registered = new Map<string, { readonly model: TunedModel; readonly defaultModel: string }>();
  #mistake: TrainyardError | undefined;
  #wasAsked = false;
  #wasTrained = false;

  constructor(rollout: WorkflowContext, targets: Targets) {
    // The role without a name: nobody but the targets can say whether it is trained.
    super(rollout.model(undefined, { trainable: () => this.#isTrained(this.role) }));
    this.#rollout = rollout;
    this.#targets = targets;
  }

  /** Gives the role's model. Again with a default model of another name is an error: which one plays would depend on the order. */
  registerModel(role: string, options: RegisterOptions = {}): TunedModel {
    checkNames(options, ['defaultModel'], 'registerModel', 'WORKFLOW_INVALID');
    if (typeof role !== 'string' || role === '') {
      throw new TrainyardError('WORKFLOW_INVALID', `registerModel was given role ${described(role)}, expected a name`);
    }
    const player = options.defaultModel === undefined ? undefined : defaultModelOf(options.defaultModel, role);
    const name = player === undefined ? 'none, the policy itself' : modelNameOf(player);
    const was = this.#registered.get(role)?.defaultModel;
    if (was !== undefined && was !== name) {
      throw new TrainyardError(
        'WORKFLOW_INVALID',
        `role ${JSON.stringify(role)} has two default models: WAS ${was}, NOW ${name}`,
        {
          hint: 'give every registration of a role the same default model, or use another role',
        },
      );
    }
    const trainable = (): boolean => this.#isTrained(role);
    const handle = this.#rollout.model(role, { trainable, ...(player === undefined ? {} : { default: player }) });
    this.#registered.set(role, { model: new TunedModel(handle), defaultModel: name });
    return this.getModel(role);
  }

  getModel(role: string): TunedModel {
    const registered = this.#registered.get(role);
    if (registered !== undefined) return registered.model;
    const roles = [...this.#registered.keys()].join(', ') || 'none';
    throw new TrainyardError('WORKFLOW_INVALID', `role ${describeValue(role)} is not registered; registered are ${roles}`, {
      hint: `call modelTuner.registerModel(${describeValue(role)}, { defaultModel }) first`,
    });
  }

  /** What is wrong with the targets, where a call found that out: the cause of whatever an agent's framework made of it. */
  get mistake(): TrainyardError | undefined {
    return this.#mistake;
  }

  /** At the end of an episode: throws what is wrong with its targets. */
  check(): void {
    if (this.#mistake !== undefined) throw this.#mistake;
    const { trainableTargets: targets } = this.#targets;
    const roles = [...this.#registered.keys(), this.role];
    // What the targets are now need not be what they were when somebody spoke.
    if (!this.#wasAsked || this.#wasTrained || this.#rollout.purpose !== 'train' || targets === undefined) return;
    if (targets.some((target) => roles.includes(target))) return;
    throw new TrainyardError(
      'WORKFLOW_INVALID',
      `no role is trained: trainableTargets is ${targets.join(', ')}, and the roles are ${roles.join(', ')}`,
      { hint: 'name roles that the workflow registers; register them also in episodes in which they do not speak' },
    );
  }

  #isTrained(role: string): boolean {
    this.#wasAsked = true;
    const { trainableTargets: targets } = this.#targets;
    if (targets === undefined || targets === null) return true;
    if (targets.length > 0 || this.#rollout.purpose !== 'train') {
      const isTrained = targets.includes(role);
      this.#wasTrained ||= isTrained;
      return isTrained;
    }
    this.#mistake = new TrainyardError('WORKFLOW_INVALID', 'no role is trained: trainableTargets is an empty list', {
      hint: 'leave trainableTargets out to train every role, or name some; --trainable names them for one run',
    });
    throw this.#mistake;
  }
}
