/**
 * A white-box flow of several turns: the policy calls tools in its text, the flow runs them, and each turn is a step.
 *
 *     trainyard train examples/agent-flow/multi-step.ts --tasks examples/shop/train.jsonl
 */
import { type FlowFields, type FlowMessage, MultiStepAgentFlow, type SamplingParams, Step } from 'trainyard/agent-flow';
import { SYSTEM_PROMPT, shopTools } from './shop.ts';

export { grader } from './shop.ts';

export default class ToolAgentFlow extends MultiStepAgentFlow {
  override readonly tools = shopTools;

  override async run(samplingParams: SamplingParams, fields: FlowFields): Promise<number> {
    const { trajectoryUid, promptUid } = fields;
    const messages: FlowMessage[] = [
      { role: 'system', content: SYSTEM_PROMPT },
      { role: 'user', content: fields.rawPrompt },
    ];
    let stepIndex = 0;

    while (true) {
      const { text, responseIds, promptIds } = await this.gatewayGenerate({
        ...samplingParams,
        trajectoryUid,
        promptUid,
        messages,
        tools: this.toolSchemas,
      });
      const isLast = this.isTerminal(text) || stepIndex === 3;

      const step = new Step({ promptIds, responseIds, trajectoryUid, promptUid, stepIndex, isLast });
      await this.gatewaySubmitSteps([step]);

      if (isLast) break;

      messages.push({ role: 'assistant', content: text });
      const toolResult = await this.executeTool(text);
      messages.push({ role: 'tool', content: toolResult });
      stepIndex += 1;
    }

    return stepIndex + 1;
  }
}
