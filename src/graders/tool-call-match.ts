/**
 * `toolCalls`: whether the policy called the tools it should have. Calls are compared as data: arguments as JSON, whatever their spelling.
 *
 * Looks at what the policy said in its recorded turns, never at what tools answered. Arguments that are no JSON are a call that fits
 * nothing: the policy's mistake. A task that does not say what is expected is unscorable.
 */

import type { Grader, GraderInput } from '../core/contracts.ts';
import { defineGrader, unscorable } from '../core/define.ts';
import { describeValue } from '../core/describe.ts';
import { asJson, isObject, MAX_NESTING, nestingOf, parsedJson } from '../core/json.ts';
import type { Json, ToolCall } from '../core/types.ts';
import { answerOf, checkOptions, type OptionKinds, ownTurns } from './answer-text.ts';
import { isList, type JsonEquality, jsonEqual, mostPairs } from './json-match.ts';

export interface ExpectedCall {
  readonly name: string;
  /** Absent: any will do. */
  readonly arguments?: Json;
}

export interface ToolCallsOptions extends Pick<JsonEquality, 'tolerance' | 'anyOrder'> {
  /** Absent: the task's answer is the list of them. */
  readonly expected?: (input: GraderInput) => readonly ExpectedCall[];
  /** Whether calls must be in the expected order. Default true. */
  readonly inOrder?: boolean;
  /** Whether other calls than the expected ones are allowed. Default false. */
  readonly others?: boolean;
  /** `exact`: as expected. `subset`: more arguments than expected are allowed. Default exact. */
  readonly arguments?: 'exact' | 'subset';
  /** Whether some of the calls earn their share. Default false: all or nothing. */
  readonly partial?: boolean;
}

const KINDS: OptionKinds = {
  expected: 'function',
  inOrder: 'boolean',
  others: 'boolean',
  arguments: ['exact', 'subset'],
  partial: 'boolean',
  tolerance: 'amount',
  anyOrder: 'boolean',
};

/** Calls looked at; what a policy calls beyond that are only counted. */
const MOST_CALLS = 1_000;
const MOST_EXPECTED_LENGTH = 1_000_000;

interface MadeCall {
  readonly name: string;
  /** Undefined where they are no JSON. */
  readonly arguments: Json | undefined;
}

export function toolCalls(options: ToolCallsOptions = {}): Grader {
  checkOptions('toolCalls', options, KINDS);
  const { expected, inOrder = true, others = false, arguments: comparison = 'exact', partial = false } = options;
  const how = { ...options, moreMembers: comparison === 'subset' };
  return defineGrader({
    name: 'toolCalls',
    grade(input) {
      const wanted = expectedCalls(input, expected === undefined ? answerOrNone(input) : expected(input));
      const calls = callsOf(input);
      const made = calls.slice(0, MOST_CALLS).map(madeCall);
      const fits = (w: number, m: number): boolean => isCall(wanted[w]!, made[m]!, how);
      const matched = inOrder ? longestInOrder(wanted.length, made.length, fits) : mostPairs(wanted.length, made.length, fits);
      const extra = calls.length - matched;
      const counted = Math.max(wanted.length, others ? 0 : calls.length);
      const share = counted === 0 ? 1 : matched / counted;
      const success = matched === wanted.length && (others || extra === 0);
      return {
        value: partial ? share : success ? 1 : 0,
        success,
        metrics: { matched, missing: wanted.length - matched, extra },
      };
    },
  });
}

function isCall(expected: ExpectedCall, { name, arguments: given }: MadeCall, how: JsonEquality): boolean {
  if (name !== expected.name || given === undefined) return false;
  return expected.arguments === undefined || jsonEqual(expected.arguments, given, how);
}

/** An empty list says that nothing is to be called, which is an answer. */
function answerOrNone(input: GraderInput): Json {
  const { answer } = input.task;
  return Array.isArray(answer) ? answer : answerOf(input);
}

/** In the order they were made. */
const callsOf = (input: GraderInput): readonly ToolCall['function'][] =>
  ownTurns(input).flatMap(({ response }) => (response.tool_calls ?? []).map((call) => call.function));

function madeCall({ name, arguments: text }: ToolCall['function']): MadeCall {
  try {
    // Without arguments models write nothing at all, or an empty object.
    const given = text.trim() === '' ? {} : (JSON.parse(text) as Json);
    return { name, arguments: nestingOf(text) > MAX_NESTING ? undefined : given };
  } catch {
    return { name, arguments: undefined };
  }
}

function expectedCalls({ task }: GraderInput, given: unknown): readonly ExpectedCall[] {
  const read = typeof given === 'string' ? (parsedJson(given) as Json | undefined) : asJson(given, MOST_EXPECTED_LENGTH);
  const calls = read !== undefined && isList(read) ? read.map(expectedCall) : [undefined];
  if (!calls.includes(undefined)) return calls as readonly ExpectedCall[];
  const kind = read === undefined || !isList(read) ? 'no list' : 'a list with something else in it';
  return unscorable(
    `task ${describeValue(task.id)} should say which calls are expected, as [{ name, arguments }], and gives ${kind}`,
  );
}

/** As it stands in datasets: the arguments may be the text that a model would write. */
function expectedCall(given: Json): ExpectedCall | undefined {
  if (!isObject(given)) return undefined;
  const call = given['function'] !== undefined && isObject(given['function']) ? given['function'] : given;
  const { name, arguments: args } = call;
  if (typeof name !== 'string' || name === '') return undefined;
  if (args === undefined) return { name };
  const read = typeof args === 'string' ? (parsedJson(args) as Json | undefined) : args;
  return read === undefined ? undefined : { name, arguments: read };
}

/** Length of the longest list of calls that fit in the order of both. */
function longestInOrder(left: number, right: number, fits: (left: number, right: number) => boolean): number {
  let above = new Array<number>(right + 1).fill(0);
  for (let l = 0; l < left; l++) {
    const row = [0];
    for (let r = 0; r < right; r++) row.push(fits(l, r) ? above[r]! + 1 : Math.max(above[r + 1]!, row[r]!));
    above = row;
  }
  return above[right]!;
}
