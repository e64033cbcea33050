/**
 * `jsonMatch`: whether what was said is JSON, fits a schema, and equals the task's answer.
 *
 * A text without JSON in it is the policy's mistake: 0. A task without an answer, a pattern that takes forever, or more than can be checked is
 * not: unscorable.
 */
import type { Grader, GraderInput } from '../../core/contracts.ts';
import { defineGrader, unscorable } from '../../core/define-grader.ts';
import { TrainyardError } from '../../core/errors.ts';
import { type Schema, schemaFault, TOO_INVOLVED } from '../../core/json-schema.ts';
import type { Json, Reward } from '../../core/types.ts';
import { checkOptionNames } from '../option-names.ts';
import { checkSchema } from './check-schema.ts';
import { checkEquality, isList, isObject, type JsonEquality, jsonEqual } from './json-equal.ts';
import { jsonInText } from './json-in-text.ts';
import { regexesTogether, regexWithin, statelessRegex } from './regex-within.ts';
import { answerOf, type ReadSaid, saidBy } from './said.ts';

export interface JsonMatchOptions extends Pick<JsonEquality, 'tolerance' | 'anyOrder'> {
  /** A JSON Schema that what was said must fit. */
  readonly schema?: Schema;
  /** `answer`: it must equal the task's answer, too. An answer that is a text with a JSON object or list stands for that. */
  readonly equals?: 'answer';
  /** Whether an object that is right in some of its members earns their share. Default false: all or nothing. */
  readonly byField?: boolean;
  readonly of?: ReadSaid;
}

/** Fields beyond these count, and have no part of their own. */
const MOST_FIELDS = 200;

/** Throws GRADER_INVALID for a schema that cannot be checked in full. */
export function jsonMatch(options: JsonMatchOptions): Grader {
  checkOptionNames('jsonMatch', options, ['schema', 'equals', 'tolerance', 'anyOrder', 'byField', 'of']);
  const { schema, equals, byField = false, of } = options;
  if (schema === undefined && equals === undefined) throw invalid('expected schema, equals or both, found neither');
  if (equals !== undefined && equals !== 'answer') throw invalid(`equals is ${JSON.stringify(equals)}, expected "answer"`);
  if (byField && equals === undefined) throw invalid('byField needs equals: "answer"');
  if (schema !== undefined) checkSchema(schema, 'jsonMatch');
  checkEquality(options, 'jsonMatch');
  const fits = schema === undefined ? undefined : fitting(schema);
  return defineGrader({
    name: 'jsonMatch',
    grade(input) {
      const expected = equals === undefined ? undefined : { value: expectedOf(input) };
      const found = jsonInText(saidBy(input, of));
      if (found === undefined) return scored(0, { json: 0 });
      if (fits !== undefined && !fits(found.value)) return scored(0, { json: 1, schema: 0 });
      const parts = { json: 1, ...(fits === undefined ? {} : { schema: 1 }) };
      if (expected === undefined) return scored(1, parts);
      const equal = byField ? sharesOf(expected.value, found.value, options) : undefined;
      if (equal !== undefined) return scored(equal.value, { ...parts, ...equal.parts });
      const isEqual = jsonEqual(expected.value, found.value, options) ? 1 : 0;
      return scored(isEqual, { ...parts, equal: isEqual });
    },
  });
}

function scored(value: number, parts: NonNullable<Reward['parts']>): Reward {
  return { value, success: value === 1, parts };
}

/** Expressions are made once: a schema is applied to every rollout. */
function fitting(schema: Schema): (value: Json) => boolean {
  const expressions = new Map<string, ReturnType<typeof regexWithin>>();
  const expression = (pattern: string): ReturnType<typeof regexWithin> => {
    const known = expressions.get(pattern) ?? regexWithin(statelessRegex(pattern));
    expressions.set(pattern, known);
    return known;
  };
  return (value) => {
    const within = regexesTogether();
    const fault = schemaFault(schema, value, (pattern, text) => within(expression(pattern), text));
    // Not checked to the end, so it is not known to be wrong.
    if (fault === TOO_INVOLVED) return unscorable(`what was said is ${fault}`);
    return fault === undefined;
  };
}

function expectedOf(input: GraderInput): Json {
  // An empty list is a JSON value like any other.
  const answer: Json = Array.isArray(input.task.answer) ? input.task.answer : answerOf(input);
  if (typeof answer !== 'string' || !/^\s*[[{]/.test(answer)) return answer;
  try {
    return JSON.parse(answer) as Json;
  } catch {
    return answer;
  }
}

/** Of all fields that are expected or there, those that are right. Undefined where no object is expected. */
function sharesOf(expected: Json, found: Json, how: JsonEquality): Pick<Reward, 'value' | 'parts'> | undefined {
  if (!isObject(expected)) return undefined;
  const given = isObject(found) && !isList(found) ? found : {};
  const names = Object.keys(expected);
  const isRight = (name: string): boolean => Object.hasOwn(given, name) && jsonEqual(expected[name]!, given[name]!, how);
  const right = names.filter(isRight);
  const extra = Object.keys(given).filter((name) => !Object.hasOwn(expected, name)).length;
  const all = names.length + extra;
  const parts = names.slice(0, MOST_FIELDS).map((name) => [`field.${name}`, right.includes(name) ? 1 : 0]);
  return { value: all === 0 ? (isObject(found) ? 1 : 0) : right.length / all, parts: Object.fromEntries(parts) };
}

function invalid(message: string): TrainyardError {
  return new TrainyardError('GRADER_INVALID', `jsonMatch: ${message}`, {
    hint: 'write jsonMatch({ schema }), or jsonMatch({ equals: "answer" })',
  });
}
