/**
 * The gateway's view of text and tokens: conversations in, prompt ids out; sampled ids in, what was said out.
 *
 * `extend` is the prefix bridge. The ids of a conversation so far are kept verbatim and only what is new is rendered and appended,
 * so a sampled token is never re-tokenised and the cost does not grow with the conversation. Whether a template allows it is for
 * extension.ts to find out.
 *
 * Does not decide whether a request continues a conversation: see history.ts.
 */
import { TrainyardError } from '../core/errors.ts';
import type { Message, Tool, Turn } from '../core/types.ts';
import { type CallBeginning, callBeginning } from './call-beginning.ts';
import { type ChatTemplate, createChatTemplate } from './chat-template.ts';
import { createExtension } from './extension.ts';
import { grown } from './growing-ids.ts';
import { ResponseStream } from './response-stream.ts';
import { type Assistant, parseAssistant } from './speech.ts';
import { beforeStop } from './stop-texts.ts';
import { mannerOf, toolCallIdLengthOf } from './template-traits.ts';
import { loadTokenizer, type Tokenizer } from './tokenizer.ts';

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
  /** Ids of a fresh prompt, up to where the policy begins to speak. Throws REQUEST_INVALID with what the template raised. */
  open(messages: readonly Message[], tools: readonly Tool[]): Int32Array;
  /**
   * The previous turn's ids, verbatim, then the ids of `newMessages` and of the generation prompt. A turn that was cut off by
   * length is closed by an end-of-turn token that belongs to the prompt: the policy did not sample it. Undefined where the template
   * would write what came before in another way once these messages follow: then the prompt has to be rendered afresh.
   */
  extend(previous: PreviousTurn, newMessages: readonly Message[]): Int32Array | undefined;
  /** Ids that begin a call of this tool, or of any, to be put behind the prompt; undefined where this model's calls cannot be begun. */
  readonly callBeginning: CallBeginning;
  /** What was said, up to the first of these texts. `begun`: ids at the end of the prompt that are part of what is said. */
  readResponse(sampledIds: Int32Array, stopTexts?: readonly string[], begun?: Int32Array): Assistant;
  /** The same while it is sampled. */
  streamResponse(stopTexts?: readonly string[], begun?: Int32Array): ResponseStream;
  /** Text of one id by itself. */
  tokenText(id: number): string;
  /** Text of sampled ids as it stands, without the stop id. */
  text(sampledIds: Int32Array): string;
}

/** Without its words, a turn is taken as one before which nobody thought aloud. */
export type PreviousTurn = Pick<Turn, 'promptIds' | 'sampledIds' | 'stopReason'> & Partial<Pick<Turn, 'request' | 'response'>>;

export async function loadRenderer(dir: string): Promise<Renderer> {
  return createRenderer(await loadTokenizer(dir));
}

export function createRenderer(tokenizer: Tokenizer): Renderer {
  const template = createChatTemplate(tokenizer);
  const stopIds = stopIdsOf(tokenizer, template);
  const open = remembering((messages, tools) => template.encode(messages, tools, true));
  const extension = createExtension(template, stopIds);
  const manner = mannerOf(template);

  return {
    vocabSize: tokenizer.vocabSize,
    stopIds,
    extends: extension.always,
    toolCallIdLength: toolCallIdLengthOf(template),
    open,
    extend(previous, newMessages) {
      const { promptIds, sampledIds, stopReason } = previous;
      const after = extension.after(previous, newMessages);
      if (after === undefined) return undefined;
      const closed = stopReason === 'stop' && sampledIds.at(-1) === after[0];
      return grown(promptIds, sampledIds, closed ? after.subarray(1) : after);
    },
    callBeginning: callBeginning(template, tokenizer, manner.format),
    readResponse(sampledIds, stopTexts = [], begun = NOTHING) {
      const said = stripStop(sampledIds, stopIds);
      const opening = tokenizer.decode(begun);
      const text = tokenizer.decode(begun.length === 0 ? said : [...begun, ...said]).slice(opening.length);
      return parseAssistant(opening + (beforeStop(text, stopTexts) ?? text), manner);
    },
    streamResponse: (stopTexts = [], begun = NOTHING) => new ResponseStream(tokenizer.decode, stopIds, manner, stopTexts, begun),
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
      {
        hint: 'name the token that ends a turn as eos_token in tokenizer_config.json',
      },
    );
  }
  return [...new Set(ids)];
}
