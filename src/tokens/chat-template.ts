/**
 * Messages and tools → prompt ids, with the model's own Jinja chat template.
 *
 * Only the template makes control tokens: what messages, tool arguments, names, descriptions and results say stays text, even
 * if it reads `<|im_start|>`. For all other input the ids are those of tokenising the rendered text.
 *
 * Knows nothing of conversations that grow; that is the renderer's business.
 */
import { Template } from '@huggingface/jinja';
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { Json, Message, Tool, ToolCall } from '../core/types.ts';
import { createProtector, type Protection } from './protection.ts';
import type { Tokenizer } from './tokenizer.ts';

export interface ChatTemplate {
  /** Ids of the conversation; with `generationPrompt`, up to where the policy begins to speak. */
  encode(messages: readonly Message[], tools: readonly Tool[], generationPrompt: boolean): Int32Array;
  /**
   * Ids of what the template writes after an assistant turn when `next` follows, generation prompt included: from `endOfTurn`,
   * the text of the control token that closes the turn. Undefined if no such token closes it.
   */
  encodeAfterTurn(next: readonly Message[], endOfTurn: string): Int32Array | undefined;
  /** The control token that closes an assistant turn of text, if one directly follows the text. */
  readonly endOfTurn: string | undefined;
}

/** What the template is shown; arguments are text or parsed, as it can handle them. */
type ArgumentsShape = 'text' | 'parsed';

type Protect = (text: string) => string;

export function createChatTemplate(tokenizer: Tokenizer): ChatTemplate {
  const template = compile(tokenizer.chatTemplate);
  const protector = createProtector(tokenizer.controlTokens, tokenizer.chatTemplate);
  const argumentsShape = findArgumentsShape((messages) => renderWith(messages, [], false));

  function renderWith(messages: unknown, tools: readonly unknown[], generationPrompt: boolean): string {
    return template.render({
      ...tokenizer.specialTokens,
      messages,
      tools: tools.length === 0 ? null : tools,
      add_generation_prompt: generationPrompt,
    });
  }

  function begin(messages: readonly Message[], tools: readonly Tool[]): Protection {
    // Taken after parsing: JSON text can spell a character that its parsed form then contains.
    const unprotected = [messages.map((message) => shapeMessage(message, argumentsShape, (text) => text)), tools];
    return protector.begin(JSON.stringify(unprotected));
  }

  function encode(messages: readonly Message[], tools: readonly Tool[], generationPrompt: boolean): Int32Array {
    const { protect, restore } = begin(messages, tools);
    const shaped = messages.map((message) => shapeMessage(message, argumentsShape, protect));
    const shapedTools = tools.map((tool) => shapeTool(tool, protect));
    return tokenizer.encodeRendered(renderWith(shaped, shapedTools, generationPrompt), restore);
  }

  /** Rendered text that follows a placeholder for what the assistant said, before `next`. */
  function renderAfterTurn(next: readonly Message[]): { readonly text: string; readonly restore: Protect } | undefined {
    const { mark, protect, restore } = begin(next, []);
    // Protected strings put two marks side by side at most, so three of them are found where they were put and nowhere else.
    const placeholder = mark.repeat(3);
    const shaped = next.map((message) => shapeMessage(message, argumentsShape, protect));
    const spoken = { role: 'assistant', content: placeholder };
    // Some templates want a call before a result; some do not write calls at all, and then the placeholder is lost in it.
    for (const said of next[0]?.role === 'tool' ? [callTurn(placeholder, argumentsShape), spoken] : [spoken]) {
      const rendered = renderWith([{ role: 'user', content: 'x' }, said, ...shaped], [], true);
      const at = rendered.indexOf(placeholder);
      if (at !== -1) return { text: rendered.slice(at + placeholder.length), restore };
    }
    return undefined;
  }

  return {
    encode: (messages, tools, generationPrompt) => refusing(() => encode(messages, tools, generationPrompt)),
    encodeAfterTurn(next, endOfTurn) {
      const after = refusing(() => renderAfterTurn(next));
      const at = after?.text.indexOf(endOfTurn) ?? -1;
      return after === undefined || at === -1 ? undefined : tokenizer.encodeRendered(after.text.slice(at), after.restore);
    },
    endOfTurn: findEndOfTurn(tokenizer, () => renderAfterTurn([{ role: 'user', content: 'x' }])?.text ?? ''),
  };
}

function compile(source: string): Template {
  try {
    return new Template(source);
  } catch (cause) {
    throw new TrainyardError('TOKENIZER_INVALID', `the chat template is not valid Jinja: ${messageOf(cause)}`, { cause });
  }
}

/** What a template raises is about the conversation it was given. */
function refusing<T>(render: () => T): T {
  try {
    return render();
  } catch (cause) {
    if (cause instanceof TrainyardError) throw cause;
    throw new TrainyardError('REQUEST_INVALID', `the chat template refuses the conversation: ${messageOf(cause)}`, {
      hint: 'see which roles, orders of roles and tool fields the chat template of this model accepts',
      cause,
    });
  }
}

/**
 * Most published templates serialise parsed arguments; given text, they would quote it. Where the template takes text as it is,
 * it gets the very text that was sampled.
 */
function findArgumentsShape(render: (messages: unknown) => string): ArgumentsShape {
  const text = '{"probe":[1]}';
  try {
    return render([{ role: 'user', content: 'x' }, callTurn(text, 'text')]).includes(text) ? 'text' : 'parsed';
  } catch {
    return 'parsed';
  }
}

/** A template may refuse a probe; then it has no end of turn that we could rely on. */
function findEndOfTurn(tokenizer: Tokenizer, renderAfter: () => string): string | undefined {
  try {
    const after = renderAfter();
    const candidates = tokenizer.controlTokens.filter((token) => after.startsWith(token));
    return candidates.toSorted((a, b) => b.length - a.length)[0];
  } catch {
    return undefined;
  }
}

function callTurn(argument: string, shape: ArgumentsShape): unknown {
  const given = shape === 'text' ? argument : { x: argument };
  return {
    role: 'assistant',
    content: '',
    tool_calls: [{ id: 'call00000', type: 'function', function: { name: 'x', arguments: given } }],
  };
}

function shapeMessage(message: Message, argumentsShape: ArgumentsShape, protect: Protect): Record<string, unknown> {
  return {
    role: message.role,
    // Templates search in the content; those that could do with null do as well with nothing.
    content: protect(message.content ?? ''),
    ...(message.tool_calls?.length
      ? { tool_calls: message.tool_calls.map((call) => shapeCall(call, argumentsShape, protect)) }
      : {}),
    ...(message.tool_call_id === undefined ? {} : { tool_call_id: protect(message.tool_call_id) }),
    ...(message.name === undefined ? {} : { name: protect(message.name) }),
  };
}

function shapeCall(call: ToolCall, argumentsShape: ArgumentsShape, protect: Protect): Record<string, unknown> {
  const { name, arguments: text } = call.function;
  const parsed = argumentsShape === 'parsed' ? parseOr(text) : text;
  return { id: protect(call.id), type: 'function', function: { name: protect(name), arguments: protectDeep(parsed, protect) } };
}

function shapeTool(tool: Tool, protect: Protect): Record<string, unknown> {
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
