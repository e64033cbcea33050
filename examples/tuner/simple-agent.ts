/**
 * The smallest change: the agent gets `modelTuner` where it had its model. It sorts customers' messages into queues.
 *
 * Before: `new ToolLoopAgent({ model: openai('gpt-5-mini'), instructions: … })`.
 */
import { ToolLoopAgent } from 'ai';
import { defineJudge, type ModelTuner, Workflow, WorkflowOutput, type WorkflowTask } from 'trainyard/tuner';

export default class SimpleAgent extends Workflow {
  override name = 'simple_agent_workflow';

  async execute(task: WorkflowTask, modelTuner: ModelTuner): Promise<WorkflowOutput> {
    const agent = new ToolLoopAgent({
      id: 'Friday',
      instructions: 'Sort the message: billing, shipping, returns or repairs?',
      model: modelTuner, // the change
    });
    const { text } = await agent.generate({ prompt: task.task.mainQuery, abortSignal: task.rollout.signal });
    // No reward: the judge decides.
    return new WorkflowOutput({ metadata: { queue: /\w+$/.exec(text)?.[0] ?? '' } });
  }
}

/** Sees the answer, which the workflow never does. */
export const judge = defineJudge((task, output) => {
  const isRight = output.metadata['queue'] === task.task.answer;
  return [isRight ? 1 : 0, isRight];
});
