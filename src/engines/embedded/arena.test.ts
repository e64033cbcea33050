import { describe, expect, it } from 'vitest';
import { REGULAR } from '../../../test/fixtures/nn/models.ts';
import { refusal } from '../../../test/fixtures/refusal.ts';
import { type Arena, planArena } from './arena.ts';
import type { LlamaConfig } from './model/config.ts';
import { planLayout } from './model/config.ts';

const plan = (config: LlamaConfig, threads: number, overlap = false) =>
  planArena({ config, layout: planLayout(config), lora: undefined, use: 'training', threads, overlap });

/** Every address of the plan, by the path to it; sizes and counts left out. */
function addresses(value: unknown, path = ''): [string, number][] {
  const cache = 'page layerFloats pageFloats pagesPerSlot pageCount';
  const sizes = `pages flatLength lanes slotCount trainRows headRows microbatchRows sizes floats staging ${cache}`.split(' ');
  if (value === undefined) return [];
  if (typeof value === 'number') return [[path, value]];
  return Object.entries(value as object).flatMap(([name, part]) =>
    sizes.includes(name) && !path.endsWith('decode') ? [] : addresses(part, `${path}.${name}`),
  );
}

describe('the plan of the memory', () => {
  const larger = {
    ...REGULAR,
    vocabSize: 512,
    hiddenSize: 256,
    intermediateSize: 688,
    layers: 6,
    headDim: 64,
    contextLength: 1024,
  };

  it.each([1, 2, 16])('gives every region of %d threads a place of its own, within the memory', (threads) => {
    const arena: Arena = plan(REGULAR, threads, threads === 2);
    const places = addresses(arena).map(([, address]) => address);
    expect(new Set(places).size).toBe(places.length);
    expect(Math.max(...places)).toBeLessThan(arena.pages * 65_536);
    expect(places.every((address) => address % 64 === 0)).toBe(true);
  });

  it('fits a model of five million parameters on 16 threads: caches share one budget', () => {
    expect(planLayout(larger).length).toBeGreaterThan(4_000_000);
    const [one, many] = [plan(larger, 1), plan(larger, 16)];
    expect(many.pages).toBeLessThanOrEqual(65_536);
    expect(many.pageCount).toBeGreaterThan(many.pagesPerSlot);
    expect(many.pageCount).toBeLessThan(one.pageCount);
  });

  it('plans for fewer threads where all of them do not fit', () => {
    const large = { ...larger, hiddenSize: 1024, intermediateSize: 4096 };
    const arena = plan(large, 16);
    expect(arena.workers.length).toBeGreaterThan(1);
    expect(arena.workers.length).toBeLessThan(16);
    expect(arena.pages).toBeLessThanOrEqual(65_536);
    expect(plan(large, 2).workers).toHaveLength(2);
  });

  it('gives up room for a second version of the weights before it gives up a thread', () => {
    const large = { ...larger, hiddenSize: 1024, intermediateSize: 4096 };
    const { length } = plan(large, 16).workers;
    expect(plan(large, length, true)).toMatchObject({ areas: { length: 1 }, workers: { length } });
    expect(plan(large, 1, true)).toMatchObject({ areas: { length: 2 }, workers: { length: 1 } });
  });

  it('refuses a model that WASM cannot address, and says what it would need', () => {
    expect(() => plan({ ...larger, hiddenSize: 2048, intermediateSize: 5504 }, 4)).toThrow(
      refusal('MODEL_INVALID', /needs \d+\.\d GiB, expected at most 4/),
    );
  });

  const smollm2 = { vocabSize: 49_152, hiddenSize: 576, intermediateSize: 1536, layers: 30, heads: 9, kvHeads: 3 };
  it.each([
    ['flags that make room', {}, /^train adapters instead: --trained adapters; or give --context 1024/],
    ['no context where the weights and their moments are too large', { layers: 100 }, /^train adapters[^;]*$/],
    ['no flag where the weights alone are too large', { layers: 400 }, /^use a smaller model/],
  ])('names %s', (_, changes, hint) => {
    expect(() => plan({ ...larger, ...smollm2, contextLength: 8192, ...changes }, 4)).toThrow(
      expect.objectContaining({ hint: expect.stringMatching(hint) as string }),
    );
  });
});
