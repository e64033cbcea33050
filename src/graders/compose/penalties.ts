/**
 * Penalties: graders whose value is 0 where all is well and below 0 where it is not. They are meant to be components of `weighted`.
 */
import type { Grader, GraderInput, GraderTurn } from '../../core/contracts.ts';
import { defineGrader, unscorable } from '../../core/define.ts';
import { checkOptions, type TextOptions } from '../options.ts';
import { ownTurns, saidBy } from '../said.ts';
import { regexWithin, statelessRegex } from '../text-match.ts';
import { checkFinite, invalid } from './component.ts';

export interface LengthPenaltyOptions {
  /** What is counted of all that the policy said in the rollout: sampled tokens, or characters. */
  readonly unit: 'tokens' | 'characters';
  /** So many cost nothing. */
  readonly free: number;
  /** So many beyond those cost 1. */
  readonly per: number;
  /** The most it can cost. Default 1. */
  readonly most?: number;
}

/** Minus (length − free) / per, from 0 down to −most. The length is its metric. */
export function lengthPenalty(options: LengthPenaltyOptions): Grader {
  const kinds = { unit: ['tokens', 'characters'], free: 'amount', per: 'amount', most: 'amount' } as const;
  checkOptions('lengthPenalty', options, kinds, () => lengthFaults(options));
  const { unit, free, per, most = 1 } = options;
  return defineGrader({
    name: 'lengthPenalty',
    grade(input) {
      const length = unit === 'tokens' ? sampledTokens(input) : spokenCharacters(input);
      const cost = Math.min(most, Math.max(0, length - free) / per);
      return { value: cost === 0 ? 0 : -cost, success: cost === 0, metrics: { [unit]: length } };
    },
  });
}

function* lengthFaults({ unit, free, per }: Partial<LengthPenaltyOptions>): Generator<string> {
  if (unit === undefined) yield "unit: expected 'tokens' or 'characters'";
  if (free === undefined) yield 'free: expected how many cost nothing';
  if (per === undefined) yield 'per: expected how many cost 1';
  if (per === 0) yield 'per is 0, expected more than 0';
}

/** 0 where the test holds for the final answer, else minus `cost`. An expression is tried under a time limit. */
export function formatPenalty(test: RegExp | ((said: string) => boolean), cost: number, options: TextOptions = {}): Grader {
  checkOptions('formatPenalty', options, { of: 'function' });
  checkFinite(cost, 'formatPenalty: cost');
  if (cost <= 0) throw invalid(`formatPenalty: cost is ${cost}, expected more than 0`);
  if (!(test instanceof RegExp) && typeof test !== 'function') {
    throw invalid(`formatPenalty: expected a regular expression or a function from text to true or false, found ${typeof test}`);
  }
  const holds = test instanceof RegExp ? regexWithin(statelessRegex(test)) : test;
  return defineGrader({
    name: 'formatPenalty',
    grade(input) {
      const held: unknown = holds(saidBy(input, options.of));
      if (typeof held !== 'boolean')
        return unscorable(`the test of formatPenalty returned ${typeof held}, expected true or false`);
      return { value: held ? 0 : -cost, success: held };
    },
  });
}

export interface RepetitionPenaltyOptions {
  readonly cost: number;
  /** How often in a row a word, or a phrase of up to five, may be said. Default 10. */
  readonly words?: number;
  /** The same of a character, or of up to four. Default 200. */
  readonly characters?: number;
}

/** Lengths of what is repeated. */
const LONGEST_PHRASE = { words: 5, characters: 4 } as const;

/** Minus `cost` where the policy said one thing over and over in one of its turns. How often is in its metrics. */
export function repetitionPenalty(options: RepetitionPenaltyOptions): Grader {
  checkOptions('repetitionPenalty', options, { cost: 'number', words: 'number', characters: 'number' });
  const { cost, words = 10, characters = 200 } = options;
  for (const [name, value] of Object.entries({ cost, words, characters })) {
    checkFinite(value, `repetitionPenalty: ${name}`);
    if (value <= 0) throw invalid(`repetitionPenalty: ${name} is ${value}, expected more than 0`);
  }
  return defineGrader({
    name: 'repetitionPenalty',
    grade(input) {
      const texts = ownTurns(input).flatMap(({ response: { content, reasoning } }) => [content ?? '', reasoning ?? '']);
      const most = (of: (text: string) => readonly string[], longest: number): number =>
        Math.max(0, ...texts.map((text) => mostInARow(of(text), longest)));
      const repeated = {
        words: most((text) => text.split(/\s+/u).filter((word) => word !== ''), LONGEST_PHRASE.words),
        characters: most((text) => [...text.replace(/\s+/gu, ' ')], LONGEST_PHRASE.characters),
      };
      const isFine = repeated.words <= words && repeated.characters <= characters;
      const metrics = { repeatedWords: repeated.words, repeatedCharacters: repeated.characters };
      return { value: isFine ? 0 : -cost, success: isFine, metrics };
    },
  });
}

/** How often the same `longest` items or fewer come one after another, at most. */
function mostInARow(items: readonly string[], longest: number): number {
  let most = items.length === 0 ? 0 : 1;
  for (let period = 1; period <= longest; period += 1) {
    let alike = 0;
    for (let place = period; place < items.length; place += 1) {
      alike = items[place] === items[place - period] ? alike + 1 : 0;
      most = Math.max(most, Math.floor(alike / period) + 1);
    }
  }
  return most;
}

function sampledTokens(input: GraderInput): number {
  return ownTurns(input).reduce((sum, { sampledIds }) => {
    if (sampledIds === undefined) return unscorable('the tokens of this rollout are not known; use lengthPenalty in characters');
    return sum + sampledIds.length;
  }, 0);
}

function spokenCharacters(input: GraderInput): number {
  const of = ({ response: { content, reasoning, tool_calls: calls = [] } }: GraderTurn): number =>
    (content?.length ?? 0) + (reasoning?.length ?? 0) + calls.reduce((sum, call) => sum + call.function.arguments.length, 0);
  return ownTurns(input).reduce((sum, turn) => sum + of(turn), 0);
}
