/**
 * A flow of several turns, each a step: the policy speaks, a tool answers, until it says something that ends it. The steps are one
 * trajectory.
 *
 * `run` can be overridden as a whole, or only what it is made of: `tools`, `messagesOf`, `isTerminal`, `executeTool`.
 */
import { messageOf } from '../core/errors.ts';
import type { Tool } from '../core/types.ts';
import { AgentFlowBase } from './agent-flow-base.ts';
import type { FlowFields } from './flow-types.ts';
import type { FlowMessage, SamplingParams } from './gateway-client.ts';
import { Step } from './step.ts';

const TOOL_CALL = /<tool_call>\s*(.*?)\s*<\/tool_call>/s;
const MOST_STEPS = 32;

/** A tool as the policy is told of it, and what it does. */
export interface FlowTool {
  readonly description?: string;
  readonly parameters?: NonNullable<Tool['function']['parameters']>;
  run(given: Readonly<Record<string, unknown>>): unknown;
}

export abstract class MultiStepAgentFlow<Config = unknown, Row extends object = Record<never, never>> extends AgentFlowBase<
  Config,
  Row
> {
  static override readonly abstract: boolean = true;
  /** By name. */
  readonly tools: Readonly<Record<string, FlowTool>> = {};
  /** It ends after so many steps whatever the policy says. */
  readonly maxSteps: number = MOST_STEPS;

  /** The tools as the policy is told of them. */
  get toolSchemas(): readonly Tool[] {
    return Object.entries(this.tools).map(([name, { description, parameters }]) => ({
      type: 'function',
      function: {
        name,
        ...(description === undefined ? {} : { description }),
        ...(parameters === undefined ? {} : { parameters }),
      },
    }));
  }

  /** How the conversation begins. */
  messagesOf(fields: FlowFields<Row>): FlowMessage[] {
    return [...fields.prompt];
  }

  /** Whether this is the last thing to be said: what calls no tool. */
  isTerminal(text: string): boolean {
    return !TOOL_CALL.test(text);
  }

  /** What the tool that this text calls says, in words. A call that is wrong is answered, too: the policy can learn from it. */
  async executeTool(text: string): Promise<string> {
    try {
      const { name, arguments: given } = JSON.parse(TOOL_CALL.exec(text)?.[1] ?? '') as {
        name: string;
        arguments: Record<string, unknown>;
      };
      const tool = Object.hasOwn(this.tools, name) ? this.tools[name] : undefined;
      return JSON.stringify(tool === undefined ? { error: 'no such tool' } : await tool.run(given ?? {}));
    } catch (thrown) {
      return JSON.stringify({ error: messageOf(thrown) });
    }
  }

  async run(samplingParams: SamplingParams, fields: FlowFields<Row>): Promise<number> {
    const { trajectoryUid, promptUid } = fields;
    const messages = this.messagesOf(fields);
    const tools = this.toolSchemas;
    for (let stepIndex = 0; ; stepIndex++) {
      const said = await this.gatewayGenerate({
        ...samplingParams,
        trajectoryUid,
        promptUid,
        messages,
        ...(tools.length > 0 ? { tools } : {}),
      });
      const { text, promptIds, responseIds, generationId } = said;
      const isLast = this.isTerminal(text) || stepIndex + 1 >= this.maxSteps;
      await this.gatewaySubmitSteps([
        new Step({ promptIds, responseIds, generationId, trajectoryUid, promptUid, stepIndex, isLast }),
      ]);
      if (isLast) return stepIndex + 1;
      messages.push({ role: 'assistant', content: text }, { role: 'tool', content: await this.executeTool(text) });
    }
  }
}
