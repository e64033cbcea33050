/**
 * Messages and tools as chat templates expect them: our own words for things → the ones that published templates look for, with every
 * string protected.
 */
import type { Json, Message, Tool, ToolCall } from '../core/types.ts';
import { pythonNumber } from './jinja.ts';

/** What the template is shown; arguments are text or parsed, as it can handle them. */
export type ArgumentsShape = 'text' | 'parsed';

export type Protect = (text: string) => string;

/** `numberMark` goes before numbers in arguments that JavaScript would not write as Python does: `1.0`, or twenty digits. */
export interface Shape {
  readonly arguments: ArgumentsShape;
  readonly numberMark: string;
}

export function shapeMessages(messages: readonly Message[], shape: Shape, protect: Protect): readonly object[] {
  return withResultIds(messages).map((message) => shapeMessage(message, shape, protect));
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

function shapeMessage(message: Message, shape: Shape, protect: Protect): object {
  return {
    role: message.role,
    // Templates search in the content; those that could do with null do as well with nothing.
    content: protect(message.content ?? ''),
    ...(message.reasoning === undefined ? {} : { reasoning_content: protect(message.reasoning) }),
    ...(message.tool_calls?.length ? { tool_calls: message.tool_calls.map((call) => shapeCall(call, shape, protect)) } : {}),
    ...(message.tool_call_id === undefined ? {} : { tool_call_id: protect(message.tool_call_id) }),
    ...(message.name === undefined ? {} : { name: protect(message.name) }),
  };
}

function shapeCall(call: ToolCall, shape: Shape, protect: Protect): object {
  const { name, arguments: text } = call.function;
  const given = shape.arguments === 'parsed' ? parseOr(text, shape.numberMark, protect) : protect(text);
  return { id: protect(call.id), type: 'function', function: { name: protect(name), arguments: given } };
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
function parseOr(text: string, numberMark: string, protect: Protect): Json {
  try {
    const written = (_: string, value: unknown, { source }: { readonly source?: string }) => {
      if (typeof value !== 'number' || source === undefined) return value;
      const number = pythonNumber(source);
      return numberMark === '' || number === JSON.stringify(value) ? value : new WrittenNumber(numberMark + number);
    };
    return protectDeep((JSON.parse as ParseWithSource)(text, written) as Json, protect);
  } catch (cause) {
    if (!(cause instanceof SyntaxError)) throw cause;
    return protect(text);
  }
}

type ParseWithSource = (
  text: string,
  reviver: (key: string, value: unknown, context: { readonly source?: string }) => unknown,
) => unknown;

class WrittenNumber {
  readonly text: string;

  constructor(text: string) {
    this.text = text;
  }
}

function protectDeep(value: Json, protect: Protect): Json {
  if (typeof value === 'string') return protect(value);
  if (value === null || typeof value !== 'object') return value;
  if (value instanceof WrittenNumber) return value.text;
  if (Array.isArray(value)) return value.map((item: Json) => protectDeep(item, protect));
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [protect(key), protectDeep(item, protect)]));
}
