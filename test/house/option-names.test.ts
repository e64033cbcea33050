/** In every shape of authoring: what is given under a name that nobody reads, such as Python's, is refused by that name. */
import { describe, expect, it } from 'vitest';
import { asWorkflow } from '../../src/core/define.ts';
import { agentWorkflow } from '../../src/shapes/areal/agent-workflow.ts';
import { AsyncRewardWrapper } from '../../src/shapes/areal/async-reward.ts';
import { engineOf, RolloutWorkflow } from '../../src/shapes/areal/rollout-workflow.ts';
import { AgentFlowManager } from '../../src/shapes/flows/flow-batch.ts';
import { flowRegistry } from '../../src/shapes/flows/flow-registry.ts';
import { generate, Step } from '../../src/shapes/flows/gateway-client.ts';
import { ConcurrencyConfig } from '../../src/shapes/osmosis/class-config.ts';
import { ModelTuner } from '../../src/shapes/tuner/model-tuner.ts';
import { Workflow, WorkflowOutput } from '../../src/shapes/tuner/workflow.ts';

const python = (fields: object): never => fields as never;
const reference = { module: import.meta.url, exportName: 'reward' };
const ctx = python({ model: () => ({ render: () => [1] }) });

class Targets extends Workflow {
  trainable_targets = ['clerk'];
  override async execute() {
    return { reward: 1 };
  }
}
class Discount extends RolloutWorkflow {
  turn_discount = 0.5;
  override async arunEpisode() {
    return null;
  }
}
class Accept extends RolloutWorkflow {
  should_accept(): boolean {
    return true;
  }
  override async arunEpisode() {
    return null;
  }
}

describe('a name of the other language is refused by name', () => {
  it.each<[string, () => unknown]>([
    ['isSuccess', () => new WorkflowOutput(python({ reward: 1, is_success: true }))],
    ['defaultModel', () => new ModelTuner(ctx, {}).registerModel('clerk', python({ default_model: () => 'hi' }))],
    ['trainableTargets', () => asWorkflow(Targets)],
    ['turnDiscount', () => agentWorkflow(async () => 1, python({ turn_discount: 0.5 }))],
    ['timeoutSeconds', () => new AsyncRewardWrapper(reference, python({ timeout_seconds: 3 }))],
    ['maxNewTokens', () => engineOf(ctx).engine.agenerate({ inputIds: [1], gconfig: python({ max_new_tokens: 3 }) })],
    ['turnDiscount', () => asWorkflow(new Discount())?.setup?.()],
    ['shouldAccept', () => asWorkflow(new Accept())?.setup?.()],
    ['timeoutMs', () => new AgentFlowManager(python({ flows: flowRegistry(), timeout_ms: 3 }))],
    ['maxTokens', () => generate(python({}), python({ messages: [], max_tokens: 3 }))],
    [
      'stepIndex',
      () => new Step(python({ promptIds: [1], responseIds: [1], trajectoryUid: 'a', promptUid: 'b', step_index: 1 })),
    ],
    ['maxConcurrent', () => new ConcurrencyConfig(python({ max_concurrent: 3 }))],
  ])('%s', async (ours, given) => {
    await expect((async () => await given())()).rejects.toThrow(`did you mean ${ours}?`);
  });

  it('but fields of one’s own are not', () => {
    class Own extends Workflow {
      _trainableTargets = [];
      game = 'go';
      override async execute() {
        return { reward: 1 };
      }
    }
    expect(asWorkflow(Own)?.name).toBe('Own');
  });
});
