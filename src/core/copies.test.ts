import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ownCopy, plainCopy } from './copies.ts';

describe('a rollout’s own copy of a config', () => {
  it('is equal to it, and shares no data with it', () => {
    fc.assert(
      fc.property(fc.jsonValue(), (value) => {
        const config = { value };
        const own = ownCopy(config);
        expect(own).toEqual(config);
        expect(own).not.toBe(config);
        if (typeof value === 'object' && value !== null) expect(own.value).not.toBe(value);
      }),
    );
  });

  it('shares functions, tools and instances, however deep they stand', () => {
    class Client {
      readonly calls: string[] = [];
    }
    const config = {
      name: 'search',
      tools: [{ name: 'add', run: (a: number) => a + 1 }],
      model: new Client(),
      limits: { turns: 4 },
    };
    const own = ownCopy(config);
    expect(own.tools[0]?.run).toBe(config.tools[0]?.run);
    expect(own.model).toBe(config.model);
    expect(own.tools).not.toBe(config.tools);
    own.limits.turns = 9;
    own.tools.pop();
    expect(config).toMatchObject({ limits: { turns: 4 }, tools: [{ name: 'add' }] });
  });

  it('of an instance is an instance of the same class with fields of its own', () => {
    class Config {
      name = 'mine';
      list = [1, 2];
      get size(): number {
        return this.list.length;
      }
    }
    const config = new Config();
    const own = ownCopy(config);
    own.list.push(3);
    expect(own).toBeInstanceOf(Config);
    expect([own.size, config.size]).toEqual([3, 2]);
  });

  it('keeps dates, maps, sets, cycles and odd names', () => {
    const config: Record<string, unknown> = {
      when: new Date(5),
      seen: new Map([['a', [1]]]),
      ...JSON.parse('{"__proto__": {"x": 1}}'),
    };
    config.self = config;
    Object.defineProperty(config, '__proto__', { value: { x: 1 }, enumerable: true });
    const own = ownCopy(config);
    expect(own.when).toEqual(new Date(5));
    expect(own.seen).toEqual(new Map([['a', [1]]]));
    expect(own.seen).not.toBe(config.seen);
    expect(own.self).toBe(own);
    expect(Object.getPrototypeOf(own)).toBe(Object.prototype);
  });
});

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
