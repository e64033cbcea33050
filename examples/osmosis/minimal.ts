/** The smallest `AgentWorkflow`: one model call, no framework. Exporting the class is all it takes. */
import { AgentWorkflow, type AgentWorkflowContext } from 'trainyard/osmosis';

export { RightQueue } from './queue-grader.ts';

export class MyWorkflow extends AgentWorkflow {
  async run(ctx: AgentWorkflowContext): Promise<void> {
    const system = { role: 'system', content: 'Sort the message: billing, shipping, returns or repairs?' } as const;
    await ctx.model().generate({ messages: [system, ...ctx.prompt] });
  }
}
