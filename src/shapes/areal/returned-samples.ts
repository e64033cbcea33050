/**
 * Checks what a `RolloutWorkflow` returned against what its engine recorded. A returned sample selects which completions to train, and
 * their reward. Its tokens, mask, log-probabilities and versions are compared with the record one by one and then discarded: training uses
 * the record. So a mask that is off by one, or re-tokenised text, fails here, with its position, instead of being trained.
 */
import type { WorkflowResult } from '../../core/contracts.ts';
import { describeValue } from '../../core/describe.ts';
import type { StopReason, Turn } from '../../core/types.ts';
import { badReturn as bad } from './episode.ts';

export interface ModelResponse {
  /** The completion id, as a key of `Interactions`. */
  readonly id: string;
  readonly rid: string | undefined;
  readonly inputTokens: readonly number[];
  readonly outputTokens: readonly number[];
  readonly outputLogprobs: readonly number[];
  readonly outputVersions: readonly number[];
  readonly stopReason: StopReason;
  readonly text: string;
}

/** One training row. All lists are as long as `inputIds`. */
export interface EpisodeSample {
  readonly inputIds: ArrayLike<number>;
  /** 1 exactly for tokens that the engine generated; 0 elsewhere, and on completions that are not to be trained. */
  readonly lossMask: ArrayLike<number>;
  /** 0 where the mask is 0. */
  readonly logprobs: ArrayLike<number>;
  /** Policy versions; -1 where the mask is 0. */
  readonly versions: ArrayLike<number>;
  /** The row's reward. Absent: the grader decides. */
  readonly rewards?: number;
}

/** The row of one completion: trains its tokens and masks its prompt. */
export function episodeSample(response: ModelResponse, rewards?: number): EpisodeSample {
  const { inputTokens, outputTokens, outputLogprobs, outputVersions } = response;
  return {
    inputIds: [...inputTokens, ...outputTokens],
    lossMask: [...inputTokens.map(() => 0), ...outputTokens.map(() => 1)],
    logprobs: [...inputTokens.map(() => 0), ...outputLogprobs],
    versions: [...inputTokens.map(() => -1), ...outputVersions],
    ...(rewards === undefined ? {} : { rewards }),
  };
}

const LISTS = ['inputIds', 'lossMask', 'logprobs', 'versions'] as const;
/** For single-precision values that may have gone through JSON, but not through a computation. */
const TOLERANCE = 1e-5;

/** Throws WORKFLOW_BAD_RESULT. */
export function resultOfSamples(samples: readonly EpisodeSample[], turns: readonly Turn[]): WorkflowResult {
  if (samples.length === 0) throw bad('arunEpisode returned an empty list', 'return null to reject the episode');
  const sampleOf = new Map<number, number>();
  for (const [place, sample] of samples.entries()) {
    const name = samples.length === 1 ? 'the sample' : `sample ${place}`;
    checkShape(sample, name);
    for (const { index } of trainedIn(sample, turns, name, new Set(sampleOf.keys()))) {
      const before = sampleOf.get(index) ?? place;
      const known = samples[before]!.rewards;
      if (known !== sample.rewards) {
        const found = `turn ${index} is trained in samples ${before} and ${place}, with the rewards ${known} and ${sample.rewards}`;
        throw bad(found, 'mask it in one of them: a token is trained once');
      }
      sampleOf.set(index, before);
    }
  }
  const trainedTurns = [...sampleOf.keys()];
  const rewards = samples.map(({ rewards: reward }) => reward);
  if (rewards.every((reward) => reward === undefined)) return { trainedTurns };
  const missing = rewards.indexOf(undefined);
  if (missing !== -1) throw bad(`sample ${missing} has no rewards, and others have`, 'give all of them rewards, or none');
  if (new Set(rewards).size === 1) return { reward: rewards[0]!, trainedTurns };
  const value = rewards.reduce<number>((sum, reward) => sum + reward!, 0) / rewards.length;
  const byTurn = Object.fromEntries([...sampleOf].map(([index, place]) => [index, rewards[place]!]));
  return { reward: { value, byTurn }, trainedTurns };
}

function checkShape(sample: EpisodeSample, name: string): void {
  const unknown = Object.keys(sample).filter((key) => ![...LISTS, 'rewards'].includes(key));
  if (unknown.length > 0) throw bad(`${name} has ${unknown.join(', ')}, expected ${LISTS.join(', ')} and rewards`);
  for (const list of LISTS) {
    const found: unknown = sample[list];
    const isList = Array.isArray(found) || (ArrayBuffer.isView(found) && !(found instanceof DataView));
    if (!isList) throw bad(`${list} of ${name} is ${describeValue(found)}, expected a flat list of numbers`);
    const values = Array.from(found as ArrayLike<unknown>);
    const isMask = list === 'lossMask';
    const strange = values.findIndex((value) => (isMask ? value !== 0 && value !== 1 : typeof value !== 'number'));
    if (strange !== -1) {
      const holds = `holds ${describeValue(values[strange])} at position ${strange}`;
      throw bad(`${list} of ${name} ${holds}, expected ${isMask ? '0 or 1' : 'a number'}`);
    }
    const { length } = sample.inputIds;
    if (values.length !== length)
      throw bad(`${list} of ${name} has ${values.length} entries, inputIds has ${length}: expected one for each token`);
  }
  const { rewards } = sample;
  if (rewards !== undefined && !Number.isFinite(rewards))
    throw bad(`rewards of ${name} is ${describeValue(rewards)}, expected one finite number`);
}

/** The turns that the mask selects. Each must be selected whole. */
function trainedIn(sample: EpisodeSample, turns: readonly Turn[], name: string, taken: ReadonlySet<number>): readonly Turn[] {
  const { inputIds, lossMask } = sample;
  const within = turns.filter((turn) => differsAt(turn, inputIds) === undefined);
  if (within.length === 0)
    throw bad(strangerTo(sample, turns, name), 'build the row from inputTokens and outputTokens as agenerate gave them');
  const owner = new Array<Turn | undefined>(inputIds.length).fill(undefined);
  for (const turn of ownersOf(within, taken)) owner.fill(turn, turn.promptIds.length, endOf(turn));
  const trained = new Set<Turn>();
  for (const [i, turn] of owner.entries()) {
    const start = turn?.promptIds.length ?? i;
    if (turn === undefined && lossMask[i] === 1) {
      const spans = within.map(spanOf).join(', ');
      throw bad(`lossMask of ${name} is 1 at position ${i}, which the engine did not generate; it generated ${spans}`, MASK_HINT);
    }
    if (lossMask[i] !== lossMask[start]) {
      const found = `${lossMask[i]} at position ${i} and ${lossMask[start]} at position ${start}, both of the answer ${spanOf(turn!)}`;
      throw bad(`lossMask of ${name} is ${found}: an answer is trained whole or not at all`, MASK_HINT);
    }
    if (turn === undefined || lossMask[i] === 0) continue;
    trained.add(turn);
    checkNumber(sample, 'logprobs', i, turn.logprobs[i - start]!, name);
    checkNumber(sample, 'versions', i, turn.policyVersion, name);
  }
  if (trained.size > 0) return [...trained];
  throw bad(`lossMask of ${name} is 0 everywhere: it would train nothing`, 'return null to reject the episode');
}

/** If two turns have the same prompt and tokens, each sample gets its own. Sorted by end, so that the longest turn comes last. */
function ownersOf(within: readonly Turn[], taken: ReadonlySet<number>): readonly Turn[] {
  const spans = Map.groupBy(within, ({ promptIds, sampledIds }) => `${promptIds.length} ${sampledIds.length}`);
  const owners = [...spans.values()].map((same) => same.find(({ index }) => !taken.has(index)) ?? same[0]!);
  return owners.toSorted((a, b) => endOf(a) - endOf(b));
}

const MASK_HINT = 'position i of the mask is about token i itself: [...inputTokens.map(() => 0), ...outputTokens.map(() => 1)]';

function checkNumber(sample: EpisodeSample, list: 'logprobs' | 'versions', i: number, recorded: number, name: string): void {
  const found = sample[list][i]!;
  if (Math.abs(found - recorded) <= TOLERANCE * Math.max(1, Math.abs(recorded))) return;
  throw bad(
    `${list} of ${name} is ${found} at position ${i}, the engine gave ${recorded}`,
    'position i of each list is about token i itself',
  );
}

/** The first position where the row differs from the turn; undefined if the row contains the whole turn. */
function differsAt({ promptIds, sampledIds }: Turn, inputIds: ArrayLike<number>): number | undefined {
  const { length } = promptIds;
  for (let i = 0; i < length + sampledIds.length; i++) {
    if (inputIds[i] !== (i < length ? promptIds[i] : sampledIds[i - length])) return i;
  }
  return undefined;
}

function strangerTo({ inputIds }: EpisodeSample, turns: readonly Turn[], name: string): string {
  if (turns.length === 0) return `arunEpisode returned ${name}, but the engine generated nothing in this episode`;
  const nearest = turns.map((turn) => ({ turn, at: differsAt(turn, inputIds)! })).toSorted((a, b) => b.at - a.at)[0]!;
  const { turn, at } = nearest;
  const recorded = at < turn.promptIds.length ? turn.promptIds[at] : turn.sampledIds[at - turn.promptIds.length];
  const found = at < inputIds.length ? `is ${inputIds[at]} at position ${at}` : `ends at position ${at}`;
  return `inputIds of ${name} ${found}, where turn ${turn.index} has ${recorded}: the row is none of the engine’s answers`;
}

function endOf({ promptIds, sampledIds }: Turn): number {
  return promptIds.length + sampledIds.length;
}

function spanOf(turn: Turn): string {
  return `${turn.promptIds.length} to ${endOf(turn) - 1}`;
}
