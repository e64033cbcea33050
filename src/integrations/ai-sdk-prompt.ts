/**
 * A prompt of the AI SDK → messages, such that what the policy said comes back as it was recorded.
 *
 * Types are our own, and the SDK's fit them: this file needs no package. Files and images are refused.
 */
import type { Json, Message, Tool, ToolCall } from '../core/types.ts';
import { argumentsText, notText, type ToolChoice, unsupported } from './request.ts';

/** A part of any kind; which fields it has depends on its type. */
export interface PromptPart {
  readonly type: string;
  readonly text?: string;
  readonly toolCallId?: string;
  readonly toolName?: string;
  readonly input?: unknown;
  readonly output?: ResultOutput;
  readonly providerOptions?: Readonly<Record<string, unknown>> | undefined;
}

export interface ResultOutput {
  readonly type: string;
  readonly value?: unknown;
  readonly reason?: string | undefined;
}

export type PromptEntry =
  | { readonly role: 'system'; readonly content: string }
  | { readonly role: 'user' | 'assistant' | 'tool'; readonly content: readonly PromptPart[] };

export interface GivenTool {
  readonly type: string;
  readonly name: string;
  readonly description?: string | undefined;
  readonly inputSchema?: unknown;
}

/** Throws REQUEST_INVALID naming the part that is no text. */
export function messagesOf(prompt: readonly PromptEntry[]): readonly Message[] {
  return prompt.flatMap((entry, place): Message[] => {
    if (entry.role === 'system') return [{ role: 'system', content: entry.content }];
    const at = `prompt[${place}]`;
    if (entry.role === 'user') return [{ role: 'user', content: entry.content.map((part) => textOf(part, at)).join('\n') }];
    if (entry.role === 'assistant') return spoken(entry.content, at);
    return results(entry.content);
  });
}

function textOf({ type, text }: PromptPart, at: string): string {
  if (type === 'text') return text ?? '';
  throw notText(`${at}: a part`, type);
}

/** A result among the assistant's own parts was produced on a server; the policy has none, so it is someone else's and stays apart. */
function spoken(parts: readonly PromptPart[], at: string): Message[] {
  let content = '';
  let reasoning = '';
  const calls: ToolCall[] = [];
  for (const part of parts) {
    if (part.type === 'text') content += part.text ?? '';
    else if (part.type === 'reasoning') reasoning += part.text ?? '';
    else if (part.type === 'tool-call') calls.push(callOf(part));
    else if (part.type !== 'tool-result') throw notText(`${at}: a part`, part.type);
  }
  const said: Message = {
    role: 'assistant',
    content: content === '' && calls.length > 0 ? null : content,
    ...(calls.length > 0 ? { tool_calls: calls } : {}),
    ...(reasoning === '' ? {} : { reasoning }),
  };
  return [said, ...results(parts)];
}

/** The SDK puts an empty object in the place of arguments that are none; what the policy said instead comes along with the call. */
function callOf({ toolCallId, toolName, input, providerOptions }: PromptPart): ToolCall {
  const said = (providerOptions?.['trainyard'] as { readonly arguments?: string } | undefined)?.arguments;
  return {
    id: toolCallId ?? '',
    type: 'function',
    function: { name: toolName ?? '', arguments: said ?? argumentsText(input) },
  };
}

function results(parts: readonly PromptPart[]): Message[] {
  return parts
    .filter(({ type }) => type === 'tool-result')
    .map(({ toolCallId, output }) => ({ role: 'tool', content: outputText(output), tool_call_id: toolCallId ?? '' }));
}

function outputText(output: ResultOutput | undefined): string {
  if (output === undefined) return '';
  const { type, value, reason } = output;
  if (type === 'execution-denied') return reason ?? 'Tool call execution denied.';
  return typeof value === 'string' && type !== 'json' && type !== 'error-json' ? value : (JSON.stringify(value) ?? '');
}

/** Throws REQUEST_INVALID for a tool that only a provider could run. */
export function toolsOf(tools: readonly GivenTool[] = []): readonly Tool[] {
  return tools.map(({ type, name, description, inputSchema }) => {
    if (type !== 'function') {
      throw unsupported(`tool ${JSON.stringify(name)}`, `of type ${JSON.stringify(type)}`, 'the policy has no tools of its own');
    }
    const described = description === undefined ? {} : { description };
    const parameters = inputSchema === undefined ? {} : { parameters: inputSchema as Json };
    return { type: 'function', function: { name, ...described, ...parameters } };
  });
}

export function choiceOf(choice: { readonly type: string; readonly toolName?: string } | undefined): ToolChoice {
  if (choice?.toolName !== undefined) return { tool: choice.toolName };
  return (choice?.type ?? 'auto') as ToolChoice;
}
