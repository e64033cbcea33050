/**
 * Messages and tools → prompt ids, with the model's own Jinja chat template.
 *
 * Only the template makes control tokens: what messages, tool arguments, names, descriptions and results say stays text, even
 * if it reads `<|im_start|>`. For all other input the ids are those of tokenising the rendered text.
 *
 * Knows nothing of conversations that grow; that is the renderer's business.
 */
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { Message, Tool } from '../core/types.ts';
import { compileJinja, type Render } from './jinja.ts';
import { attempt, framing, type TextAfterTurn } from './template-cache.ts';
import { type ArgumentsShape, createProtector, type Protection, type Shape, shapeMessages, shapeTool } from './template-input.ts';
import type { Tokenizer } from './tokenizer.ts';

/** What a conversation has before an assistant turn, as far as templates treat what follows differently. */
export interface Setting {
  readonly system: boolean;
  readonly tools: boolean;
  /** Whether anyone asked; a conversation may consist of other messages only. */
  readonly user: boolean;
  /** Whether the policy was asked to go on after an assistant message. */
  readonly prefilled: boolean;
}

interface AfterTurn {
  /** From the control token that closes the turn to the end of the generation prompt. */
  readonly ids: Int32Array;
  /** Whether thoughts of that turn are still written. */
  readonly keepsReasoning: boolean;
}

export interface ChatTemplate {
  /** Ids of the conversation; with `generationPrompt`, up to where the policy begins to speak. */
  encode(messages: readonly Message[], tools: readonly Tool[], generationPrompt: boolean): Int32Array;
  /**
   * What the template writes after an assistant turn when `next` follows. Found on a short conversation of that setting, so the cost
   * does not depend on the real one. Undefined if it writes what comes before the turn in another way then, if no control token closes
   * the turn, or if it refuses these messages.
   */
  encodeAfterTurn(next: readonly Message[], setting: Setting): AfterTurn | undefined;
  /** The rendered text, unprotected: for finding out how the template writes, never for prompts. Undefined if it refuses. */
  textOf(messages: readonly Message[], tools: readonly Tool[], generationPrompt: boolean): string | undefined;
  /** Whether the template has a word for thoughts. */
  readonly knowsThoughts: boolean;
  /** The control token that closes an assistant turn of text, if one directly follows the text. */
  readonly endOfTurn: string | undefined;
}

/** Unlike what anyone asks: some templates compare messages. */
const QUESTION: Message = { role: 'user', content: 'A question that nobody asks.' };
const TOOL: Tool = {
  type: 'function',
  function: { name: 'x', description: 'x', parameters: { type: 'object', properties: {} } },
};
const ASKED: Setting = { system: false, tools: false, user: true, prefilled: false };

export function createChatTemplate(tokenizer: Tokenizer): ChatTemplate {
  const render = compile(tokenizer.chatTemplate);
  const protector = createProtector(tokenizer.controlTokens, tokenizer.chatTemplate);
  const argumentsShape = findArgumentsShape((messages) => renderWith(messages, [], false));
  const plainShape: Shape = { arguments: argumentsShape, numberMark: '' };
  const openings = new Map<string, string>();

  function renderWith(messages: unknown, tools: readonly unknown[], generationPrompt: boolean, numberMark = ''): string {
    const shown = { messages, tools: tools.length === 0 ? null : tools, add_generation_prompt: generationPrompt };
    return render({ ...tokenizer.specialTokens, ...shown }, numberMark);
  }

  /** Protected strings begin with one mark at most, so two of them before a number are found there and nowhere else. */
  const shapeWith = (mark: string): Shape => ({ arguments: argumentsShape, numberMark: mark + mark });

  function begin(messages: readonly Message[], tools: readonly Tool[]): Protection {
    // Taken after parsing: JSON text can spell a character that its parsed form then contains.
    return protector.begin(JSON.stringify([shapeMessages(messages, plainShape, (text) => text), tools]));
  }

  function encode(messages: readonly Message[], tools: readonly Tool[], generationPrompt: boolean): Int32Array {
    const { mark, protect, restore } = begin(messages, tools);
    const shaped = shapeMessages(messages, shapeWith(mark), protect);
    const shapedTools = tools.map((tool) => shapeTool(tool, protect));
    return tokenizer.encodeRendered(renderWith(shaped, shapedTools, generationPrompt, mark + mark), restore);
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
    // Protected strings put two marks side by side at most, so three of them are found where they were put and nowhere else.
    const placeholder = mark.repeat(3);
    const thought = mark.repeat(4);
    const opening = openingOf(setting);
    // Some templates want a call before a result; some do not write calls at all, and then the placeholder is lost in it.
    for (const called of next[0]?.role === 'tool' ? [true, false] : [false]) {
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

  const framed = framing(renderAfterTurn, tokenizer.chatTemplate, (text) => !protector.atRisk(text));
  const endOfTurn = findEndOfTurn(tokenizer, () => renderAfterTurn([{ role: 'user', content: 'x' }], ASKED)?.text ?? '');
  return {
    encode: (messages, tools, generationPrompt) => refusing(() => encode(messages, tools, generationPrompt)),
    encodeAfterTurn(next, setting) {
      const after = unlessRefused(() => framed(next, setting));
      const at = endOfTurn === undefined ? -1 : (after?.text.indexOf(endOfTurn) ?? -1);
      if (!after?.appends || at === -1) return undefined;
      const ids = tokenizer.encodeRendered(after.text.slice(at), after.restore);
      return { ids, keepsReasoning: after.keepsReasoning };
    },
    textOf(messages, tools, generationPrompt) {
      const plain = (text: string) => text;
      const shaped = shapeMessages(messages, plainShape, plain);
      const shapedTools = tools.map((tool) => shapeTool(tool, plain));
      return unlessRefused(() => renderWith(shaped, shapedTools, generationPrompt));
    },
    knowsThoughts: tokenizer.chatTemplate.includes('</think>'),
    endOfTurn,
  };
}

/** What comes before the turn in a short conversation of this setting. */
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

/** What a template refuses is undefined; anything else that goes wrong is thrown. */
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
function findArgumentsShape(render: (messages: unknown) => string): ArgumentsShape {
  const text = '{"probe":[1]}';
  const rendered = attempt(() => render([{ role: 'user', content: 'x' }, callTurn(text, 'text')]));
  return rendered?.includes(text) ? 'text' : 'parsed';
}

/** A template may refuse a probe; then it has no end of turn that we could rely on. */
function findEndOfTurn(tokenizer: Tokenizer, renderAfter: () => string): string | undefined {
  const after = attempt(renderAfter) ?? '';
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
