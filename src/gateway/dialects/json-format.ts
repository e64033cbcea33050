/**
 * `response_format` and its like: checks what the policy said against what the client asked for. Sampling is not constrained, since that
 * would change the distribution; the answer is given as sampled, and what is wrong with it is marked on the turn.
 */
import { messageOf } from '../../core/errors.ts';
import { isObject } from '../../core/json.ts';
import { type Schema, schemaFault } from '../../core/json-schema.ts';
import { invalid } from './parameters.ts';

/** What is wrong with a text, or undefined. Without a schema any JSON object will do. Throws REQUEST_INVALID for a bad schema. */
export function formatChecker(schema: unknown, param: string): (content: string) => string | undefined {
  const expected = schema === undefined ? { type: 'object' } : schemaOf(schema, param);
  return (content) => {
    let value: unknown;
    try {
      value = JSON.parse(content);
    } catch (thrown) {
      return `not JSON: ${messageOf(thrown)}`;
    }
    return schemaFault(expected, value);
  };
}

function schemaOf(schema: unknown, param: string): Schema {
  const isSchema = typeof schema === 'boolean' || isObject(schema);
  if (!isSchema) throw invalid(param, 'expected a JSON Schema: an object, true or false');
  return schema as Schema;
}
