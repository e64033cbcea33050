/**
 * `response_format` and its like: checks what the policy said against what the client asked for. Sampling is not constrained, since that
 * would change the distribution; the answer is given as sampled, and what is wrong with it is marked on the turn.
 */
import { z } from 'zod';
import { messageOf } from '../../core/errors.ts';
import { invalid } from './parameters.ts';

/** What is wrong with a text, or undefined. Without a schema any JSON object will do. Throws REQUEST_INVALID for a bad schema. */
export function formatChecker(schema: unknown, param: string): (content: string) => string | undefined {
  const expected = schema === undefined ? z.record(z.string(), z.unknown()) : schemaOf(schema, param);
  return (content) => {
    let value: unknown;
    try {
      value = JSON.parse(content);
    } catch (thrown) {
      return `not JSON: ${messageOf(thrown)}`;
    }
    const issue = expected.safeParse(value).error?.issues[0];
    return issue && `${issue.path.join('.') || 'the value'}: ${issue.message}`;
  };
}

function schemaOf(schema: unknown, param: string): z.ZodType {
  try {
    return z.fromJSONSchema(schema as never);
  } catch (thrown) {
    throw invalid(param, `not a JSON Schema that can be checked: ${messageOf(thrown)}`);
  }
}
