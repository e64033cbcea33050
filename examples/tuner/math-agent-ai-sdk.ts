/**
 * An agent that works out sums with tools, then gives its answer in a form that a program can read. Written with the AI SDK.
 *
 * The form is a tool that the model must call; what the call needs around its arguments is given to the model, not sampled and not trained.
 */
import { jsonSchema, stepCountIs, ToolLoopAgent, tool } from 'ai';
import { type ModelTuner, Workflow, WorkflowOutput, type WorkflowTask } from 'trainyard/tuner';
import { FinalResult } from './final-result.ts';
import { CALCULATOR, calculator, LOOKUP, lookup } from './toolkit.ts';

export { MathJudge } from './final-result.ts';

const toolkit = {
  lookup: tool({ description: LOOKUP.description, inputSchema: jsonSchema(LOOKUP.parameters), execute: lookup }),
  calculator: tool({ description: CALCULATOR.description, inputSchema: jsonSchema(CALCULATOR.parameters), execute: calculator }),
};

export default class ExampleMathLearn extends Workflow {
  override name = 'math_agent_workflow';

  async execute(task: WorkflowTask, modelTuner: ModelTuner): Promise<WorkflowOutput> {
    const agent = new ToolLoopAgent({
      id: 'math_react_agent',
      instructions: 'You are a shop assistant. Use the tools to answer.',
      model: modelTuner, // the change
      tools: toolkit,
      stopWhen: stepCountIs(4),
    });
    const { mainQuery } = task.task;
    const { text } = await agent.generate({ prompt: mainQuery, abortSignal: task.rollout.signal });
    const { object } = await modelTuner.generateStructured({
      structuredModel: FinalResult,
      name: 'final_result',
      messages: [
        { role: 'user', content: mainQuery },
        { role: 'assistant', content: text },
        { role: 'user', content: 'Give the result.' },
      ],
      maxTokens: 24,
    });
    return new WorkflowOutput({ reward: null, metadata: { final_answer: object?.result ?? null, said: text } });
  }
}
