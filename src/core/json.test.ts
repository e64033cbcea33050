import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { asJson, canonicalJson, copyConfig, deepCopy, MAX_NESTING, nestingOf, sameJson } from './json.ts';

it.each([
  [{ a: [1, { b: null }], c: 'x' }, { c: 'x', a: [1, { b: null }] }, true],
  [{ a: 1, b: undefined }, { a: 1 }, true],
  [{ a: 1 }, { a: 1, b: 2 }, false],
  [{ a: 1, b: 2 }, { a: 1 }, false],
  [{ a: 1 }, { b: 1 }, false],
  [[1, 2], [2, 1], false],
  [[1], [1, 2], false],
  [[], {}, false],
  [null, {}, false],
  ['1', 1, false],
  [{ toString: 1 }, { a: 1 }, false],
])('sameJson of %j and %j is %s', (a, b, same) => {
  expect(sameJson(a, b)).toBe(same);
  expect(sameJson(b, a)).toBe(same);
});

describe('nestingOf', () => {
  it('counts levels, not brackets in strings', () => {
    expect(nestingOf('{"a":[{"b":"[[[{{{\\"]]"}],"c":{}}')).toBe(3);
    expect(nestingOf('"["')).toBe(0);
    expect(nestingOf('["\\"[["]')).toBe(1);
    expect(nestingOf('["\\\\",[["\\\\\\"]]"]]]')).toBe(3);
    expect(nestingOf('["never closed [[')).toBe(1);
  });

  it('keeps what is too deep out of asJson', () => {
    const deep = (levels: number): unknown => (levels === 0 ? 1 : [deep(levels - 1)]);
    expect(asJson(deep(MAX_NESTING), 1e6)).toBeDefined();
    expect(asJson(deep(MAX_NESTING + 1), 1e6)).toBeUndefined();
    expect(asJson(1n, 1e6)).toBeUndefined();
    expect(asJson('long', 3)).toBeUndefined();
  });
});

describe('canonicalJson', () => {
  it('is the same text for the same JSON, and JSON of the same value', () => {
    expect(canonicalJson({ b: [{ d: 1, c: undefined }], 10: 'x', 9: null })).toBe('{"10":"x","9":null,"b":[{"d":1}]}');
    fc.assert(
      fc.property(fc.jsonValue(), (value) => {
        const text = canonicalJson(value);
        expect(sameJson(JSON.parse(text), JSON.parse(JSON.stringify(value)))).toBe(true);
        expect(canonicalJson(JSON.parse(text))).toBe(text);
      }),
    );
  });

  it('tells typed arrays apart by their bytes', () => {
    expect(canonicalJson(Float32Array.of(0))).not.toBe(canonicalJson(Float32Array.of(-0)));
  });
});

describe('a rollout’s own copy of a config', () => {
  it('is equal to it, and shares no data with it', () => {
    fc.assert(
      fc.property(fc.jsonValue(), (value) => {
        const config = { value };
        const own = copyConfig(config);
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
    const config = { tools: [{ name: 'add', run: (a: number) => a + 1 }], model: new Client(), limits: { turns: 4 } };
    const own = copyConfig(config);
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
    const own = copyConfig(config);
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
    const own = copyConfig(config);
    expect(own.when).toEqual(new Date(5));
    expect(own.seen).toEqual(new Map([['a', [1]]]));
    expect(own.seen).not.toBe(config.seen);
    expect(own.self).toBe(own);
    expect(Object.getPrototypeOf(own)).toBe(Object.prototype);
  });
});

describe('deepCopy', () => {
  it('gives what structuredClone gives', () => {
    const gap: unknown[] = [1];
    gap[2] = 3;
    const named = Object.assign([1], { index: 2 });
    class Named {
      a = 1;
    }
    const odd = [JSON.parse('{"__proto__":{"a":1}}'), Object.create(null), new Named()] as unknown[];
    const values = [
      gap,
      named,
      new Date(3),
      new Map([[1, { a: 1 }]]),
      [new Uint8Array(2)],
      { a: undefined, b: -0, c: 1n },
      ...odd,
    ];
    for (const value of values) expect(deepCopy(value)).toStrictEqual(structuredClone(value));
    fc.assert(
      fc.property(fc.anything(), (value) => {
        expect(deepCopy(value)).toStrictEqual(structuredClone(value));
      }),
    );
  });

  it('shares nothing with the original, and keeps what was one object one object', () => {
    const inner = { a: [1] };
    const value = { x: inner, list: [inner], self: undefined as unknown };
    value.self = value;
    const copy = deepCopy(value);
    expect(copy.x).not.toBe(inner);
    expect(copy.x.a).not.toBe(inner.a);
    expect(copy.list[0]).toBe(copy.x);
    expect(copy.self).toBe(copy);
  });

  it('refuses what structuredClone refuses, wherever it is', () => {
    for (const bad of [() => 1, Symbol('a'), new WeakMap()]) {
      expect(() => deepCopy({ deep: [bad] })).toThrow(expect.objectContaining({ name: 'DataCloneError' }));
    }
  });
});
