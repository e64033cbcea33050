/**
 * Messages and tools as chat templates expect them: our own words for things → the ones that published templates look for, with every
 * string protected.
 */
import type { Json, Message, Tool, ToolCall } from '../core/types.ts';

/** What the template is shown; arguments are text or parsed, as it can handle them. */
export type ArgumentsShape = 'text' | 'parsed';

export type Protect = (text: string) => string;

export function shapeMessages(messages: readonly Message[], argumentsShape: ArgumentsShape, protect: Protect): readonly object[] {
  return withResultIds(messages).map((message) => shapeMessage(message, argumentsShape, protect));
}

/** Results that do not say whose they are belong to the calls before them that have none yet, in order. */
function withResultIds(messages: readonly Message[]): readonly Message[] {
  let unanswered: readonly string[] = [];
  return messages.map((message, i) => {
    if (message.role !== 'tool') unanswered = unansweredAfter(messages, i);
    const [id, ...others] = unanswered;
    if (message.role !== 'tool' || message.tool_call_id !== undefined || id === undefined) return message;
    unanswered = others;
    return { ...message, tool_call_id: id };
  });
}

/** Ids of the calls of this message that none of the results behind it names. */
function unansweredAfter(messages: readonly Message[], place: number): readonly string[] {
  const ids = new Set(messages[place]!.tool_calls?.map((call) => call.id));
  for (let i = place + 1; ids.size > 0 && messages[i]?.role === 'tool'; i++) ids.delete(messages[i]!.tool_call_id ?? '');
  return [...ids];
}

function shapeMessage(message: Message, argumentsShape: ArgumentsShape, protect: Protect): object {
  return {
    role: message.role,
    // Templates search in the content; those that could do with null do as well with nothing.
    content: protect(message.content ?? ''),
    ...(message.reasoning === undefined ? {} : { reasoning_content: protect(message.reasoning) }),
    ...(message.tool_calls?.length
      ? { tool_calls: message.tool_calls.map((call) => shapeCall(call, argumentsShape, protect)) }
      : {}),
    ...(message.tool_call_id === undefined ? {} : { tool_call_id: protect(message.tool_call_id) }),
    ...(message.name === undefined ? {} : { name: protect(message.name) }),
  };
}

function shapeCall(call: ToolCall, argumentsShape: ArgumentsShape, protect: Protect): object {
  const { name, arguments: text } = call.function;
  const parsed = argumentsShape === 'parsed' ? parseOr(text) : text;
  return { id: protect(call.id), type: 'function', function: { name: protect(name), arguments: protectDeep(parsed, protect) } };
}

export function shapeTool(tool: Tool, protect: Protect): object {
  const { name, description, parameters } = tool.function;
  return {
    type: 'function',
    function: {
      name: protect(name),
      ...(description === undefined ? {} : { description: protect(description) }),
      ...(parameters === undefined ? {} : { parameters: protectDeep(parameters, protect) }),
    },
  };
}

/** Arguments that are not JSON were sampled that way; they are shown as the text they are. */
function parseOr(text: string): Json {
  try {
    return JSON.parse(text) as Json;
  } catch {
    return text;
  }
}

function protectDeep(value: Json, protect: Protect): Json {
  if (typeof value === 'string') return protect(value);
  if (value === null || typeof value !== 'object') return value;
  if (Array.isArray(value)) return value.map((item: Json) => protectDeep(item, protect));
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [protect(key), protectDeep(item, protect)]));
}
