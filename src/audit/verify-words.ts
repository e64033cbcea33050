/**
 * Whether the words of stored turns are those of their tokens: prompts are rendered again, responses are read from the sampled ids again, and
 * the seed is one that the run gives this rollout for this prompt. Samples nothing. What no token tells is not checked, such as why a prompt
 * forked, or names that the template leaves out; docs/reference/store.md lists it.
 */
import { isDeepStrictEqual } from 'node:util';
import { tried } from '../core/errors.ts';
import { sameJson } from '../core/json.ts';
import type { Trajectory, Turn } from '../core/types.ts';
import { spokenMessage } from '../gateway/sampling.ts';
import { Seeds } from '../gateway/sessions.ts';
import { GATEWAY_LIMITS } from '../gateway/wire-protocol.ts';
import { newMessagesAfter } from '../tokens/history.ts';
import type { Renderer } from '../tokens/renderer.ts';
import type { Work } from './verify-records.ts';

export function checkWords(trajectory: Trajectory, renderer: Renderer, { plan, found }: Work): void {
  const { rolloutId, turns } = trajectory;
  for (const [place, turn] of turns.entries()) {
    const { index, model, promptIds, sampledIds, stopReason, response, sampling, request } = turn;
    const differs = (kept: string, again: string, meaning: string): void =>
      found.differs(`rollout ${rolloutId}, turn ${place}`, kept, again, meaning);
    if (index !== place) differs(`index ${index}`, `index ${place}`, 'its turns are not in their order');
    if (model !== undefined) {
      if (sampledIds.length > 0)
        differs(`model ${model}`, 'tokens of the policy', 'what the policy said is laid to another model');
      continue;
    }
    if (request.messages.length === 0) found.unchecked.add('words of prompts that were given as token ids');
    const begun = beginningsOf(turn, turns, renderer);
    if (begun.length === 0) differs('its prompt', 'other tokens', 'the messages and tools are not those that the policy read');
    else if (!begun.some((ids) => isSaid(trajectory, turn, ids, renderer))) {
      const said = JSON.stringify(renderer.text(sampledIds));
      differs(`${stopReason}, ${JSON.stringify(response)}`, said, 'the sampled tokens do not say this, or not to their end');
    }
    if (!isDrawn(trajectory, turn, plan.settings.seed))
      differs(
        `seed ${sampling.seed}`,
        `none of ${promptIds.length} tokens`,
        'it was not drawn for this rollout, role, thread and prompt',
      );
  }
}

const startsWith = (ids: Int32Array, first: Int32Array): boolean =>
  ids.length >= first.length && first.every((id, i) => id === ids[i]);

const NOTHING = new Int32Array(0);

/** The ids at the end of the prompt that may begin the response: a forced call's, or none. Empty if its words give another prompt. */
function beginningsOf(turn: Turn, turns: readonly Turn[], renderer: Renderer): readonly Int32Array[] {
  const { promptIds, constrained, after, request } = turn;
  const parent = after === undefined ? undefined : turns[after];
  const isRooted = after === undefined || (parent !== undefined && continues(promptIds, parent));
  const { messages, tools } = request;
  const forced = (): readonly Int32Array[] => {
    const names =
      constrained && !constrained.format ? [constrained.tool] : [undefined, ...tools.map((tool) => tool.function.name)];
    return names.flatMap((name) => renderer.callBeginning(name) ?? []);
  };
  const plain = constrained && !constrained.format ? [] : [NOTHING];
  if (!isRooted) return [];
  if (messages.length === 0)
    return [...plain, ...forced()].filter((ids) => isDeepStrictEqual(ids, promptIds.slice(promptIds.length - ids.length)));
  const rest =
    restAfter(extendedFrom(parent, turn, renderer), promptIds) ??
    restAfter(
      tried(() => renderer.open(messages, tools)),
      promptIds,
    );
  if (rest === undefined) return [];
  return rest.length === 0 ? plain : forced().filter((ids) => isDeepStrictEqual(ids, rest));
}

const continues = (ids: Int32Array, { promptIds, sampledIds }: Turn): boolean =>
  startsWith(ids, promptIds) && startsWith(ids.subarray(promptIds.length), sampledIds);

/** A copy: ids on buffers of different lengths are not equal to `isDeepStrictEqual`. */
function restAfter(first: Int32Array | undefined, ids: Int32Array): Int32Array | undefined {
  return first && startsWith(ids, first) ? ids.slice(first.length) : undefined;
}

function extendedFrom(parent: Turn | undefined, { request }: Turn, renderer: Renderer): Int32Array | undefined {
  const next = parent && sameJson(parent.request.tools, request.tools) ? newMessagesAfter(parent, request.messages) : undefined;
  return next && tried(() => renderer.extend(parent!, next));
}

function isSaid({ rolloutId }: Trajectory, turn: Turn, begun: Int32Array, renderer: Renderer): boolean {
  const { sampledIds, stopReason, response, sampling } = turn;
  const says = (...stopTexts: readonly string[]): boolean =>
    sameJson(
      spokenMessage({ renderer }, rolloutId, sampling.seed, renderer.readResponse(sampledIds, stopTexts, begun)),
      response,
    );
  const isEnded = renderer.stopIds.includes(sampledIds.at(-1)!);
  if (isEnded || stopReason === 'length') return (stopReason === 'stop') === isEnded && says();
  // A stop text ended it, and which one was not kept: it is among the last words of the tokens.
  const text = renderer.text(sampledIds);
  for (let length = 1; length <= text.length; length++) if (says(text.slice(-length))) return true;
  return false;
}

/** Calls without an answer gave their numbers back, but others may have been under way beside them. */
function isDrawn(identity: Trajectory, turn: Turn, seed: number): boolean {
  const seeds = new Seeds({ seed, identity });
  const most = identity.turns.length + GATEWAY_LIMITS.callsAtOnce;
  for (let n = 0; n < most; n++) if (seeds.draw(turn, turn.promptIds).seed === turn.sampling.seed) return true;
  return false;
}
