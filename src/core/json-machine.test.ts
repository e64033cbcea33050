import { describe, expect, it } from 'vitest';
import { CONTROL, ConstrainedTokens } from './json-machine.ts';
import type { Json } from './types.ts';

const END = 256;
/** A vocabulary of single bytes, and one control token. */
const vocabulary = {
  bytes: Uint16Array.from([...Array(256).keys(), CONTROL, 0x2f]),
  ends: Int32Array.from([...Array(256).keys(), 257].map((i) => i + 1)),
};
const STOP = 300;
const bytes = (text: string) => [...new TextEncoder().encode(text)];

function machine(schema: Json): ConstrainedTokens {
  const text = { before: [], schema, after: [] };
  return new ConstrainedTokens({ texts: [text], vocabulary }, [STOP]);
}

/** How many bytes of the text may be written, and whether it may end there. */
function read(schema: Json, text: string): number | 'whole' {
  const tokens = machine(schema);
  for (const [at, byte] of bytes(text).entries()) {
    if (!tokens.allows(byte)) return at;
    tokens.take(byte);
  }
  return tokens.allows(STOP) ? 'whole' : bytes(text).length;
}

const person: Json = {
  type: 'object',
  properties: { name: { type: 'string' }, age: { type: 'integer' }, tags: { type: 'array', items: { enum: ['a', 'ab'] } } },
  required: ['name'],
};

describe('a text that must be JSON of a schema', () => {
  it.each<[string, Json, string]>([
    ['properties in any order', person, '{"age":3, "name": "Zoë \\u00e9 \\"x\\"","tags":["ab","a"]}'],
    ['optional ones left out', person, '{"name":""}'],
    ['an empty list', person, '{"name":"","tags":[]}'],
    ['the last of many values', { enum: Array.from({ length: 1500 }, (_, i) => `v${i}`) }, '"v1499"'],
    ['a type that there is not', { type: 'object', properties: { a: { type: 'any' } }, required: ['a'] }, '{"a":"x"}'],
    ['no property that nothing fits', { type: 'object', properties: { a: { enum: [] } } }, '{}'],
    ['numbers', { type: 'array', items: { type: 'number' } }, '[0,-1.5e-3,10E2,0.25]'],
    ['one of several types', { type: ['string', 'null'] }, 'null'],
    ['a choice', { anyOf: [{ type: 'integer' }, { type: 'object', properties: { a: { type: 'boolean' } } }] }, '{"a":true}'],
    ['a constant', { const: { b: 1 } }, '{"b":1}'],
    ['anything', {}, '{"x":[1,{"y":null}],"z":false}'],
    ['others', { type: 'object', properties: { a: {} }, additionalProperties: { type: 'integer' } }, '{"b":1,"a":"x"}'],
    [
      'references',
      { $ref: '#/$defs/t', $defs: { t: { type: 'object', properties: { t: { $ref: '#/$defs/t' } } } } },
      '{"t":{"t":{}}}',
    ],
  ])('may have %s', (_, schema, text) => {
    expect(read(schema, text)).toBe('whole');
    expect(() => JSON.parse(text)).not.toThrow();
  });

  it.each<[string, Json, string, number]>([
    ['end without what is required', person, '{"age":1}', 8],
    ['name what the schema does not', person, '{"size":1}', 2],
    ['name a property twice', person, '{"age":1,"age":2}', 10],
    ['put a value of another type', person, '{"name":1}', 8],
    ['put a fraction for an integer', { type: 'integer' }, '1.5', 1],
    ['begin a number with zeros', { type: 'integer' }, '012', 1],
    ['name an optional property that nothing fits', { type: 'object', properties: { a: { enum: [] } } }, '{"a"', 1],
    ['leave an enum', { enum: ['red', 'rose'] }, '"roxy"', 3],
    ['go on with white space', person, '{  "name"', 2],
    ['go on after its end', { type: 'boolean' }, 'true ', 4],
    ['hold a control character', { type: 'string' }, '"a\nb"', 2],
    ['allow nothing', false, '1', 0],
    ['choose itself for ever', { anyOf: [{ $ref: '#' }, { $ref: '#' }] }, '1', 0],
  ])('may not %s', (_, schema, text, at) => {
    expect(read(schema, text)).toBe(at);
  });

  it('holds whole characters, and no control token', () => {
    const tokens = machine({ type: 'string' });
    tokens.take(bytes('"')[0]!);
    expect([0xff, 0xc0, 0x80, END].map((id) => tokens.allows(id))).toEqual([false, false, false, false]);
    expect(tokens.allows(0xe2)).toBe(true);
    tokens.take(0xe2);
    expect([0x41, 0x22, 0x82].map((id) => tokens.allows(id))).toEqual([false, false, true]);
    expect([STOP, 299].map((id) => tokens.allows(id))).toEqual([false, false]);
  });

  it('takes as long as the schema says, however many ways there are to read it', () => {
    const many = {
      anyOf: Array.from({ length: 40 }, () => ({ type: 'array', items: { anyOf: [{}, {}, { type: 'integer' }] } })),
    };
    expect(read(many as Json, `[${'[1],'.repeat(40)}1]`)).toBe('whole');
    const names = Object.fromEntries(Array.from({ length: 3000 }, (_, i) => [`p${i}`, { type: 'integer' }]));
    const tokens = machine({ type: 'object', properties: names });
    tokens.take(0x7b);
    // As for a large vocabulary, in which many tokens begin a name.
    for (let i = 0; i < 1000; i++) expect(tokens.allows(0x22)).toBe(true);
  });
});
