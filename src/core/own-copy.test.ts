import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ownCopy } from './own-copy.ts';

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
