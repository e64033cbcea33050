/** What the agent is for: it sorts a customer's message into one of four queues. Nothing here knows a client. */
import type { z } from 'zod';

export const SYSTEM = 'Sort the message: billing, shipping, returns or repairs?';
export const MAX_TURNS = 1;

interface AgentTool {
  name: string;
  description: string;
  schema: z.ZodObject;
  run: (given: unknown) => string;
}

/** This agent needs none; add yours here. */
export const tools: AgentTool[] = [];

/** For clients that leave running tools to you. `argumentsText` is what the model wrote. */
export function runTool(name: string, argumentsText: string): string {
  const tool = tools.find((one) => one.name === name);
  try {
    return tool?.run(JSON.parse(argumentsText)) ?? JSON.stringify({ error: 'no such tool' });
  } catch {
    return JSON.stringify({ error: 'bad json' });
  }
}
