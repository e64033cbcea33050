/** What the check of a schema does beyond what clients of the gateway ask for; their cases are with the JSON format. */
import { describe, expect, it } from 'vitest';
import { schemaFault } from './json-schema.ts';

const matches = (pattern: string, text: string): boolean => new RegExp(pattern, 'u').test(text);

describe('a JSON Schema', () => {
  it.each<[Record<string, unknown>, unknown, string | undefined]>([
    [{ pattern: '^a+$' }, 'aaa', undefined],
    [{ pattern: '^a+$' }, 'ab', 'the value: expected a text with "^a+$"'],
    [{ pattern: '^a+$' }, 7, undefined],
    [{ multipleOf: 0.1 }, 0.3, undefined],
    [{ multipleOf: 0.1 }, 0.35, 'the value: expected a multiple of 0.1, found 0.35'],
    [{ multipleOf: 3 }, 9_007_199_254_740_990, undefined],
    [{ uniqueItems: true }, [{ a: 1, b: 2 }, 1, { b: 2, a: 1 }], '2: is there twice, expected unique items'],
    [{ uniqueItems: true }, [1, '1', [1], { a: 1 }], undefined],
    [{ patternProperties: { '^n': { type: 'number' } } }, { n1: 'x' }, 'n1: expected number, found string'],
    [{ patternProperties: { '^n': true }, additionalProperties: false }, { n: 1 }, undefined],
    [{ patternProperties: { '^n': true }, additionalProperties: false }, { m: 1 }, 'm: not one of the properties'],
    [
      { properties: { n: { minimum: 1 } }, patternProperties: { '^n': { maximum: 2 } } },
      { n: 3 },
      'n: expected a number of at most 2, found 3',
    ],
  ])('%j with patterns finds in %j: %j', (schema, value, fault) => {
    expect(schemaFault(schema, value, matches)).toBe(fault);
  });

  it('never tries a pattern without being told how', () => {
    expect(
      schemaFault({ pattern: '(', patternProperties: { '(': false }, additionalProperties: false }, { a: 1 }),
    ).toBeUndefined();
    expect(schemaFault({ pattern: '(' }, 'a')).toBeUndefined();
  });

  it('takes thousands of unique items', () => {
    const many = Array.from({ length: 5_000 }, (_, i) => i);
    expect(schemaFault({ uniqueItems: true }, many)).toBeUndefined();
  });
});
