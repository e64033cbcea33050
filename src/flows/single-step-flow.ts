/** One prompt, one answer, one step: for tasks that are each a question by themselves. Overriding `run` makes it another flow. */
import { AgentFlowBase } from './agent-flow-base.ts';
import { register } from './flow-registry.ts';
import type { FlowFields } from './flow-types.ts';
import type { SamplingParams } from './gateway-client.ts';
import { Step } from './step.ts';

export class SingleStepSingleTurnAgentFlow<Config = unknown, Row extends object = Record<never, never>> extends AgentFlowBase<
  Config,
  Row
> {
  async run(samplingParams: SamplingParams, fields: FlowFields<Row>): Promise<number> {
    const { trajectoryUid, promptUid, prompt: messages } = fields;
    const { promptIds, responseIds, generationId } = await this.gatewayGenerate({
      ...samplingParams,
      trajectoryUid,
      promptUid,
      messages,
    });
    const step = new Step({ promptIds, responseIds, generationId, trajectoryUid, promptUid, stepIndex: 0, isLast: true });
    await this.gatewaySubmitSteps([step]);
    return 1;
  }
}

register('single_step_single_turn_agent')(SingleStepSingleTurnAgentFlow);
