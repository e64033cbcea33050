/**
 * Messages and tools → prompt ids, with the model's own Jinja chat template.
 *
 * Only the template makes control tokens: what messages, tool arguments, names, descriptions and results say stays text, even
 * if it reads `<|im_start|>`. For all other input the ids are those of tokenising the rendered text.
 *
 * Knows nothing of conversations that grow; that is the renderer's business.
 */
import { messageOf, TrainyardError, tried } from '../core/errors.ts';
import type { Json, Message, Tool, ToolCall } from '../core/types.ts';
import { compileJinja, pythonNumber, type Render, WHITE_SPACE } from './jinja.ts';
import { cachedRendering, type TextAfterTurn } from './template-cache.ts';
import type { Tokenizer } from './tokenizer.ts';
import { withResultIds } from './tool-calls.ts';
import { type OwnForm, ownFormFor, withOwnForm } from './tool-form.ts';

/** The features of a conversation before an assistant turn that change how templates write what follows. */
export interface Setting {
  readonly system: boolean;
  readonly tools: boolean;
  /** Whether there is a user message. */
  readonly user: boolean;
  /** Whether the policy was asked to go on after an assistant message. */
  readonly prefilled: boolean;
}

interface AfterTurn {
  /** From the control token that closes the turn to the end of the generation prompt. */
  readonly ids: Int32Array;
  /** Whether the template still writes that turn's reasoning. */
  readonly keepsReasoning: boolean;
}

export interface ChatTemplate {
  /** Ids of the conversation; with `generationPrompt`, up to where the policy begins to speak. */
  encode(messages: readonly Message[], tools: readonly Tool[], generationPrompt: boolean): Int32Array;
  /**
   * What the template writes after an assistant turn when `next` follows. It is rendered on a short conversation of that setting, so the
   * cost does not depend on the real one. Undefined if `next` changes how the template writes what comes before the turn, if no control
   * token closes the turn, or if the template refuses these messages.
   */
  encodeAfterTurn(next: readonly Message[], setting: Setting): AfterTurn | undefined;
  /**
   * Ids by which the policy would say the last message, an assistant's, after the prompt of the others, up to the token that closes the
   * turn. Undefined if the template does not write it as its generation prompt begins it, or does not close it.
   */
  encodeSpoken(messages: readonly Message[], tools: readonly Tool[]): Int32Array | undefined;
  /** The rendered text, unprotected: for finding out how the template writes, never for prompts. Undefined if it refuses. */
  textOf(messages: readonly Message[], tools: readonly Tool[], generationPrompt: boolean): string | undefined;
  /** Which of tools and calls this template leaves out, so that they are written in our own form. */
  readonly ownForm: OwnForm;
  /** The Jinja source with our own form in it, for other programs; undefined if the template leaves nothing out. */
  readonly withOwnForm: string | undefined;
  /** Whether the template handles reasoning (`</think>`). */
  readonly knowsThoughts: boolean;
  /** The control token that closes an assistant turn of text, if one directly follows the text. */
  readonly endOfTurn: string | undefined;
}

/** Some templates compare messages, so this one must differ from any real one. */
const QUESTION: Message = { role: 'user', content: 'A question that nobody asks.' };
const TOOL: Tool = {
  type: 'function',
  function: { name: 'x', description: 'x', parameters: { type: 'object', properties: {} } },
};
const ASKED: Setting = { system: false, tools: false, user: true, prefilled: false };

export function createChatTemplate(tokenizer: Tokenizer): ChatTemplate {
  let render = compile(tokenizer.chatTemplate);
  const protector = createProtector(tokenizer.controlTokens, tokenizer.chatTemplate);
  let argumentsShape = findArgumentsShape((messages) => renderWith(messages, [], false));
  /** A protected string begins with one mark at most, so two marks can only stand before a number. */
  const shapeWith = (mark: string): Shape => ({ arguments: argumentsShape, numberMark: mark + mark });
  const ownForm = ownFormFor((messages, tools) => textOf(messages, tools, false));
  const rewritten = ownForm.tools || ownForm.calls ? withOwnForm(ownForm, tokenizer.chatTemplate) : undefined;
  if (rewritten !== undefined) render = compile(rewritten);
  // Our own form takes the text that was sampled.
  if (ownForm.calls) argumentsShape = 'text';
  const openings = new Map<string, string>();

  function renderWith(messages: readonly object[], tools: readonly object[], generationPrompt: boolean, numberMark = ''): string {
    const shown = { messages, tools: tools.length === 0 ? null : tools, add_generation_prompt: generationPrompt };
    return render({ ...tokenizer.specialTokens, ...shown }, numberMark);
  }

  function textOf(messages: readonly Message[], tools: readonly Tool[], generationPrompt: boolean): string | undefined {
    const shaped = shapeMessages(messages, shapeWith(''), unprotected);
    const shapedTools = tools.map((tool) => shapeTool(tool, unprotected));
    return unlessRefused(() => renderWith(shaped, shapedTools, generationPrompt));
  }

  function begin(messages: readonly Message[], tools: readonly Tool[]): Protection {
    // After parsing, because escapes in JSON text can stand for any character.
    return protector.begin(JSON.stringify([shapeMessages(messages, shapeWith(''), unprotected), tools]));
  }

  /** A conversation as the template is shown it. */
  function shown(messages: readonly Message[], tools: readonly Tool[]) {
    const { mark, protect, restore } = begin(messages, tools);
    const shaped = shapeMessages(messages, shapeWith(mark), protect);
    return { shaped, shapedTools: tools.map((tool) => shapeTool(tool, protect)), numberMark: mark + mark, restore };
  }

  function encode(messages: readonly Message[], tools: readonly Tool[], generationPrompt: boolean): Int32Array {
    const { shaped, shapedTools, numberMark, restore } = shown(messages, tools);
    return tokenizer.encodeRendered(renderWith(shaped, shapedTools, generationPrompt, numberMark), restore);
  }

  function encodeSpoken(messages: readonly Message[], tools: readonly Tool[]): Int32Array | undefined {
    const { shaped, shapedTools, numberMark, restore } = shown(messages, tools);
    const before = renderWith(shaped.slice(0, -1), shapedTools, true, numberMark);
    const whole = renderWith(shaped, shapedTools, false, numberMark);
    const at = endOfTurn === undefined ? -1 : whole.indexOf(endOfTurn, before.length);
    if (at === -1 || !whole.startsWith(before)) return undefined;
    return tokenizer.encodeRendered(whole.slice(before.length, at + endOfTurn!.length), restore);
  }

  function openingOf(setting: Setting): string {
    const key = JSON.stringify(setting);
    const opening = openings.get(key) ?? renderWith(openingMessages(setting), setting.tools ? [TOOL] : [], true);
    openings.set(key, opening);
    return opening;
  }

  /** Rendered text that follows a placeholder for what the assistant said, before `next`. */
  function renderAfterTurn(next: readonly Message[], setting: Setting): TextAfterTurn | undefined {
    const { mark, protect, restore } = begin(next, []);
    // Protected strings put at most two marks side by side, so three in a row can only be the placeholder.
    const placeholder = mark.repeat(3);
    const thought = mark.repeat(4);
    const opening = openingOf(setting);
    // Some templates want a call before a result; others do not write calls at all, and would lose a placeholder inside one.
    for (const called of next[0]?.role === 'tool' && !ownForm.calls ? [true, false] : [false]) {
      const said = called ? callTurn(placeholder, argumentsShape) : { role: 'assistant', content: placeholder };
      const thinking = { ...said, reasoning_content: thought };
      const shaped = shapeMessages(called ? [CALLED, ...next] : next, shapeWith(mark), protect).slice(called ? 1 : 0);
      const conversation = [...openingMessages(setting), thinking, ...shaped];
      const rendered = renderWith(conversation, setting.tools ? [TOOL] : [], true, mark + mark);
      const thoughtAt = rendered.indexOf(thought);
      const at = rendered.indexOf(placeholder, thoughtAt === -1 ? 0 : thoughtAt + thought.length);
      if (at === -1) continue;
      const keepsReasoning = thoughtAt !== -1;
      return { text: rendered.slice(at + placeholder.length), restore, keepsReasoning, appends: rendered.startsWith(opening) };
    }
    return undefined;
  }

  const cached = cachedRendering(renderAfterTurn, tokenizer.chatTemplate, (text) => !protector.atRisk(text));
  const endOfTurn = findEndOfTurn(tokenizer, () => renderAfterTurn([{ role: 'user', content: 'x' }], ASKED)?.text ?? '');
  return {
    encode: (messages, tools, generationPrompt) => refusing(() => encode(messages, tools, generationPrompt)),
    encodeAfterTurn(next, setting) {
      const after = unlessRefused(() => cached(next, setting));
      const at = endOfTurn === undefined ? -1 : (after?.text.indexOf(endOfTurn) ?? -1);
      if (!after?.appends || at === -1) return undefined;
      const ids = tokenizer.encodeRendered(after.text.slice(at), after.restore);
      return { ids, keepsReasoning: after.keepsReasoning };
    },
    encodeSpoken: (messages, tools) => refusing(() => encodeSpoken(messages, tools)),
    textOf,
    ownForm,
    withOwnForm: rewritten,
    knowsThoughts: tokenizer.chatTemplate.includes('</think>'),
    endOfTurn,
  };
}

/** The messages before the turn in a short conversation of this setting. */
function openingMessages({ system, user, prefilled }: Setting): readonly Message[] {
  const messages: Message[] = [];
  if (system) messages.push({ role: 'system', content: 'x' });
  if (user) messages.push(QUESTION);
  if (prefilled) messages.push({ role: 'assistant', content: 'x' });
  return messages;
}

function compile(source: string): Render {
  try {
    return compileJinja(source);
  } catch (cause) {
    throw new TrainyardError('TOKENIZER_INVALID', `the chat template is not valid Jinja: ${messageOf(cause)}`, { cause });
  }
}

/** An error that the template raises is about the conversation, so it becomes REQUEST_INVALID. */
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

/** Undefined if the template refuses; other errors are thrown. */
function unlessRefused<T>(render: () => T): T | undefined {
  try {
    return render();
  } catch (cause) {
    if (cause instanceof TrainyardError) throw cause;
    return undefined;
  }
}

/**
 * Most published templates serialise parsed arguments; given text, they would quote it. Where the template takes text as it is,
 * it gets the very text that was sampled.
 */
function findArgumentsShape(render: (messages: readonly object[]) => string): ArgumentsShape {
  const text = '{"probe":[1]}';
  const rendered = tried(() => render([{ role: 'user', content: 'x' }, callTurn(text, 'text')]));
  return rendered?.includes(text) ? 'text' : 'parsed';
}

/** Undefined if the template refuses the probe: then no end of turn can be relied on. */
function findEndOfTurn(tokenizer: Tokenizer, renderAfter: () => string): string | undefined {
  const after = tried(renderAfter) ?? '';
  const candidates = tokenizer.controlTokens.filter((token) => after.startsWith(token));
  return candidates.toSorted((a, b) => b.length - a.length)[0];
}

const CALLED: Message = {
  role: 'assistant',
  content: '',
  tool_calls: [{ id: 'call00000', type: 'function', function: { name: 'x', arguments: '{}' } }],
};

function callTurn(argument: string, shape: ArgumentsShape): object {
  const given = shape === 'text' ? argument : { x: argument };
  const { id } = CALLED.tool_calls![0]!;
  return { role: 'assistant', content: '', tool_calls: [{ id, type: 'function', function: { name: 'x', arguments: given } }] };
}

// ── what a template is shown ──────────────────────────────────────────────────────────────────────────────────────────

// Converts messages and tools to the field names that published templates use. Every string is protected, so that the text of a control
// token inside it does not become a control token.

/** Whether the template gets tool-call arguments as text or as parsed JSON. */
type ArgumentsShape = 'text' | 'parsed';

type Protect = (text: string) => string;

const unprotected: Protect = (text) => text;

/** `numberMark` is put before numbers that JavaScript and Python write differently, such as `1.0` or one of twenty digits. */
interface Shape {
  readonly arguments: ArgumentsShape;
  readonly numberMark: string;
}

function shapeMessages(messages: readonly Message[], shape: Shape, protect: Protect): readonly object[] {
  return withResultIds(messages).map((message) => shapeMessage(message, shape, protect));
}

function shapeMessage(message: Message, shape: Shape, protect: Protect): object {
  return {
    role: message.role,
    // Many templates search in the content, so it is '' instead of null.
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

function shapeTool(tool: Tool, protect: Protect): object {
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

/** Parses arguments; those that are not JSON were sampled that way and stay text. */
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
  if (Array.isArray(value)) return value.map((item) => protectDeep(item, protect));
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [protect(key), protectDeep(item, protect)]));
}

const DELETE = '\u007F';
const VISIBLE = new RegExp(`[^${WHITE_SPACE}]+`, 'gu');
const PRIVATE_USE = [
  [0xe000, 0xf8ff],
  [0xf0000, 0xffffd],
  [0x100000, 0x10fffd],
] as const;

interface Protection {
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
  /** `contents`: one string with every character that will be rendered, none of them escaped. */
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

/** Tries DEL first, which is ASCII and unescaped in JSON, so every form of `tojson` keeps it; then the private use areas. */
function unusedCharacter(contents: string): string {
  if (!contents.includes(DELETE)) return DELETE;
  const used = new Set(contents);
  for (const [from, to] of PRIVATE_USE) {
    for (let code = from; code <= to; code++) {
      const character = String.fromCodePoint(code);
      if (!used.has(character)) return character;
    }
  }
  throw new TrainyardError('REQUEST_INVALID', 'the request holds every private-use character of Unicode', 'remove some of them');
}
