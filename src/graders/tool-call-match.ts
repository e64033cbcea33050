/**
 * `toolCalls`: whether the policy called the expected tools. Compares arguments as JSON, whatever their formatting. Reads the policy's
 * recorded turns, never tool results. A call whose arguments are not JSON matches nothing: the policy's mistake. A task that does not state
 * the expected calls is unscorable.
 */
import type { Grader, GraderInput } from '../core/contracts.ts';
import { defineGrader, unscorable } from '../core/define.ts';
import { describeValue } from '../core/describe.ts';
import { asJson, isObject, parsedJson } from '../core/json.ts';
import type { Json, ToolCall } from '../core/types.ts';
import { checkOptions, jsonAnswerOf, type OptionKinds, ownTurns } from './answer-text.ts';
import { isList, type JsonEquality, jsonEqual, mostPairs, parsed } from './json-match.ts';

export interface ExpectedCall {
  readonly name: string;
  /** Absent: any arguments. */
  readonly arguments?: Json;
}

export interface ToolCallsOptions extends Pick<JsonEquality, 'tolerance' | 'anyOrder'> {
  /** Absent: the task's answer is the list. */
  readonly expected?: (input: GraderInput) => readonly ExpectedCall[];
  /** Whether calls must be in the expected order. Default true. */
  readonly inOrder?: boolean;
  /** Whether further calls are allowed. Default false. */
  readonly others?: boolean;
  /** `subset` allows more arguments than expected. Default `exact`. */
  readonly arguments?: 'exact' | 'subset';
  /** Whether the value is the share of matching calls. Default false: all or nothing. */
  readonly partial?: boolean;
}

const KINDS: OptionKinds = {
  expected: 'function',
  arguments: ['exact', 'subset'],
  tolerance: 'amount',
  inOrder: 'boolean',
  others: 'boolean',
  partial: 'boolean',
  anyOrder: 'boolean',
};

/** Calls beyond these are counted as extra, not compared. */
const MOST_CALLS = 1_000;
const MOST_EXPECTED_LENGTH = 1_000_000;

export function toolCalls(options: ToolCallsOptions = {}): Grader {
  checkOptions('toolCalls', options, KINDS);
  const { expected, inOrder = true, others = false, arguments: comparison = 'exact', partial = false } = options;
  const how = { ...options, moreMembers: comparison === 'subset' };
  return defineGrader({
    name: 'toolCalls',
    grade(input) {
      const wanted = expectedCalls(input, expected === undefined ? jsonAnswerOf(input) : expected(input));
      const calls = callsOf(input);
      const made = calls.slice(0, MOST_CALLS).map(madeCall);
      const fits = (w: number, m: number) => isCall(wanted[w]!, made[m]!, how);
      const matched = inOrder ? longestInOrder(wanted.length, made.length, fits) : mostPairs(wanted.length, made.length, fits);
      const extra = calls.length - matched;
      const counted = Math.max(wanted.length, others ? 0 : calls.length);
      const share = counted === 0 ? 1 : matched / counted;
      const success = matched === wanted.length && (others || extra === 0);
      const metrics = { matched, missing: wanted.length - matched, extra };
      return { value: partial ? share : success ? 1 : 0, success, metrics };
    },
  });
}

function isCall(expected: ExpectedCall, { name, arguments: given }: ReturnType<typeof madeCall>, how: JsonEquality): boolean {
  if (name !== expected.name || given === undefined) return false;
  return expected.arguments === undefined || jsonEqual(expected.arguments, given, how);
}

const callsOf = (input: GraderInput) =>
  ownTurns(input).flatMap(({ response }) => (response.tool_calls ?? []).map((call) => call.function));

/** Arguments are undefined if they are not JSON. Models write an empty text or object for a call without arguments. */
const madeCall = ({ name, arguments: text }: ToolCall['function']) => ({
  name,
  arguments: parsed(text.trim() || '{}')?.value,
});

function expectedCalls({ task }: GraderInput, given: unknown): readonly ExpectedCall[] {
  const read = typeof given === 'string' ? (parsedJson(given) as Json | undefined) : asJson(given, MOST_EXPECTED_LENGTH);
  const calls = read !== undefined && isList(read) ? read.map(expectedCall) : [undefined];
  if (!calls.includes(undefined)) return calls as readonly ExpectedCall[];
  const kind = read === undefined || !isList(read) ? 'no list' : 'a list with something else in it';
  return unscorable(
    `task ${describeValue(task.id)} should say which calls are expected, as [{ name, arguments }], and gives ${kind}`,
  );
}

/** Datasets give arguments as an object or as the JSON text that a model would write. */
function expectedCall(given: Json): ExpectedCall | undefined {
  if (!isObject(given)) return undefined;
  const call = given['function'] !== undefined && isObject(given['function']) ? given['function'] : given;
  const { name, arguments: args } = call;
  if (typeof name !== 'string' || name === '') return undefined;
  if (args === undefined) return { name };
  const read = typeof args === 'string' ? (parsedJson(args) as Json | undefined) : args;
  return read === undefined ? undefined : { name, arguments: read };
}

/** Longest common subsequence. */
function longestInOrder(left: number, right: number, fits: (left: number, right: number) => boolean): number {
  let above = new Array<number>(right + 1).fill(0);
  for (let l = 0; l < left; l++) {
    const row = [0];
    for (let r = 0; r < right; r++) row.push(fits(l, r) ? above[r]! + 1 : Math.max(above[r + 1]!, row[r]!));
    above = row;
  }
  return above[right]!;
}
