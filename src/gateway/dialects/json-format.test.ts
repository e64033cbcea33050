import { describe, expect, it } from 'vitest';
import { schemaFault } from '../../core/json-schema.ts';
import { formatChecker } from './dialect.ts';

describe('a JSON format', () => {
  it('without a schema wants any object', () => {
    const faultOf = formatChecker(undefined, 'response_format');
    expect(faultOf('{"a":1}')).toBeUndefined();
    expect(faultOf('[1]')).toBe('the value: expected object, found array');
    expect(faultOf('{"a":')).toMatch(/^not JSON: /);
    expect(faultOf('')).toMatch(/^not JSON: /);
  });

  it.each([['text'], [7], [null], [['object']]])('refuses %j as a schema', (schema) => {
    expect(() => formatChecker(schema, 'text.format.schema')).toThrow(/^text\.format\.schema: expected a JSON Schema/);
  });

  it('with a boolean takes everything or nothing', () => {
    expect(formatChecker(true, 'x')('7')).toBeUndefined();
    expect(formatChecker(false, 'x')('7')).toMatch('nothing is allowed');
  });
});

describe('a JSON Schema', () => {
  const person = {
    type: 'object',
    properties: { name: { type: 'string' }, age: { type: ['integer', 'null'] } },
    required: ['name'],
    additionalProperties: false,
  };
  const list = {
    $defs: {
      node: {
        type: 'object',
        properties: { value: { type: 'number' }, next: { anyOf: [{ $ref: '#/$defs/node' }, { type: 'null' }] } },
        required: ['next'],
      },
    },
    $ref: '#/$defs/node',
  };
  const defined = { definitions: { 'a/b~c d': { const: 1 } } };

  it.each<[unknown, unknown, string | undefined]>([
    [person, { name: 'a', age: 3 }, undefined],
    [person, { name: 'a', age: null }, undefined],
    [person, { name: 'a', age: 3.5 }, 'age: expected integer or null, found number'],
    [person, { age: 3 }, 'the value: "name" is missing'],
    [person, JSON.parse('{"name":"a","__proto__":1}'), '__proto__: not one of the properties'],
    [{ required: ['toString'] }, {}, 'the value: "toString" is missing'],
    [{ properties: {} }, { toString: 1 }, undefined],
    [{ additionalProperties: { type: 'number' } }, { a: 1, b: '2' }, 'b: expected number, found string'],
    [{ additionalProperties: false, patternProperties: { '^(a+)+$': true } }, { [`${'a'.repeat(40)}!`]: 1 }, undefined],
    [{ type: 'integer' }, 1.0, undefined],
    [{ type: 'number' }, '1', 'the value: expected number, found string'],
    [{ type: 'boolean' }, false, undefined],
    [{ type: 'object' }, null, 'the value: expected object, found null'],
    [{ enum: ['a', { b: [1, 2] }] }, { b: [1, 2] }, undefined],
    [{ enum: ['a'] }, 'b', 'the value: expected one of ["a"]'],
    [{ const: { a: 1, b: 2 } }, { b: 2, a: 1 }, undefined],
    [{ const: null }, 0, 'the value: expected null'],
    [{ const: 0 }, JSON.parse('-0'), undefined],
    [{ items: { type: 'string' } }, ['a', 1], '1: expected string, found number'],
    [{ prefixItems: [{ const: 1 }], items: false }, [1, 2], '1: nothing is allowed here'],
    [{ prefixItems: [{ const: 1 }] }, [1, 2], undefined],
    [{ items: [{ const: 1 }] }, [2], '0: expected 1'],
    [{ properties: { a: { items: { const: 1 } } } }, { a: [1, 2] }, 'a.1: expected 1'],
    [{ minimum: 1, maximum: 3 }, 3, undefined],
    [{ minimum: 1 }, 0, 'the value: expected a number of at least 1, found 0'],
    [{ maximum: 1 }, 2, 'the value: expected a number of at most 1, found 2'],
    [{ exclusiveMinimum: 1 }, 1, 'the value: expected more than 1, found 1'],
    [{ exclusiveMaximum: 1 }, 1, 'the value: expected less than 1, found 1'],
    [{ maxLength: 1 }, '🙂', undefined],
    [{ minLength: 2 }, '🙂', 'the value: expected a length of at least 2, found 1'],
    [{ minItems: 2 }, [1], 'the value: expected a number of items of at least 2, found 1'],
    [{ maxProperties: 0 }, { a: 1 }, 'the value: expected a number of properties of at most 0, found 1'],
    [{ minLength: 2, minItems: 2, minProperties: 2 }, 7, undefined],
    [{ anyOf: [{ type: 'string' }, { type: 'number' }] }, 7, undefined],
    [
      { anyOf: [{ type: 'string' }, { type: 'null' }] },
      7,
      'the value: fits none of anyOf (the value: expected string, found number)',
    ],
    [{ oneOf: [{ minimum: 1 }, { minimum: 2 }] }, 1, undefined],
    [{ oneOf: [{ minimum: 1 }, { minimum: 2 }] }, 2, 'the value: fits 2 of oneOf, expected one'],
    [{ allOf: [{ minimum: 1 }, { maximum: 2 }] }, 3, 'the value: expected a number of at most 2, found 3'],
    [{ not: { type: 'string' } }, 'a', 'the value: fits what it should not'],
    [{ not: { type: 'string' } }, 1, undefined],
    [list, { value: 1, next: { value: 2, next: null } }, undefined],
    [list, { value: 1, next: { value: 2 } }, 'next: fits none of anyOf (next: "next" is missing)'],
    [{ ...defined, $ref: '#/definitions/a~1b~0c%20d' }, 2, 'the value: expected 1'],
    [{ $ref: '#/$defs/absent' }, 1, 'the value: the schema has no "#/$defs/absent"'],
    [{ $ref: '#/toString' }, 1, 'the value: the schema has no "#/toString"'],
    [{ $ref: 'https://example.com/schema' }, 1, 'the value: the schema has no "https://example.com/schema"'],
    [{ pattern: '^b$', format: 'email', whatever: 1 }, 'a', undefined],
    [{ properties: 7, required: 'a', enum: 1, anyOf: {}, items: 3 }, { a: 1 }, undefined],
  ])('%j, given %j, finds %j', (schema, value, expected) => {
    expect(schemaFault(schema as never, value)).toBe(expected);
  });

  it('that refers to itself without end is a fault, not a hang', () => {
    expect(schemaFault({ $ref: '#' }, 1)).toMatch('too deep');
    const $defs = Object.fromEntries(
      Array.from({ length: 60 }, (_, i) => [i, { allOf: Array(2).fill({ $ref: `#/$defs/${i + 1}` }) }]),
    );
    expect(schemaFault({ $defs: { ...$defs, 60: {} }, $ref: '#/$defs/0' }, 1)).toMatch('too involved');
  });

  it('never runs a pattern on what the policy said', () => {
    const schema = { type: 'string', pattern: '^(a+)+$', properties: { a: { pattern: '^(a+)+$' } } };
    expect(formatChecker(schema, 'x')(JSON.stringify(`${'a'.repeat(50)}!`))).toBeUndefined();
  });

  it('finds no fault in values as deep as text can be, where nothing is asked of them', () => {
    expect(formatChecker({ type: 'array' }, 'x')('['.repeat(5000) + ']'.repeat(5000))).toBeUndefined();
    expect(formatChecker({ items: { $ref: '#' } }, 'x')('['.repeat(5000) + ']'.repeat(5000))).toMatch('too deep');
  });
});

describe('a schema that makes much work of few words', () => {
  const TOO_MUCH = 'too deep or too involved to be checked against the schema';
  const many = (length: number): string[] => Array.from({ length }, (_, i) => `v${i}`);
  const ten = Array(10).fill({});

  it.each([
    ['a long enum for each item', { items: { enum: [...many(20_000), {}] } }, ten],
    [
      'many required names for each item',
      { items: { required: many(20_000) } },
      Array(10).fill(Object.fromEntries(many(20_000).map((name) => [name, 1]))),
    ],
    ['a long reference many times', { anyOf: Array(10).fill({ $ref: `#${'/'.repeat(2_000_000)}` }) }, {}],
  ])('is not followed to its end: %s', (_, schema, value) => {
    expect(schemaFault(schema, value)).toBe(TOO_MUCH);
  });

  it('is followed where it is merely long', () => {
    expect(schemaFault({ items: { enum: many(5000) } }, Array(10).fill('v4999'))).toBeUndefined();
  });
});
