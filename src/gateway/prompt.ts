/**
 * Builds a model request's prompt without sampling or recording: extends the recorded turn that the request continues, if the template
 * allows it, or renders the conversation afresh, or uses the ids that the caller gave, checked against the engine's vocabulary.
 */
import { TrainyardError } from '../core/errors.ts';
import { sameJson } from '../core/json.ts';
import { checkFits, type Engine, OVERFLOW_HINT } from '../core/policy.ts';
import type { Fork, Message, Tool, Turn } from '../core/types.ts';
import { type Asked, type Relation, relate } from '../tokens/history.ts';
import { grown, type Renderer } from '../tokens/renderer.ts';
import { type ForcedCall, invalid, type ModelRequest } from './dialects/dialect.ts';
import type { Caller } from './sessions.ts';

type Prompt = Pick<Turn, 'promptIds' | 'after' | 'fork'>;

export interface PrefilledPrompt {
  readonly prompt: Prompt;
  /** Ids at the end of the prompt that begin the completion: not sampled, but part of the response. */
  readonly prefill?: Int32Array;
}

interface PromptParts {
  readonly renderer: Renderer;
  readonly engine: Engine;
}

/** Throws REQUEST_INVALID and CONTEXT_OVERFLOW. */
export function promptOf(parts: PromptParts, caller: Caller, request: ModelRequest): PrefilledPrompt {
  const { promptIds, forced } = request;
  const prompt = promptIds === undefined ? renderedPrompt(parts, caller, request) : givenPrompt(parts, caller, promptIds);
  if (forced === undefined) return { prompt };
  const prefill = prefillFor(parts.renderer, forced);
  return { prompt: { ...prompt, promptIds: grown(prompt.promptIds, prefill) }, prefill };
}

function prefillFor(renderer: Renderer, { name }: ForcedCall): Int32Array {
  const prefill = renderer.callBeginning(name);
  if (prefill !== undefined) return prefill;
  const what = name === undefined ? 'a call' : `a call of ${JSON.stringify(name)}`;
  throw invalid('tool_choice', `${what} cannot be forced on this model`, 'leave the choice to the policy: "auto"');
}

/** To what was said before. A rollout's first call relates to nothing. */
function relationOf({ renderer, engine }: PromptParts, caller: Caller, request: ModelRequest): Relation<Turn> {
  const { turns } = caller.session;
  if (turns.length === 0) return {};
  checkLength(renderer, engine.contextLength, request.messages);
  return relate(turns, conversationOf(caller, request));
}

function renderedPrompt(parts: PromptParts, caller: Caller, request: ModelRequest): Prompt {
  const { renderer, engine } = parts;
  const { messages, tools } = request;
  const { continues, fork } = relationOf(parts, caller, request);
  const promptIds = continues && renderer.extend(continues.turn, continues.newMessages);
  if (promptIds) return { promptIds, after: continues.turn.index, ...(fork ? { fork } : {}) };
  checkLength(renderer, engine.contextLength, messages, tools);
  const why = continues ? rewritten(continues.turn, fork) : fork;
  const rendered = renderer.open(messages, tools);
  // The client's change need not change a token, because the template may not write it.
  const own = why ? sampledTurns(caller) : [];
  const after = [own.find(({ index }) => index === why?.from), own.at(-1)].find((turn) => turn && extendsTurn(rendered, turn));
  if (after) return { promptIds: rendered, after: after.index };
  return { promptIds: rendered, ...(why ? { fork: why } : {}) };
}

/** What the client did stays the first cause. */
function rewritten(continued: Turn, fork: Fork | undefined): Fork {
  const cause = 'template_rewrites_history';
  return fork ? { ...fork, also: [...(fork.also ?? []), cause] } : { cause, from: continued.index };
}

/** Several turns may be a prefix of the given ids. Training continues the longest, so this records the longest too. */
function givenPrompt({ engine }: PromptParts, caller: Caller, promptIds: Int32Array): Prompt {
  const { contextLength, vocabSize } = engine;
  checkFits(promptIds, contextLength);
  const bad = promptIds.findIndex((id) => id < 0 || id >= vocabSize);
  if (bad !== -1) throw invalid(`promptIds.${bad}`, `${promptIds[bad]} is none of the ${vocabSize} tokens`);
  let after: Turn | undefined;
  for (const turn of sampledTurns(caller)) {
    if (lengthOf(turn) >= (after ? lengthOf(after) : 0) && extendsTurn(promptIds, turn)) after = turn;
  }
  return { promptIds, ...(after ? { after: after.index } : {}) };
}

export function conversationOf({ role, thread }: Caller, { messages, tools }: ModelRequest): Asked {
  return { role, thread, messages, tools };
}

/** The policy's own turns; turns of a default model have no ids. */
function sampledTurns({ session, role, thread }: Caller): readonly Turn[] {
  return session.turns.filter((turn) => turn.thread === thread && turn.role === role && turn.model === undefined);
}

const lengthOf = ({ promptIds, sampledIds }: Turn): number => promptIds.length + sampledIds.length;

/** Whether the ids begin with the whole turn. Repeating only the turn's prompt does not extend it, even if nothing was sampled. */
function extendsTurn(ids: Int32Array, turn: Turn): boolean {
  const { promptIds, sampledIds } = turn;
  const { length } = promptIds;
  if (ids.length < lengthOf(turn) || ids.length === length) return false;
  return promptIds.every((id, i) => ids[i] === id) && sampledIds.every((id, i) => ids[length + i] === id);
}

/**
 * Reuses an earlier turn's messages and tools where their JSON is equal, so a conversation is kept once, not once per turn. `extended`: the
 * prompt holds that turn's tools, whatever the order of keys in the request's.
 */
export function sharedWith(
  before: Turn | undefined,
  { messages, tools }: ModelRequest,
  extended: boolean,
): Pick<Turn['request'], 'messages' | 'tools'> {
  if (before === undefined) return { messages, tools };
  const known = before.request;
  return {
    messages: messages.map((message, i) => (sameJson(known.messages[i], message) ? known.messages[i]! : message)),
    tools: extended || JSON.stringify(known.tools) === JSON.stringify(tools) ? known.tools : tools,
  };
}

/** Unicode normalisation shortens a text by less than this factor. */
const NORMALISING = 4;
/** Shorter texts, in characters, are not checked. */
const SHORT = 64 * 1024;

const longestTokens = new WeakMap<Renderer, number>();

/**
 * Throws CONTEXT_OVERFLOW if the text is too long for the context, judging by characters: tokenising megabytes would block everyone for
 * seconds. The engine counts the tokens of what passes. `tools`: only those to be rendered.
 */
function checkLength(renderer: Renderer, contextLength: number, messages: readonly Message[], tools: readonly Tool[] = []): void {
  const ofTools = tools.length === 0 ? 0 : JSON.stringify(tools).length;
  const length = messages.reduce((sum, message) => sum + charactersIn(message), ofTools);
  if (length <= SHORT || length <= NORMALISING * longestTokenOf(renderer) * contextLength) return;
  const found = `${length} characters are more than a context of ${contextLength} tokens can hold`;
  throw new TrainyardError('CONTEXT_OVERFLOW', found, OVERFLOW_HINT);
}

export function charactersIn({ content, reasoning, tool_calls: calls }: Message): number {
  const said = (content?.length ?? 0) + (reasoning?.length ?? 0);
  return calls === undefined ? said : calls.reduce((sum, call) => sum + call.function.arguments.length, said);
}

/** Length of the longest token in characters; a partial character counts as one. */
function longestTokenOf(renderer: Renderer): number {
  const known = longestTokens.get(renderer);
  if (known !== undefined) return known;
  let most = 1;
  for (let id = 0; id < renderer.vocabSize; id++) most = Math.max(most, renderer.tokenText(id).length);
  longestTokens.set(renderer, most);
  return most;
}
