/** That the policy must call a tool, as every dialect's `tool_choice` may say. What it is given for that is the renderer's to know. */
import type { Tool } from '../../core/types.ts';
import { invalid } from './parameters.ts';

export interface ForcedCall {
  /** Undefined: any of the tools. */
  readonly name: string | undefined;
}

/** Throws REQUEST_INVALID where there is no such tool. */
export function forcedCall(name: unknown, tools: readonly Tool[]): ForcedCall {
  const names = tools.map((tool) => tool.function.name);
  if (names.length === 0) throw invalid('tool_choice', 'a call is demanded, but there are no tools', 'give the tools, too');
  if (name === undefined) return { name: names.length === 1 ? names[0] : undefined };
  if (typeof name !== 'string') throw invalid('tool_choice', 'expected the name of a tool');
  if (names.includes(name)) return { name };
  throw invalid(
    'tool_choice',
    `there is no tool ${JSON.stringify(name).slice(0, 80)}`,
    `there are: ${names.join(', ').slice(0, 500)}`,
  );
}
