/**
 * The text of a conversation to pretrain on, cut into what the policy says and what it is told.
 *
 * Writes by hand what chat-template.jinja renders: the template gives one string, and pretraining must know which part of it is
 * the assistant's. A test renders generated conversations both ways and compares. Covers only the kinds of messages and tools
 * that the examples have; the template covers everything else.
 */
import type { Message, Tool } from '../src/core/types.ts';

export interface Conversation {
  /** The first is the system message. */
  readonly messages: readonly Message[];
  readonly tools: readonly Tool[];
}

export interface Piece {
  readonly text: string;
  /** Whether these are the policy's own words, which training is about. */
  readonly trained: boolean;
}

/** The first piece is the header: the system message with the tools. */
export function renderConversation({ messages, tools }: Conversation): readonly Piece[] {
  const [system, ...rest] = messages;
  const toolsText = tools.length === 0 ? '' : `\nTools:${tools.map(toolLine).join('')}`;
  const pieces = [told(`<|im_start|>system\n${system?.content ?? ''}${toolsText}<|im_end|>\n`)];
  for (const message of rest) {
    const { role, content } = message;
    if (role === 'assistant') {
      pieces.push(told('<|im_start|>assistant\n'));
      pieces.push({ text: `${assistantText(message)}<|im_end|>`, trained: true });
      pieces.push(told('\n'));
    } else {
      pieces.push(told(`<|im_start|>${role}\n${content ?? ''}<|im_end|>\n`));
    }
  }
  return pieces;
}

function told(text: string): Piece {
  return { text, trained: false };
}

function assistantText(message: Message): string {
  const calls = (message.tool_calls ?? []).map(
    (call) => `<tool_call>{"name":"${call.function.name}","arguments":${call.function.arguments}}</tool_call>`,
  );
  return (message.content ?? '') + calls.join('');
}

function toolLine(tool: Tool): string {
  const { name, description, parameters } = tool.function;
  const { properties } = parameters as { readonly properties: Readonly<Record<string, { readonly type: string }>> };
  const types = Object.fromEntries(Object.entries(properties).map(([parameter, schema]) => [parameter, schema.type]));
  return `\n${JSON.stringify({ name, description, parameters: types })}`;
}
