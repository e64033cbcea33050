/**
 * The same agent as math-agent-ai-sdk.ts, written with the OpenAI Agents SDK. Its session is the agent's memory.
 */
import { Agent, MemorySession, Runner, tool } from '@openai/agents';
import { type ModelTuner, Workflow, WorkflowOutput, type WorkflowTask } from 'trainyard/tuner';
import { FinalResult } from './final-result.ts';
import { CALCULATOR, calculator, LOOKUP, lookup } from './toolkit.ts';

export { MathJudge } from './final-result.ts';

const toolkit = [
  tool({
    ...LOOKUP,
    parameters: { ...LOOKUP.parameters, additionalProperties: true },
    strict: false,
    execute: async (input) => JSON.stringify(lookup(input)),
  }),
  tool({
    ...CALCULATOR,
    parameters: { ...CALCULATOR.parameters, additionalProperties: true },
    strict: false,
    execute: async (input) => JSON.stringify(calculator(input)),
  }),
];

export default class ExampleMathLearn extends Workflow {
  override name = 'math_agent_workflow';

  async execute(task: WorkflowTask, modelTuner: ModelTuner): Promise<WorkflowOutput> {
    const agent = new Agent({
      name: 'math_react_agent',
      instructions: 'You are a shop assistant. Use the tools to answer.',
      model: modelTuner, // the change
      tools: toolkit,
    });
    const { mainQuery } = task.task;
    const { signal } = task.rollout;
    const { finalOutput } = await new Runner().run(agent, mainQuery, { session: new MemorySession(), maxTurns: 5, signal });
    const text = finalOutput ?? '';
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
