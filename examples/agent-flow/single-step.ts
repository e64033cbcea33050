/**
 * A white-box flow of one question and one answer: it sorts a customer's message.
 *
 *     trainyard train examples/agent-flow/single-step.ts --tasks examples/triage/train.jsonl
 */
import { defineGrader } from 'trainyard';
import { type FlowFields, type SamplingParams, SingleStepSingleTurnAgentFlow, Step } from 'trainyard/agent-flow';

export default class MyAgentFlow extends SingleStepSingleTurnAgentFlow {
  override async run(samplingParams: SamplingParams, fields: FlowFields): Promise<number> {
    const { trajectoryUid, promptUid, rawPrompt } = fields;
    const { responseIds, promptIds } = await this.gatewayGenerate({
      ...samplingParams,
      trajectoryUid,
      promptUid,
      messages: [
        { role: 'system', content: 'Sort the message: billing, shipping, returns or repairs?' },
        { role: 'user', content: rawPrompt },
      ],
    });
    // Without a reward of its own the grader below decides; `reward: 0` would be a reward.
    const step = new Step({ promptIds, responseIds, trajectoryUid, promptUid, stepIndex: 0, isLast: true });
    await this.gatewaySubmitSteps([step]);
    return 1;
  }
}

/** The model ends with the queue: `Wish: returns`. */
export const grader = defineGrader(({ task, output }) => (String(output).match(/\w+$/)?.[0] === task.answer ? 1 : 0));
