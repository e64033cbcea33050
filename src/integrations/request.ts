/**
 * What the leaf files share on the way from a framework's call to `handle.generate`: tool choice, sampling settings, refusals, usage.
 *
 * What the gateway refuses over HTTP is refused here in the same words: both ways must give the same trajectory, or none.
 */
import type { GenerateRequest, Generation } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { isObject } from '../core/json.ts';
import type { Json, Message, Tool, ToolCall } from '../core/types.ts';

export type ToolChoice = 'auto' | 'none' | 'required' | { readonly tool: string };

/** `none` is honoured by not showing the policy any tools. */
export function toolsFor(tools: readonly Tool[], choice: ToolChoice): Pick<GenerateRequest, 'tools' | 'tool'> {
  if (choice === 'none') return {};
  if (choice === 'auto') return { tools };
  if (choice === 'required') return { tools, tool: true };
  return { tools, tool: choice.tool };
}

export function functionTool(name: string, description?: string, parameters?: unknown): Tool {
  return { type: 'function', function: { name, ...given({ description, parameters: parameters as Json | undefined }) } };
}

/** Settings as far as they were given. */
export function given<T extends object>(settings: T): { [K in keyof T]?: NonNullable<T[K]> } {
  const entries = Object.entries(settings).filter(([, value]) => value !== undefined && value !== null);
  return Object.fromEntries(entries) as { [K in keyof T]?: NonNullable<T[K]> };
}

/** Settings that would change what is sampled without being recorded; 0 changes nothing. */
export function refusePenalties(penalties: Readonly<Record<string, number | undefined>>): void {
  for (const [name, value] of Object.entries(penalties)) {
    if (value) throw unsupported(name, `of ${value}`, 'it would change what is sampled without being recorded; leave it out');
  }
}

export function unsupported(what: string, found: string, hint?: string): TrainyardError {
  return new TrainyardError('REQUEST_INVALID', `${what} ${found} is not supported`, { param: what, ...given({ hint }) });
}

/** The policy reads text. */
export function notText(where: string, kind: string): TrainyardError {
  return unsupported(where, `of type ${JSON.stringify(kind)}`, 'the policy reads text only; describe it in words');
}

/** Tokens; undefined where the policy is in another process or did not answer itself. */
export function tokensOf({ turn }: Generation): { readonly prompt: number; readonly sampled: number } | undefined {
  return turn && { prompt: turn.promptIds.length, sampled: turn.sampledIds.length };
}

/** What the policy said, as far as it said anything. */
export function saidAs(content: string | null, calls: readonly ToolCall[], reasoning: string): Message {
  const called = calls.length > 0 ? { tool_calls: calls } : {};
  return { role: 'assistant', content, ...called, ...(reasoning === '' ? {} : { reasoning }) };
}

export function toolCall(id = '', name = '', input: unknown): ToolCall {
  return { id, type: 'function', function: { name, arguments: argumentsText(input) } };
}

/**
 * Arguments as a framework that parsed them gives them back. What was no JSON object is kept as the text it was, so that the conversation
 * goes on from what was sampled.
 */
export function argumentsText(input: unknown): string {
  return typeof input === 'string' ? input : (JSON.stringify(input) ?? '{}');
}

export function isJsonObject(text: string): boolean {
  try {
    return isObject(JSON.parse(text) as unknown);
  } catch {
    return false;
  }
}
