/**
 * Penalties: graders whose value is 0 where all is well and below 0 where it is not. They are meant to be components of `weighted`.
 */
import type { Grader, GraderInput, GraderTurn } from '../../core/contracts.ts';
import { defineGrader, unscorable } from '../../core/define-grader.ts';
import { regexWithin, statelessRegex } from '../built-in/regex-within.ts';
import { saidBy } from '../built-in/said.ts';
import { checkOptions, type TextOptions } from '../options.ts';
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

/** What the policy itself said and somebody got. */
function ownTurns({ turns }: GraderInput): readonly GraderTurn[] {
  return turns.filter(({ model, undelivered }) => model === undefined && !undelivered);
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
