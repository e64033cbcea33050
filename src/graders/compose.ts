/**
 * Graders made of graders: `weighted` sums, `minimum` and `maximum` pick, `gated` asks one only if another succeeds, `clipped` and `scaled`
 * change the reward. Also penalties, meant as parts of a sum: 0 if all is well, otherwise negative.
 *
 * If a part is unscorable or fails, the whole fails; if a part rejects, the whole is rejected; a failure takes precedence. A sum never
 * leaves parts out: that would be a reward that its author did not intend.
 */
import type { Grader, GraderContext, GraderInput, GraderTurn } from '../core/contracts.ts';
import { defineGrader, rejected, unscorable } from '../core/define.ts';
import { TrainyardError } from '../core/errors.ts';
import { defined, isObject } from '../core/json.ts';
import { toReward } from '../core/reward.ts';
import type { ByName, Reward } from '../core/types.ts';
import { checkGrader, DEFAULT_DEADLINE_MS, ungradedOf } from '../grading/call.ts';
import { checkOptions, optionKind, ownTurns, saidBy, type TextOptions } from './answer-text.ts';
import { regexWithin, statelessRegex } from './text-match.ts';

/** Rounding error of a sum that still counts as 1. */
const ROUNDING = 1e-9;
const BY = ['byTurn', 'byThread', 'byRole'] as const;

const isSuccess = ({ success, value }: Pick<Reward, 'success' | 'value'>) => success ?? value >= 1 - ROUNDING;
const sum = (values: readonly number[]) => values.reduce((total, value) => total + value, 0);
const badReward = (message: string) => new TrainyardError('GRADER_BAD_REWARD', message);
const invalid = (message: string) => new TrainyardError('GRADER_INVALID', message);

export interface WeightedOptions {
  /** The part whose success is the whole's. Absent: a value of 1 or more is a success. */
  readonly success?: string;
}

/**
 * `weighted({ correct: [grader, 0.8], format: [grader, 0.2] })`. The parts are the graders' values before weighting. Rewards by turn,
 * thread or role are summed if all parts give them for the same keys; otherwise the grading fails.
 */
export function weighted(parts: ByName<readonly [grader: Grader, weight: number]>, options: WeightedOptions = {}): Grader {
  const names = checkedNames('weighted', parts);
  checkOptions('weighted', options, { success: names });
  const weights = names.map((name) => {
    const pair: unknown = parts[name];
    if (!Array.isArray(pair) || pair.length !== 2) throw invalid(`weighted: ${name}: expected [grader, weight]`);
    if (Number.isFinite(pair[1])) return pair[1] as number;
    throw invalid(`weighted: the weight of ${name}: expected a finite number, found ${String(pair[1])}`);
  });
  const graders = Object.fromEntries(names.map((name) => [name, parts[name]![0]]));
  return together('weighted', graders, (rewards) => {
    const value = sum(rewards.map((reward, i) => weights[i]! * reward.value));
    const deciding = options.success === undefined ? { value } : rewards[names.indexOf(options.success)]!;
    return { value, success: isSuccess(deciding), ...summedBy(names, rewards, weights) };
  });
}

function summedBy(names: readonly string[], rewards: readonly Reward[], weights: readonly number[]): Partial<Reward> {
  const keysOf = (given: Reward[(typeof BY)[number]] = {}) => Object.keys(given).sort().join('\n');
  const summed = BY.flatMap((by) => {
    const given = rewards.find((reward) => reward[by] !== undefined)?.[by];
    if (given === undefined) return [];
    const other = names.find((_, i) => keysOf(rewards[i]![by]) !== keysOf(given));
    if (other !== undefined) {
      throw badReward(
        `weighted: ${by} of ${other} is not for the same ones as another part's; expected all parts to give it for the same ones, or none`,
      );
    }
    const total = (key: string) => sum(rewards.map((reward, i) => weights[i]! * reward[by]![key]!));
    return [[by, Object.fromEntries(Object.keys(given).map((key) => [key, total(key)]))] as const];
  });
  return Object.fromEntries(summed);
}

/** The lowest value; a success if all parts are. */
export function minimum(parts: ByName<Grader>): Grader {
  return extreme('minimum', parts, Math.min, (rewards) => rewards.every(isSuccess));
}

/** The highest value; a success if any part is. */
export function maximum(parts: ByName<Grader>): Grader {
  return extreme('maximum', parts, Math.max, (rewards) => rewards.some(isSuccess));
}

function extreme(
  kind: 'minimum' | 'maximum',
  parts: ByName<Grader>,
  of: (...values: number[]) => number,
  success: (rewards: readonly Reward[]) => boolean,
): Grader {
  checkedNames(kind, parts);
  return together(kind, parts, (rewards) => {
    const by = BY.find((name) => rewards.some((reward) => reward[name] !== undefined));
    if (by !== undefined) throw badReward(`${kind}: a part gives ${by}, of which there is no ${kind}; use weighted`);
    return { value: of(...rewards.map((reward) => reward.value)), success: success(rewards) };
  });
}

/** Parts are stored as `name.part`, so a dot in a name could make two parts collide. */
function checkedNames(kind: string, parts: unknown): readonly string[] {
  if (!isObject(parts)) {
    throw invalid(`${kind}: expected an object of graders by name, found ${parts === null ? 'null' : typeof parts}`);
  }
  const names = Object.keys(parts);
  if (names.length === 0) throw invalid(`${kind}: expected at least one grader by name, found none`);
  const odd = names.find((name) => name === '' || name.includes('.') || name === '__proto__');
  if (odd !== undefined) throw invalid(`${kind}: a part is named ${JSON.stringify(odd)}, expected a name without dots`);
  return names;
}

/** Asks all parts concurrently. If one fails, aborts the others and throws its error. */
function together(kind: string, parts: ByName<Grader>, combine: (rewards: readonly Reward[]) => Reward): Grader {
  const named = Object.entries(parts);
  for (const [name, grader] of named) checkGrader(grader, `${kind}: ${name}`);
  const whole = `${kind}(${Object.keys(parts).join(', ')})`;
  return composed(whole, Object.values(parts), 'together', async (input, ctx) => {
    const failed = new AbortController();
    const signal = AbortSignal.any([ctx.signal, failed.signal]);
    const asked = named.map(([name, grader]) =>
      rewardOf(name, grader, input, { ...ctx, signal }).catch((thrown: unknown) => {
        if (thrown instanceof Rejection) return thrown;
        failed.abort(thrown);
        throw thrown;
      }),
    );
    const results = await Promise.allSettled(asked);
    failed.signal.throwIfAborted();
    const rewards = results.map((result) => (result as PromiseFulfilledResult<Reward | Rejection>).value);
    const rejection = rewards.find((reward) => reward instanceof Rejection);
    if (rejection !== undefined) throw rejection;
    const given = rewards as readonly Reward[];
    return { ...combine(given), ...shownOf(named.map(([name], i) => [name, given[i]!])) };
  });
}

export interface GatedOptions {
  /** The value if the gate is closed. Default 0. */
  readonly floor?: number;
}

/** Puts a cheap check before an expensive grader, which is asked only if the gate succeeds. Parts: `gate` and, if asked, `score`. */
export function gated(gate: Grader, grader: Grader, options: GatedOptions = {}): Grader {
  checkGrader(gate, 'gated: the gate');
  checkGrader(grader, 'gated: the grader');
  checkOptions('gated', options, { floor: 'number' });
  return composed(`gated(${gate.name}, ${grader.name})`, [gate, grader], 'in turn', async (input, ctx) => {
    const opened: Named = ['gate', await rewardOf('gate', gate, input, ctx)];
    if (!isSuccess(opened[1])) return { value: options.floor ?? 0, success: false, ...shownOf([opened]) };
    const score = await rewardOf('score', grader, input, ctx);
    return { ...score, success: isSuccess(score), ...shownOf([opened, ['score', score]]) };
  });
}

export interface ClipOptions {
  readonly min?: number;
  readonly max?: number;
}

/** Clamps rewards. The metric `clipped` is 1 if any was out of bounds. */
export function clipped(grader: Grader, options: ClipOptions): Grader {
  checkOptions('clipped', options, { min: 'number', max: 'number' });
  const { min = -Infinity, max = Infinity } = options;
  if (min === -Infinity && max === Infinity) throw invalid('clipped: expected min, max or both, found neither');
  if (min > max) throw invalid(`clipped: min is ${min}, expected at most max, which is ${max}`);
  return adjusted('clipped', grader, (reward) => {
    let outside = 0;
    const changed = changedIn(reward, (value) => {
      const kept = Math.min(max, Math.max(min, value));
      if (kept !== value) outside = 1;
      return kept;
    });
    return { ...changed, metrics: { ...reward.metrics, clipped: outside } };
  });
}

export interface ScaleOptions {
  /** Default 1. */
  readonly by?: number;
  /** Added after multiplying. Default 0. */
  readonly plus?: number;
}

export function scaled(grader: Grader, options: ScaleOptions): Grader {
  checkOptions('scaled', options, { by: 'number', plus: 'number' });
  const { by = 1, plus = 0 } = options;
  return adjusted('scaled', grader, (reward) => changedIn(reward, (value) => value * by + plus));
}

/** Keeps the grader's success, which is decided before the number changes. */
function adjusted(kind: string, grader: Grader, change: (reward: Reward) => Reward): Grader {
  checkGrader(grader, kind);
  return composed(`${kind}(${grader.name})`, [grader], 'in turn', async (input, ctx) => {
    const reward = await rewardOf(grader.name, grader, input, ctx);
    return { ...change(reward), success: isSuccess(reward) };
  });
}

/** Changes the value and all rewards by turn, thread and role. */
function changedIn(reward: Reward, change: (value: number) => number): Reward {
  const by = BY.filter((name) => reward[name] !== undefined).map((name) => {
    const changed = Object.entries(reward[name]!).map(([key, value]) => [key, change(value)] as const);
    return [name, Object.fromEntries(changed)] as const;
  });
  return { ...reward, value: change(reward.value), ...Object.fromEntries(by) };
}

class Rejection extends Error {}

type Named = readonly [name: string, reward: Reward];

/**
 * Inherits the lowest concurrency limit, the most retries and all environment variables. The deadline is the longest, or the sum for parts
 * asked in turn; if any part has one, the others count with the default.
 */
function composed(name: string, parts: readonly Grader[], asked: 'together' | 'in turn', grade: Grader['grade']): Grader {
  const given = (of: 'concurrency' | 'deadlineMs' | 'retries', fold: (...values: number[]) => number): number | undefined => {
    const values = parts.flatMap((part) => part[of] ?? []);
    return values.length === 0 ? undefined : fold(...values);
  };
  const deadlines = parts.map(({ deadlineMs = DEFAULT_DEADLINE_MS }) => deadlineMs);
  const needsEnv = [...new Set(parts.flatMap((part) => part.needsEnv ?? []))];
  return defineGrader({
    name,
    ...defined({
      concurrency: given('concurrency', Math.min),
      deadlineMs: given('deadlineMs', () => (asked === 'together' ? Math.max(...deadlines) : sum(deadlines))),
      retries: given('retries', Math.max),
      asksPolicy: parts.some((part) => part.asksPolicy) || undefined,
      judges: parts.some((part) => part.judges) || undefined,
      needsEnv: needsEnv.length === 0 ? undefined : needsEnv,
    }),
    async grade(input, ctx) {
      try {
        return await grade(input, ctx);
      } catch (thrown) {
        if (thrown instanceof Rejection) return rejected(thrown.message);
        throw thrown;
      }
    },
  });
}

/** Throws the grader's error, GRADER_BAD_REWARD or `Rejection`. */
async function rewardOf(name: string, grader: Grader, input: GraderInput, ctx: GraderContext): Promise<Reward> {
  const result: unknown = await grader.grade(input, ctx);
  const nothing = ungradedOf(result);
  if (nothing !== undefined) throw new Rejection(`${name}: ${nothing.why}`);
  return toReward(result, `the grader ${JSON.stringify(name)}`, input.turns.length);
}

/** Values under their names, nested parts and metrics under `name.part`, and all threads that a part excludes from training. */
function shownOf(named: readonly Named[]): Partial<Reward> {
  const below = (name: string, inner: Reward['parts'] = {}) =>
    Object.entries(inner).map(([part, value]) => [`${name}.${part}`, value]);
  const untrained = [...new Set(named.flatMap(([, reward]) => reward.untrained ?? []))];
  return {
    parts: Object.fromEntries(named.flatMap(([name, { value, parts }]) => [[name, value] as const, ...below(name, parts)])),
    metrics: Object.fromEntries(named.flatMap(([name, { metrics }]) => below(name, metrics))),
    ...(untrained.length === 0 ? {} : { untrained }),
  };
}

export interface LengthPenaltyOptions {
  /** Sampled tokens, or characters of content, reasoning and call arguments, in all of the policy's turns. */
  readonly unit: 'tokens' | 'characters';
  /** Length that costs nothing. */
  readonly free: number;
  /** Length beyond `free` that costs 1. */
  readonly per: number;
  /** Highest cost. Default 1. */
  readonly most?: number;
}

const LENGTHS: Readonly<Record<LengthPenaltyOptions['unit'], (turn: GraderTurn) => number>> = {
  tokens: ({ sampledIds }) =>
    sampledIds?.length ?? unscorable('the tokens of this rollout are not known; use lengthPenalty in characters'),
  characters: ({ response: { content, reasoning, tool_calls: calls = [] } }) =>
    (content?.length ?? 0) + (reasoning?.length ?? 0) + sum(calls.map((call) => call.function.arguments.length)),
};

/** −(length − free) / per, from 0 down to −most. The length is a metric. */
export function lengthPenalty(options: LengthPenaltyOptions): Grader {
  const kinds = { unit: Object.keys(LENGTHS), free: 'amount', per: 'positive', most: 'amount' } as const;
  checkOptions('lengthPenalty', options, kinds, ['unit', 'free', 'per']);
  const { unit, free, per, most = 1 } = options;
  return defineGrader({
    name: 'lengthPenalty',
    grade(input) {
      const length = sum(ownTurns(input).map(LENGTHS[unit]));
      const cost = Math.min(most, Math.max(0, length - free) / per);
      return { value: cost === 0 ? 0 : -cost, success: cost === 0, metrics: { [unit]: length } };
    },
  });
}

/** 0 if the test holds for the response, else −cost. Expressions run under a time limit. */
export function formatPenalty(test: RegExp | ((said: string) => boolean), cost: number, options: TextOptions = {}): Grader {
  const isTest = (value: unknown) => value instanceof RegExp || typeof value === 'function';
  const kinds = {
    test: optionKind('a regular expression or a function from text to true or false', isTest),
    cost: 'positive',
  } as const;
  checkOptions('formatPenalty', { test, cost }, kinds, ['test', 'cost']);
  checkOptions('formatPenalty', options, { of: 'function' });
  const holds = test instanceof RegExp ? regexWithin(statelessRegex(test)) : test;
  return defineGrader({
    name: 'formatPenalty',
    grade(input) {
      const held: unknown = holds(saidBy(input, options.of));
      if (typeof held === 'boolean') return { value: held ? 0 : -cost, success: held };
      return unscorable(`the test of formatPenalty returned ${typeof held}, expected true or false`);
    },
  });
}

export interface RepetitionPenaltyOptions {
  readonly cost: number;
  /** How often a word, or a phrase of up to five words, may repeat in a row. Default 10. */
  readonly words?: number;
  /** The same for one to four characters. Default 200. */
  readonly characters?: number;
}

const LONGEST_PHRASE = { words: 5, characters: 4 } as const;

/** −cost if a turn repeats something more often than allowed. The metrics hold the highest counts. */
export function repetitionPenalty(options: RepetitionPenaltyOptions): Grader {
  checkOptions('repetitionPenalty', options, { cost: 'positive', words: 'positive', characters: 'positive' }, ['cost']);
  const { cost, words = 10, characters = 200 } = options;
  return defineGrader({
    name: 'repetitionPenalty',
    grade(input) {
      const texts = ownTurns(input).flatMap(({ response: { content, reasoning } }) => [content ?? '', reasoning ?? '']);
      const most = (of: (text: string) => readonly string[], longest: number) =>
        Math.max(0, ...texts.map((text) => mostInARow(of(text), longest)));
      const repeatedWords = most((text) => text.split(/\s+/u).filter((word) => word !== ''), LONGEST_PHRASE.words);
      const repeatedCharacters = most((text) => [...text.replace(/\s+/gu, ' ')], LONGEST_PHRASE.characters);
      const isFine = repeatedWords <= words && repeatedCharacters <= characters;
      return { value: isFine ? 0 : -cost, success: isFine, metrics: { repeatedWords, repeatedCharacters } };
    },
  });
}

/** The most consecutive repetitions of any phrase of up to `longest` items. */
function mostInARow(items: readonly string[], longest: number): number {
  let most = items.length === 0 ? 0 : 1;
  for (let period = 1; period <= longest; period += 1) {
    let alike = 0;
    for (let at = period; at < items.length; at += 1) {
      alike = items[at] === items[at - period] ? alike + 1 : 0;
      most = Math.max(most, Math.floor(alike / period) + 1);
    }
  }
  return most;
}
