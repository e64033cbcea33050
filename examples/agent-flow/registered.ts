/**
 * A flow under a name of its own choosing, by which tasks (`agent_name`) and the command line find it.
 *
 *     trainyard train examples/agent-flow/registered.ts --flow my_agent_flow --tasks examples/triage/train.jsonl
 */
import { defineGrader } from 'trainyard';
import { AgentFlowBase, type FlowFields, register, type SamplingParams } from 'trainyard/agent-flow';

class MyAgentFlow extends AgentFlowBase {
  async run(samplingParams: SamplingParams, { trajectoryUid, promptUid, prompt }: FlowFields): Promise<number> {
    const system = { role: 'system', content: 'Sort the message: billing, shipping, returns or repairs?' } as const;
    const messages = [system, ...prompt];
    const said = await this.gatewayGenerate({ ...samplingParams, trajectoryUid, promptUid, messages });
    // The grader, asked on the way: the answer stays with it.
    const { reward } = await this.gatewayComputeReward({
      trajectoryUid,
      messages: [...messages, { role: 'assistant', content: said.text }],
    });
    const { promptIds, responseIds } = said;
    await this.gatewaySubmitSteps([{ promptIds, responseIds, trajectoryUid, promptUid, reward, isLast: true }]);
    return 1;
  }
}

register('my_agent_flow')(MyAgentFlow);

export const grader = defineGrader(({ task, output }) => (String(output).match(/\w+$/)?.[0] === task.answer ? 1 : 0));
