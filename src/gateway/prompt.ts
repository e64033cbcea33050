/**
 * The prompt of one question: the ids of the recorded turn that it continues, extended, where there is one and the template lets it;
 * otherwise rendered afresh; or the very ids that were given.
 *
 * Only tokens that the engine knows are let through. Nothing is sampled or recorded here.
 */
import { TrainyardError } from '../core/errors.ts';
import { sameJson } from '../core/json.ts';
import type { Engine } from '../core/policy.ts';
import type { Message, Tool, Turn } from '../core/types.ts';
import { type Asked, relate } from '../tokens/history.ts';
import type { Renderer } from '../tokens/renderer.ts';
import { type ForcedCall, invalid, type Question } from './dialects/dialect.ts';
import type { Seat } from './sessions.ts';

export type Prompt = Pick<Turn, 'promptIds' | 'after' | 'fork'>;

/** With the ids at its end that the policy is made to begin its answer with: context like the rest, said like what follows. */
export interface BegunPrompt {
  readonly prompt: Prompt;
  readonly begun?: Int32Array;
}

interface PromptParts {
  readonly renderer: Renderer;
  readonly engine: Engine;
}

/** Throws REQUEST_INVALID and CONTEXT_OVERFLOW. */
export function promptOf(parts: PromptParts, seat: Seat, question: Question): BegunPrompt {
  const { promptIds, forced } = question;
  const prompt = promptIds === undefined ? promptOfWords(parts, seat, question) : promptOfIds(parts, seat, promptIds);
  if (forced === undefined) return { prompt };
  const begun = beginningOf(parts.renderer, forced);
  return { prompt: { ...prompt, promptIds: joined(prompt.promptIds, begun) }, begun };
}

function joined(a: Int32Array, b: Int32Array): Int32Array {
  const ids = new Int32Array(a.length + b.length);
  ids.set(a);
  ids.set(b, a.length);
  return ids;
}

function beginningOf(renderer: Renderer, { name }: ForcedCall): Int32Array {
  const begun = renderer.callBeginning(name);
  if (begun !== undefined) return begun;
  const what = name === undefined ? 'a call' : `a call of ${JSON.stringify(name)}`;
  throw invalid('tool_choice', `${what} cannot be forced on this model`, 'leave the choice to the policy: "auto"');
}

function promptOfWords({ renderer, engine }: PromptParts, seat: Seat, question: Question): Prompt {
  const { session } = seat;
  const { messages, tools } = question;
  checkLength(renderer, engine.contextLength, messages);
  const { continues, fork } = relate(session.turns, asked(seat, question));
  const promptIds = continues && renderer.extend(continues.turn, continues.newMessages);
  if (promptIds) return { promptIds, after: continues.turn.index, ...(fork ? { fork } : {}) };
  checkLength(renderer, engine.contextLength, messages, tools);
  const why = continues ? { cause: 'template_rewrites_history' as const, from: continues.turn.index } : fork;
  const rendered = renderer.open(messages, tools);
  const latest = sampledBy(seat).at(-1);
  // What the client changed need not change a token: the template may not write it.
  if (why && latest && beginsWith(rendered, latest)) return { promptIds: rendered, after: latest.index };
  return { promptIds: rendered, ...(why ? { fork: why } : {}) };
}

/** Of the turns that it goes on from, the one that said most: what training takes it to continue. */
function promptOfIds({ engine }: PromptParts, seat: Seat, promptIds: Int32Array): Prompt {
  const { contextLength, vocabSize } = engine;
  if (promptIds.length >= contextLength) {
    throw new TrainyardError('CONTEXT_OVERFLOW', `the prompt has ${promptIds.length} tokens, the context is ${contextLength}`);
  }
  const bad = promptIds.findIndex((id) => id < 0 || id >= vocabSize);
  if (bad !== -1) {
    throw new TrainyardError('REQUEST_INVALID', `promptIds.${bad}: ${promptIds[bad]} is none of the ${vocabSize} tokens`, {
      param: `promptIds.${bad}`,
    });
  }
  let after: Turn | undefined;
  for (const turn of sampledBy(seat)) {
    if (lengthOf(turn) >= (after ? lengthOf(after) : 0) && beginsWith(promptIds, turn)) after = turn;
  }
  return { promptIds, ...(after ? { after: after.index } : {}) };
}

export const asked = ({ role, thread }: Seat, { messages, tools }: Question): Asked => ({ role, thread, messages, tools });

/** The policy's own turns in this conversation: what another model said has no ids. */
function sampledBy({ session, role, thread }: Seat): readonly Turn[] {
  return session.turns.filter((turn) => turn.thread === thread && turn.role === role && turn.model === undefined);
}

const lengthOf = ({ promptIds, sampledIds }: Turn): number => promptIds.length + sampledIds.length;

/** And goes on: where nothing was sampled, asking again is no extension. */
function beginsWith(ids: Int32Array, turn: Turn): boolean {
  const { promptIds, sampledIds } = turn;
  const { length } = promptIds;
  if (ids.length < lengthOf(turn) || ids.length === length) return false;
  return promptIds.every((id, i) => ids[i] === id) && sampledIds.every((id, i) => ids[length + i] === id);
}

/**
 * The words of a request, as the objects of the turn before, or of the one it forked from, wherever it repeats them to the letter: kept
 * once, not once for every turn that follows.
 */
export function remembered(before: Turn | undefined, { messages, tools }: Question): Pick<Turn['request'], 'messages' | 'tools'> {
  if (before === undefined) return { messages, tools };
  const known = before.request;
  return {
    messages: messages.map((message, i) => (sameJson(known.messages[i], message) ? known.messages[i]! : message)),
    tools: sameJson(known.tools, tools) ? known.tools : tools,
  };
}

// From prompt-length.ts: Whether a conversation can fit into the context at all, told from the length of its text. To tokenise megabytes takes seconds, in which
// nobody else is served; what cannot fit is refused without it. What passes is measured in tokens by the engine, as ever.

/** Normal forms make a text shorter, by less than this factor. */
const NORMALISING = 4;
/** Texts up to this length are not worth a look. */
const SHORT = 64 * 1024;

const longest = new WeakMap<Renderer, number>();

/** Throws CONTEXT_OVERFLOW. `tools`: those that are to be rendered; none where a recorded prompt has them already. */
export function checkLength(
  renderer: Renderer,
  contextLength: number,
  messages: readonly Message[],
  tools: readonly Tool[] = [],
): void {
  let length = tools.length === 0 ? 0 : JSON.stringify(tools).length;
  for (const { content, reasoning, tool_calls: calls } of messages) {
    length += (content?.length ?? 0) + (reasoning?.length ?? 0);
    for (const call of calls ?? []) length += call.function.arguments.length;
  }
  if (length <= SHORT || length <= NORMALISING * longestTokenOf(renderer) * contextLength) return;
  throw new TrainyardError(
    'CONTEXT_OVERFLOW',
    `${length} characters are more than a context of ${contextLength} tokens can hold`,
  );
}

/** Characters of the longest token; what is half a character counts as one. */
function longestTokenOf(renderer: Renderer): number {
  const known = longest.get(renderer);
  if (known !== undefined) return known;
  let most = 1;
  for (let id = 0; id < renderer.vocabSize; id++) most = Math.max(most, renderer.tokenText(id).length);
  longest.set(renderer, most);
  return most;
}
