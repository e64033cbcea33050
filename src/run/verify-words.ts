/**
 * Whether the words of stored turns are those of their tokens: prompts are rendered again, responses are read from the sampled ids again, and
 * the seed and sampling settings are those that the run's settings give this rollout. What no token tells (tool-call ids and names that the
 * template leaves out, why a prompt forked, what a client asked for in vain) is not checked; docs/reference/verify.md lists it.
 */
import { isDeepStrictEqual } from 'node:util';
import { tried } from '../core/errors.ts';
import { sameJson } from '../core/json.ts';
import type { SamplingSettings, Trajectory, Turn } from '../core/types.ts';
import { spokenMessage } from '../gateway/sampling.ts';
import { Seeds } from '../gateway/seeds.ts';
import { GATEWAY_LIMITS } from '../gateway/wire-protocol.ts';
import { newMessagesAfter } from '../tokens/history.ts';
import type { Renderer } from '../tokens/renderer.ts';
import type { Findings } from './verify-records.ts';

export interface SampledBy {
  readonly renderer: Renderer;
  readonly seed: number;
  readonly sampling: SamplingSettings;
}

export function checkWords(trajectory: Trajectory, by: SampledBy, found: Findings): void {
  for (const [place, turn] of trajectory.turns.entries()) {
    const differs = (kept: string, again: string, meaning: string): void =>
      found.differs(`rollout ${trajectory.rolloutId}, turn ${place}`, kept, again, meaning);
    if (turn.index !== place) differs(`index ${turn.index}`, `index ${place}`, 'the turns are not in their order');
    const tokens = turn.promptIds.length + turn.sampledIds.length;
    if (turn.model !== undefined) {
      if (tokens > 0) differs(`model ${turn.model}`, 'tokens of the policy', 'what the policy said is laid to another model');
      continue;
    }
    if (turn.request.messages.length === 0) found.unchecked.add('words of prompts that were given as token ids');
    const begun = beginningsOf(turn, trajectory.turns, by.renderer);
    if (begun.length === 0) differs('its prompt', 'other tokens', 'the messages and tools are not those that the policy read');
    else if (!begun.some((one) => isSaid(trajectory, turn, one, by.renderer)))
      differs(`response ${JSON.stringify(turn.response)}`, said(turn, by.renderer), 'the sampled tokens do not say this');
    if (!isDrawn(trajectory, turn, by)) differs(`seed ${turn.sampling.seed}`, 'another', 'not drawn for this rollout and prompt');
    if (!isSampledSo(trajectory, turn, by.sampling))
      differs(`sampling ${JSON.stringify(turn.sampling)}`, JSON.stringify(by.sampling), 'not the settings of the run');
  }
}

const said = ({ sampledIds, stopReason }: Turn, { text, stopIds }: Renderer): string =>
  `${JSON.stringify(text(sampledIds))}, ${stopIds.includes(sampledIds.at(-1)!) ? 'stop' : stopReason}`;

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
function isDrawn(identity: Trajectory, turn: Turn, { seed }: SampledBy): boolean {
  const seeds = new Seeds({ seed, identity });
  const most = identity.turns.length + GATEWAY_LIMITS.callsAtOnce;
  for (let n = 0; n < most; n++) if (seeds.draw(turn, turn.promptIds).seed === turn.sampling.seed) return true;
  return false;
}

/** Where a role was trainable, the run's settings held; elsewhere, what the agent asked for. */
function isSampledSo({ returned }: Trajectory, turn: Turn, run: SamplingSettings): boolean {
  const { requested, effective } = turn.sampling;
  const { maxTokens } = effective;
  const most = Math.min(run.maxTokens, requested.maxTokens ?? run.maxTokens);
  const own = { ...run, maxTokens };
  const asked = { temperature: 1, topP: 1, topK: 0, ...requested, maxTokens };
  const allowed = turn.trainable || returned?.untrained?.includes(turn.index) ? [own] : [own, asked];
  return maxTokens <= most && turn.sampledIds.length <= maxTokens && allowed.some((one) => sameJson(one, effective));
}
