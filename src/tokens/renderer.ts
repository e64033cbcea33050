/**
 * Turns conversations into prompt ids and sampled ids into responses, for the gateway.
 *
 * `extend` keeps the ids of a conversation verbatim and renders and appends only the new messages, so a sampled token is never re-tokenised
 * and the cost does not grow with the conversation. `extension.ts` finds out whether a template allows this; `history.ts` decides whether a
 * request continues a conversation.
 */
import type { ModelHandle } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { isObject } from '../core/json.ts';
import type { ConstrainedText, SampleConstraint, TokenBytes } from '../core/json-machine.ts';
import type { Json, Message, Tool, Turn } from '../core/types.ts';
import { type ChatTemplate, createChatTemplate } from './chat-template.ts';
import {
  callWithId,
  createExtension,
  PROBE_CALL,
  probeTool,
  promptsThoughts,
  readsProbe,
  responseFormatOf,
  toolCallIdLengthOf,
} from './extension.ts';
import { type Assistant, beforeStop, parseAssistant } from './response-parser.ts';
import { ResponseStream } from './response-stream.ts';
import { loadTokenizer, type Tokenizer } from './tokenizer.ts';
import { type CallFormat, inCallOrder, skipSpace, ValueScan } from './tool-calls.ts';

/** Prompts, and characters of each: some 10 MB at the very most. */
const REMEMBERED_PROMPTS = 256;
const REMEMBERED_LENGTH = 8192;

export interface Renderer {
  readonly vocabSize: number;
  /** Ids that end a turn. */
  readonly stopIds: readonly number[];
  /** Whether conversations can grow by appending, whatever is said in them. If not, `extend` gives undefined where they cannot. */
  readonly extends: boolean;
  /** Where the template demands tool-call ids of letters and digits, how many of them. */
  readonly toolCallIdLength: number | undefined;
  /** What the template leaves out, so that it is written in our own form. */
  readonly leftOut: readonly ('tools' | 'tool calls')[];
  /** Ids of a fresh prompt, up to where the policy begins to speak. Throws REQUEST_INVALID with what the template raised. */
  open(messages: readonly Message[], tools: readonly Tool[]): Int32Array;
  /**
   * The previous turn's ids, verbatim, then the ids of `newMessages` and of the generation prompt. A turn that was cut off by
   * length is closed by an end-of-turn token that belongs to the prompt: the policy did not sample it. Undefined where the template
   * would write what came before in another way once these messages follow: then the prompt has to be rendered afresh.
   */
  extend(previous: PreviousTurn, newMessages: readonly Message[]): Int32Array | undefined;
  /**
   * Ids that the policy would have sampled to give this response to these messages, up to the token that closes the turn. Undefined where
   * the template writes a response in another way than a generation prompt begins one. Throws REQUEST_INVALID like `open`.
   */
  spoken(messages: readonly Message[], tools: readonly Tool[], response: Message): Int32Array | undefined;
  /** Ids that begin a call of this tool, or of any, to be put behind the prompt; undefined where this model's calls cannot be begun. */
  readonly callBeginning: CallBeginning;
  /** What may follow `callBeginning`: arguments that fit the tool's schema, and the end. Undefined where that cannot be told in bytes. */
  readonly callConstraint: CallConstraint;
  /** A response that is JSON of this schema; undefined where that cannot be told in bytes, or reasoning comes first. */
  formatConstraint(schema: Json): SampleConstraint | undefined;
  /** What was said, up to the first of these texts. `begun`: ids at the end of the prompt that are part of what is said. */
  readResponse(sampledIds: Int32Array, stopTexts?: readonly string[], begun?: Int32Array): Assistant;
  /** The same while it is sampled. */
  streamResponse(stopTexts?: readonly string[], begun?: Int32Array): ResponseStream;
  /** Text of one id by itself. */
  tokenText(id: number): string;
  /** Text of sampled ids as it stands, without the stop id. */
  text(sampledIds: Int32Array): string;
}

/** A turn without its request and response is taken as one without reasoning before it. */
type PreviousTurn = Pick<Turn, 'promptIds' | 'sampledIds' | 'stopReason'> & Partial<Pick<Turn, 'request' | 'response'>>;

export async function loadRenderer(dir: string): Promise<Renderer> {
  return createRenderer(await loadTokenizer(dir));
}

/** The parts of a model handle that work on token ids. `rendererFor` may refuse: not every policy has tokens. */
export function renderAndDecode(rendererFor: (what: 'render' | 'decode') => Renderer): Pick<ModelHandle, 'render' | 'decode'> {
  return {
    render: (messages, { tools = [], after } = {}) => {
      const renderer = rendererFor('render');
      const before = after?.response === undefined ? [] : [after.response];
      const given = inCallOrder([...before, ...messages]).slice(before.length);
      const ids = after === undefined ? renderer.open(given, tools) : renderer.extend(after, given);
      if (ids !== undefined) return ids;
      const found = 'the chat template writes what came before in another way once these messages follow';
      throw new TrainyardError('REQUEST_INVALID', found, 'render the whole conversation afresh');
    },
    decode: (ids) => rendererFor('decode').text(Int32Array.from(ids)),
  };
}

export function createRenderer(tokenizer: Tokenizer): Renderer {
  const template = createChatTemplate(tokenizer);
  const stopIds = stopIdsOf(tokenizer, template);
  const open = remembering((messages, tools) => template.encode(messages, tools, true));
  const extension = createExtension(template, stopIds);
  const responseFormat = responseFormatOf(template);

  const vocabulary = remembered(() => tokenizer.bytesOf && packed(tokenizer.vocabSize, tokenizer.bytesOf));

  return {
    vocabSize: tokenizer.vocabSize,
    stopIds,
    extends: extension.always,
    toolCallIdLength: toolCallIdLengthOf(template),
    leftOut: [
      ...(template.ownForm.tools ? (['tools'] as const) : []),
      ...(template.ownForm.calls ? (['tool calls'] as const) : []),
    ],
    open,
    extend(previous, newMessages) {
      const { promptIds, sampledIds, stopReason } = previous;
      const after = extension.after(previous, newMessages);
      if (after === undefined) return undefined;
      const closed = stopReason === 'stop' && sampledIds.at(-1) === after[0];
      return grown(promptIds, sampledIds, closed ? after.subarray(1) : after);
    },
    spoken: (messages, tools, response) => template.encodeSpoken([...messages, response], tools),
    ...forcedCalls(template, tokenizer, responseFormat.format, vocabulary),
    formatConstraint(schema) {
      const known = responseFormat.thinks === 'unmarked' ? vocabulary() : undefined;
      return known && { texts: [{ before: [], schema, after: [] }], vocabulary: known };
    },
    readResponse(sampledIds, stopTexts = [], begun = NOTHING) {
      const said = stripStop(sampledIds, stopIds);
      const opening = tokenizer.decode(begun);
      const text = tokenizer.decode(begun.length === 0 ? said : [...begun, ...said]).slice(opening.length);
      return parseAssistant(opening + (beforeStop(text, stopTexts) ?? text), responseFormat);
    },
    streamResponse: (stopTexts = [], begun = NOTHING) =>
      new ResponseStream(tokenizer.decode, stopIds, responseFormat, stopTexts, begun),
    tokenText: (id) => tokenizer.decode([id]),
    text: (sampledIds) => tokenizer.decode(stripStop(sampledIds, stopIds)),
  };
}

const NOTHING = new Int32Array(0);

type Open = Renderer['open'];

/** The rollouts of a group all open with the same prompt, and rendering one costs more than anything else in a model call. */
function remembering(render: Open): Open {
  const remembered = new Map<string, Int32Array>();
  return (messages, tools) => {
    const key = JSON.stringify([messages, tools]);
    const known = remembered.get(key) ?? render(messages, tools);
    if (remembered.size >= REMEMBERED_PROMPTS) remembered.clear();
    if (key.length <= REMEMBERED_LENGTH) remembered.set(key, known);
    // A copy: a prompt belongs to its turn.
    return known.slice();
  };
}

/** The ids without the stop id that ended them, if one did. */
export function stripStop(sampledIds: Int32Array, stopIds: readonly number[]): Int32Array {
  const last = sampledIds.at(-1);
  return last !== undefined && stopIds.includes(last) ? sampledIds.subarray(0, -1) : sampledIds;
}

function stopIdsOf(tokenizer: Tokenizer, template: ChatTemplate): readonly number[] {
  const texts = [template.endOfTurn, tokenizer.specialTokens.eos_token];
  const ids = texts.map((text) => (text === undefined ? undefined : tokenizer.idOf(text))).filter((id) => id !== undefined);
  if (ids.length === 0) {
    throw new TrainyardError(
      'TOKENIZER_INVALID',
      'nothing ends a turn: no eos_token, and the chat template closes no assistant turn',
      'name the token that ends a turn as eos_token in tokenizer_config.json',
    );
  }
  return [...new Set(ids)];
}

/** Other names might need escaping that depends on the format. */
const PLAIN_NAME = /^[\w.-]+$/;

/**
 * The ids that begin a tool call in this model's format. A policy that must call a tool gets them as part of its prompt.
 *
 * They end before the arguments, or before the name if any tool will do, and before white space, which the model may sample. Found by
 * rendering a probe. Undefined if the template writes no calls that can be read, or opens a response with something else, such as reasoning.
 */
type CallBeginning = (name: string | undefined) => Int32Array | undefined;
type CallConstraint = (name: string | undefined, tools: readonly Tool[]) => SampleConstraint | undefined;

function forcedCalls(template: ChatTemplate, tokenizer: Tokenizer, format: CallFormat, vocabulary: () => TokenBytes | undefined) {
  const probed = promptsThoughts(template) ? undefined : probe(template, format);
  if (probed === undefined) return { callBeginning: () => undefined, callConstraint: () => undefined };
  const { before, spoken } = probed;
  const nameAt = spoken.indexOf(PROBE_CALL.name);
  const opening = spoken.slice(0, nameAt);
  const toArguments = format.toArguments.exec(spoken.slice(nameAt + PROBE_CALL.name.length))?.[0];
  const idsBefore = tokenizer.encodeRendered(before);
  const textOf = (name: string | undefined) =>
    name === undefined ? opening.replace(/\s*"$/, '') : `${opening}${name}${toArguments}`;
  const callBeginning: CallBeginning = (name) => {
    if (name !== undefined && (toArguments === undefined || !PLAIN_NAME.test(name))) return undefined;
    const text = textOf(name);
    // As it stands in a prompt: some tokenizers write the beginning of a text in another way.
    const ids = tokenizer.encodeRendered(before + text);
    return idsBefore.every((id, i) => id === ids[i]) && ids.length > idsBefore.length ? ids.slice(idsBefore.length) : undefined;
  };
  const closing = closingOf(spoken, nameAt + PROBE_CALL.name.length + (toArguments?.length ?? 0), template.endOfTurn);
  const { bytesOf } = tokenizer;
  const callConstraint: CallConstraint = (name, tools) => {
    const allowed = tools.filter(({ function: { name: one } }) => name === undefined || one === name);
    if (closing === undefined || !bytesOf || !allowed.every((tool) => PLAIN_NAME.test(tool.function.name))) return undefined;
    const bytesIn = (text: string) => Array.from(tokenizer.encodeRendered(text)).flatMap(bytesOf);
    const texts = allowed.map(({ function: { name: one, parameters } }): ConstrainedText => {
      const before = bytesIn(textOf(one).slice(textOf(name).length));
      return { before, schema: objectSchema(parameters), after: bytesIn(closing) };
    });
    return { texts, vocabulary: vocabulary()! };
  };
  return { callBeginning, callConstraint };
}

/** Arguments are an object, also where the schema does not say so. */
function objectSchema(parameters: Json | undefined): Json {
  const says = ['type', 'properties', 'anyOf', 'oneOf', '$ref'];
  const given = isObject(parameters) ? parameters : {};
  return says.some((name) => name in given) ? (given as Json) : { type: 'object' };
}

/** What the template writes between a call's arguments and the end of the turn; undefined if those are no JSON, or an id follows them. */
function closingOf(spoken: string, argumentsAt: number, endOfTurn: string | undefined): string | undefined {
  const end = new ValueScan().endOf(spoken, skipSpace(spoken, argumentsAt));
  const stop = typeof end === 'number' && endOfTurn !== undefined ? spoken.indexOf(endOfTurn, end) : -1;
  const closing = stop === -1 ? undefined : spoken.slice(end as number, stop);
  return closing?.includes(PROBE_ID) ? undefined : closing;
}

function remembered<T>(make: () => T): () => T {
  let known: { readonly value: T } | undefined;
  return () => {
    known ??= { value: make() };
    return known.value;
  };
}

function packed(vocabSize: number, bytesOf: (id: number) => readonly number[]): TokenBytes {
  const ends = new Int32Array(new SharedArrayBuffer(vocabSize * Int32Array.BYTES_PER_ELEMENT));
  const tokens = Array.from(ends, (_, id) => bytesOf(id));
  let length = 0;
  for (const [id, { length: own }] of tokens.entries()) {
    length += own;
    ends[id] = length;
  }
  const bytes = new Uint16Array(new SharedArrayBuffer(length * Uint16Array.BYTES_PER_ELEMENT));
  for (const [id, token] of tokens.entries()) bytes.set(token, ends[id]! - token.length);
  return { bytes, ends };
}

const PROBE_ID = 'call00000';

/** A prompt and what the template writes after it for a call. Some templates put the tools in between. */
function probe(template: ChatTemplate, format: CallFormat): { readonly before: string; readonly spoken: string } | undefined {
  const conversation = callWithId(PROBE_ID);
  for (const tools of [[probeTool], []]) {
    const before = template.textOf(conversation.slice(0, 1), tools, true);
    const whole = template.textOf(conversation, tools, false);
    const spoken = before !== undefined && whole?.startsWith(before) ? whole.slice(before.length) : '';
    if (before !== undefined && readsProbe(format, spoken)) return { before, spoken };
  }
  return undefined;
}

/** How many ids of each of our own buffers are in use. */
const taken = new WeakMap<ArrayBufferLike, number>();

/** Spare room in a new buffer, as a share of its ids: more means fewer copies and more memory. */
const ROOM = 0.5;

/**
 * Concatenates ids. Each prompt of a conversation begins with the whole previous one, so the prompts share a buffer and the next one costs
 * only its new ids. Ids that were handed out never change: new ids are appended in place only if the buffer is ours and nothing was appended
 * to it before. The same continuation again (a retry) returns the same memory; a different one gets a copy.
 */
export function grown(first: Int32Array, ...parts: readonly Int32Array[]): Int32Array {
  const length = parts.reduce((sum, part) => sum + part.length, first.length);
  const { buffer } = first;
  const used = (first.byteOffset === 0 ? taken.get(buffer) : undefined) ?? -1;
  if (used >= length) {
    const before = new Int32Array(buffer, 0, length);
    if (follow(before, first.length, parts)) return before;
  }
  const inPlace = used === first.length && length * Int32Array.BYTES_PER_ELEMENT <= buffer.byteLength;
  const whole = inPlace ? new Int32Array(buffer) : new Int32Array(Math.ceil(length * (1 + ROOM)));
  if (!inPlace) whole.set(first);
  let at = first.length;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  taken.set(whole.buffer, length);
  return whole.subarray(0, length);
}

/** Whether `ids` contains these parts in sequence from `place` on. */
function follow(ids: Int32Array, place: number, parts: readonly Int32Array[]): boolean {
  let at = place;
  return parts.every((part) => part.every((id) => ids[at++] === id));
}
