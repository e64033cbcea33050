import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { plainCopy } from './plain-copy.ts';

describe('plainCopy', () => {
  it('gives what structuredClone gives', () => {
    const gap: unknown[] = [1];
    gap[2] = 3;
    const named = Object.assign([1], { index: 2 });
    const values: unknown[] = [
      gap,
      named,
      new Date(3),
      new Map([[1, { a: 1 }]]),
      [new Uint8Array(2)],
      { a: undefined, b: -0, c: 1n },
    ];
    values.push(
      JSON.parse('{"__proto__":{"a":1}}'),
      Object.create(null),
      new (class Named {
        a = 1;
      })(),
    );
    for (const value of values) expect(plainCopy(value)).toStrictEqual(structuredClone(value));
    fc.assert(
      fc.property(fc.anything(), (value) => {
        expect(plainCopy(value)).toStrictEqual(structuredClone(value));
      }),
    );
  });

  it('shares nothing with the original, and keeps what was one object one object', () => {
    const inner = { a: [1] };
    const value = { x: inner, list: [inner], self: undefined as unknown };
    value.self = value;
    const copy = plainCopy(value);
    expect(copy.x).not.toBe(inner);
    expect(copy.x.a).not.toBe(inner.a);
    expect(copy.list[0]).toBe(copy.x);
    expect(copy.self).toBe(copy);
  });

  it('refuses what structuredClone refuses, wherever it is', () => {
    for (const bad of [() => 1, Symbol('a'), new WeakMap()]) {
      expect(() => plainCopy({ deep: [bad] })).toThrow(expect.objectContaining({ name: 'DataCloneError' }));
    }
  });
});
