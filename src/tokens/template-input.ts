/**
 * Messages and tools as chat templates expect them: our own words for things → the ones that published templates look for, with every
 * string protected: the text of control tokens inside user-supplied strings must not become control tokens.
 */
import { TrainyardError } from '../core/errors.ts';
import type { Json, Message, Tool, ToolCall } from '../core/types.ts';
import { pythonNumber, WHITE_SPACE } from './jinja.ts';

/** What the template is shown; arguments are text or parsed, as it can handle them. */
export type ArgumentsShape = 'text' | 'parsed';

type Protect = (text: string) => string;

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

const DELETE = '\u007F';
const VISIBLE = new RegExp(`[^${WHITE_SPACE}]+`, 'gu');
const PRIVATE_USE = [
  [0xe000, 0xf8ff],
  [0xf0000, 0xffffd],
  [0x100000, 0x10fffd],
] as const;

export interface Protection {
  /** The character this call's protected strings are marked with. */
  readonly mark: string;
  protect(text: string): string;
  restore(text: string): string;
}

/**
 * A string at risk gets a mark around each of its visible characters before it is rendered; whatever a template joins it with,
 * no such character can then be part of a control token's text. Marks are taken out again after the split on control tokens.
 * White space is left alone, so a template's `trim` works as before. The mark is a character that nothing in the call contains.
 *
 * Strings not at risk are rendered as they are, so a template may look into them.
 */
interface Protector {
  /** `contents`: all that will be rendered, as one string in which no character is left out or escaped away. */
  begin(contents: string): Protection;
  /** Whether a string can take part in a control token's text. */
  atRisk(text: string): boolean;
}

/**
 * A string can only take part in a control token's text if it has that text's first or last visible character, or lies wholly
 * inside it. The latter needs a template that writes the beginning of a control token right before an inserted string.
 */
export function createProtector(controlTokens: readonly string[], template: string): Protector {
  const trimmed = controlTokens.map((token) => token.trim());
  const edges = characterClass(trimmed.flatMap((token) => [[...token][0]!, [...token].at(-1)!]));
  const gluing = trimmed.some((token) => endsInLiteral(template, token));

  const atRisk = (text: string): boolean => {
    if (edges.test(text)) return true;
    const inner = text.trim();
    return gluing && inner !== '' && trimmed.some((token) => token.includes(inner));
  };

  return {
    atRisk,
    begin(contents) {
      const mark = unusedCharacter(contents + template);
      return {
        mark,
        protect: (text) => (atRisk(text) ? text.replace(VISIBLE, (run) => mark + [...run].join(mark) + mark) : text),
        restore: (text) => text.replaceAll(mark, ''),
      };
    },
  };
}

function characterClass(characters: readonly string[]): RegExp {
  return new RegExp(`[${characters.map((character) => character.replace(/[\\\]^-]/, '\\$&')).join('')}]`, 'u');
}

/** Whether some literal text of the template stops in the middle of this control token. */
function endsInLiteral(template: string, token: string): boolean {
  for (let length = 1; length < token.length; length++) {
    const beginning = token.slice(0, length);
    if (["'", '"', '{{', '{%'].some((end) => template.includes(beginning + end))) return true;
  }
  return false;
}

/** DEL first: it is ASCII and JSON leaves it alone, so it comes through every form of `tojson`. Then the private use areas. */
function unusedCharacter(contents: string): string {
  if (!contents.includes(DELETE)) return DELETE;
  const used = new Set(contents);
  for (const [from, to] of PRIVATE_USE) {
    for (let code = from; code <= to; code++) {
      const character = String.fromCodePoint(code);
      if (!used.has(character)) return character;
    }
  }
  throw new TrainyardError('REQUEST_INVALID', 'the request holds every private-use character of Unicode', {
    hint: 'remove some of them',
  });
}
