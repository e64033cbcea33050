import { describe, expect, it } from 'vitest';
import { gradeOf, rewardOf } from '../../test/fixtures/grader/rollout-input.ts';
import type { Schema } from '../core/json-schema.ts';
import type { Json } from '../core/types.ts';
import { type JsonMatchOptions, jsonInText, jsonMatch } from './json-match.ts';

describe('the JSON in a text', () => {
  it.each<[string, Json | undefined]>([
    ['{"a": 1}', { a: 1 }],
    [' 7 ', 7],
    ['null', null],
    ['Here:\n```json\n{"a": 1}\n```\nas asked.', { a: 1 }],
    ['```json\n{"a": 1}\n```\nor rather\n```\n[2]\n```', [2]],
    ['```json\n{"a": 1}\n```\nand code\n```js\nlet a;\n```', { a: 1 }],
    ['first {"a": 1}, then {"b": {"c": "}"}} in the end', { b: { c: '}' } }],
    ['a set {x} and then [1, 2]', [1, 2]],
    ['it\'s "quoted {" text with {"a": "say \\"hi\\""}', { a: 'say "hi"' }],
    ['{"cut": [1, 2', undefined],
    ['{"outer": {"a": 1}', { a: 1 }],
    ['no JSON, number 7', undefined],
    ['', undefined],
    ['{a: 1}', undefined],
  ])('of %j is %j', (text, value) => {
    expect(jsonInText(text)?.value).toEqual(value);
    expect(jsonInText(text) === undefined).toBe(value === undefined);
  });

  it('is none where it is nested without end', () => {
    expect(jsonInText(`${'['.repeat(5000)}${']'.repeat(5000)}`)).toBeUndefined();
  });

  it('is looked for within bounds in a text of brackets', () => {
    expect(jsonInText(`${'{"a":'.repeat(200_000)}`)).toBeUndefined();
    expect(jsonInText(`${'[ '.repeat(200)} {"a": 1}`)?.value).toEqual({ a: 1 });
  });
});

describe('jsonMatch', () => {
  const schema = {
    type: 'object',
    properties: { city: { type: 'string', pattern: '^[A-Z]' }, days: { $ref: '#/$defs/count' } },
    required: ['city'],
    additionalProperties: false,
    $defs: { count: { type: 'integer', minimum: 1 } },
  };

  it.each<[string, number, Record<string, number>]>([
    ['{"city": "Rome", "days": 3}', 1, { json: 1, schema: 1 }],
    ['{"city": "rome"}', 0, { json: 1, schema: 0 }],
    ['{"city": "Rome", "days": 0}', 0, { json: 1, schema: 0 }],
    ['{"city": "Rome", "more": 0}', 0, { json: 1, schema: 0 }],
    ['no idea', 0, { json: 0 }],
    ['', 0, { json: 0 }],
  ])('checks a schema: %j is worth %d', async (said, value, parts) => {
    expect(await rewardOf(jsonMatch({ schema }), { said })).toEqual({ value, success: value === 1, parts });
  });

  it.each<[Json, string, Omit<JsonMatchOptions, 'equals'>, number]>([
    [{ a: 1, b: [1, 2] }, '{"b": [1, 2], "a": 1}', {}, 1],
    [{ a: 1 }, '{"a": 1, "b": 2}', {}, 0],
    [{ a: 1 }, '{"a": 1.05}', {}, 0],
    [{ a: 1 }, '{"a": 1.05}', { tolerance: 0.1 }, 1],
    [{ a: 1000 }, '{"a": 1050}', { tolerance: 0.1 }, 1],
    [{ a: 1 }, '{"a": "1"}', { tolerance: 0.1 }, 0],
    [[1, 2, 2], '[2, 1, 2]', {}, 0],
    [[1, 2, 2], '[2, 1, 2]', { anyOrder: true }, 1],
    [[1, 2, 2], '[1, 1, 2]', { anyOrder: true }, 0],
    // 1.0 fits both, 1.1 only the first: taking the first that fits would leave none for the second.
    [[1.05, 0.95], '[1.0, 1.1]', { anyOrder: true, tolerance: 0.06 }, 1],
    [[], '[]', {}, 1],
    [[], '{}', {}, 0],
    ['{"a": [1]}', '{"a": [1]}', {}, 1],
    ['plain', '"plain"', {}, 1],
    [false, 'false', {}, 1],
    [{ a: null }, '{}', {}, 0],
    [JSON.parse('{"__proto__": 1}') as Json, '{"__proto__": 1}', {}, 1],
    [JSON.parse('{"__proto__": 1}') as Json, '{"toString": 1}', {}, 0],
  ])('equal to the answer %j: %j with %j is worth %d', async (answer, said, options, value) => {
    expect((await rewardOf(jsonMatch({ equals: 'answer', ...options }), { answer, said })).value).toBe(value);
  });

  it('gives the share of the fields that are right, and what is there without reason counts against it', async () => {
    const grader = jsonMatch({ equals: 'answer', partial: true });
    const answer = { a: 1, b: { c: 2 } };
    expect(await rewardOf(grader, { answer, said: '{"a": 1, "b": {"c": 3}}' })).toEqual({
      value: 0.5,
      success: false,
      parts: { json: 1, 'field.a': 1, 'field.b': 0 },
    });
    expect((await rewardOf(grader, { answer, said: '{"a": 1, "b": {"c": 2}, "x": 1, "y": 1}' })).value).toBe(0.5);
    expect(await rewardOf(grader, { answer, said: '{"a": 1, "b": {"c": 2}}' })).toMatchObject({ value: 1, success: true });
    expect((await rewardOf(grader, { answer, said: '[1]' })).value).toBe(0);
    const wide = Object.fromEntries(Array.from({ length: 400 }, (_, i) => [`f${i}`, i]));
    expect((await rewardOf(grader, { answer: wide, said: JSON.stringify(wide) })).value).toBe(1);
  });

  it('cannot score without an answer, whatever was said', async () => {
    for (const said of ['{}', 'no JSON']) {
      expect(await gradeOf(jsonMatch({ equals: 'answer' }), { said })).toMatchObject({
        code: 'GRADER_UNSCORABLE',
        message: expect.stringMatching(/"t1"/),
      });
    }
  });

  it('cannot score with a pattern that takes forever', async () => {
    const grader = jsonMatch({ schema: { type: 'string', pattern: '^(a+)+$' } });
    expect(await gradeOf(grader, { said: JSON.stringify(`${'a'.repeat(60)}!`) })).toMatchObject({ code: 'GRADER_UNSCORABLE' });
  });

  it('cannot score where a slow pattern meets many texts, each within its time: they have one limit together', async () => {
    const grader = jsonMatch({ schema: { items: { not: { pattern: '^(a+)+$' } } } });
    // One such text takes tens of milliseconds, all of them minutes.
    const texts = Array.from({ length: 2000 }, () => `${'a'.repeat(23)}!`);
    expect(await gradeOf(grader, { said: JSON.stringify(texts) })).toMatchObject({ code: 'GRADER_UNSCORABLE' });
  });

  it('cannot score more than it can check: that it is wrong is not known', async () => {
    const grader = jsonMatch({ schema: { type: 'array', items: { type: 'integer' } } });
    const long = JSON.stringify(Array.from({ length: 200_000 }, (_, i) => i));
    expect(await gradeOf(grader, { said: long })).toMatchObject({ code: 'GRADER_UNSCORABLE' });
  });

  it.each([
    [{ $ref: '#' }],
    [{ $defs: { a: { $ref: '#/$defs/b' }, b: { anyOf: [true, { $ref: '#/$defs/a' }] } }, $ref: '#/$defs/a' }],
    [{ $defs: { a: { not: { allOf: [{ $ref: '#/%24defs/a' }] } } } }],
  ])('refuses %j: whatever is said, it leads back to itself', (schema) => {
    expect(() => jsonMatch({ schema })).toThrow(
      expect.objectContaining({ code: 'GRADER_INVALID', message: expect.stringMatching(/leads back to itself/) }),
    );
  });

  it('takes a schema that refers to itself further down: lists of lists', async () => {
    const grader = jsonMatch({ schema: { type: 'array', items: { $ref: '#' } } });
    expect((await rewardOf(grader, { said: '[[], [[]]]' })).value).toBe(1);
    expect((await rewardOf(grader, { said: '[[], [[7]]]' })).value).toBe(0);
  });

  it('refuses a reference that is no text in UTF-8', () => {
    expect(() => jsonMatch({ schema: { $ref: '#/%E0' } })).toThrow(expect.objectContaining({ code: 'GRADER_INVALID' }));
  });

  it('is not moved by names of prototypes', async () => {
    const named = JSON.parse('{"properties": {"__proto__": {"type": "integer"}}, "additionalProperties": false}') as Schema;
    expect((await rewardOf(jsonMatch({ schema: named }), { said: '{"__proto__": {"a": 1}}' })).value).toBe(0);
    expect((await rewardOf(jsonMatch({ schema: named }), { said: '{"__proto__": 1}' })).value).toBe(1);
    const inherited = jsonMatch({ schema: { required: ['toString'] } });
    expect((await rewardOf(inherited, { said: '{}' })).value).toBe(0);
    const equal = jsonMatch({ equals: 'answer' });
    expect((await rewardOf(equal, { said: '{"__proto__": {"a": 1}}', answer: {} })).value).toBe(0);
  });

  it('tells everything that is wrong with a schema when it is defined', () => {
    const bad = {
      type: 'objekt',
      properties: { a: { format: 'date', minimum: '1' }, b: { $ref: '#/$defs/none' }, c: { pattern: '(' } },
      dependentRequired: {},
      anyOf: [],
      items: 7,
    };
    const define = (): unknown => jsonMatch({ schema: bad });
    for (const fault of [
      /#\/type: expected one or several of null/,
      /#\/properties\/a\/format: this keyword is not checked here; use pattern/,
      /#\/properties\/a\/minimum: expected a number/,
      /#\/properties\/b\/\$ref: expected a reference/,
      /#\/properties\/c\/pattern: expected a regular expression/,
      /#\/dependentRequired: this keyword is not checked/,
      /#\/anyOf: expected a list of schemas/,
      /#\/items: expected a schema/,
    ]) {
      expect(define).toThrow(expect.objectContaining({ code: 'GRADER_INVALID', message: expect.stringMatching(fault) }));
    }
  });

  it.each<[JsonMatchOptions, RegExp]>([
    [{}, /found neither/],
    [{ equals: 'other' as never }, /expected 'answer'/],
    [{ schema: {}, partial: true }, /partial needs equals/],
    [{ equals: 'answer', tolerance: -1 }, /tolerance is -1/],
    [{ equals: 'answer', tolerence: 1 } as never, /it has no option tolerence, did you mean tolerance\?/],
    [null as never, /expected an object of options, found null/],
    [{ schema: { default: new Date(0) } as never }, /expected plain JSON/],
    [{ schema: 7 as never }, /expected a schema/],
  ])('refuses %j', (options, message) => {
    expect(() => jsonMatch(options)).toThrow(
      expect.objectContaining({ code: 'GRADER_INVALID', message: expect.stringMatching(message) }),
    );
  });
});
