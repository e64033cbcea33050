/** The shop's data: splits that never meet, demonstrations that are what their profile says, files that the script makes. */
import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { makeShopFiles } from '../../examples/shop/make-tasks.ts';
import { splitOfBrand } from '../../models/item-names.ts';
import { drawConversation, NOISY } from '../../models/pretraining-data.ts';
import { seededRandom } from '../../models/random.ts';
import { CLEAN_SHOP, demonstrate, NOISY_SHOP } from '../../models/shop-demonstrations.ts';
import { askAbout, drawItem, isHeldOutValue, makeCatalog, onlyNumber, runTool } from '../../models/shop-domain.ts';

interface TaskLine {
  readonly id: string;
  readonly prompt: string;
  readonly answer: number;
  readonly metadata: unknown;
}

const shopFolder = new URL('../../examples/shop/', import.meta.url);
const files = makeShopFiles();
const catalog = JSON.parse(files['catalog.json'] ?? '') as Record<string, { readonly price: number; readonly stock: number }>;
const training = tasksOf('train.jsonl');
const heldOut = tasksOf('held-out.jsonl');

function tasksOf(name: string): readonly TaskLine[] {
  return (files[name] ?? '')
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as TaskLine);
}

function nameIn(prompt: string): string {
  return /"([^"]+)"/.exec(prompt)?.[1] ?? '';
}

function brandsOf(tasks: readonly TaskLine[]): Set<string> {
  return new Set(tasks.map((task) => nameIn(task.prompt).split(' ')[0] ?? ''));
}

function valuesOf(tasks: readonly TaskLine[]): Set<number> {
  const items = tasks.map((task) => catalog[nameIn(task.prompt)]);
  return new Set(items.flatMap((item) => (item === undefined ? [] : [item.price, item.stock])));
}

function inBoth<T>(some: ReadonlySet<T>, others: ReadonlySet<T>): readonly T[] {
  return [...some].filter((value) => others.has(value));
}

describe('the shop’s task files', () => {
  it.each(Object.keys(files))('%s is what make-tasks.ts makes', (name) => {
    expect(readFileSync(new URL(name, shopFolder), 'utf8')).toBe(files[name]);
  });

  it('hold 2,000 training and 500 held-out tasks with ids and questions of their own', () => {
    expect(training).toHaveLength(2_000);
    expect(heldOut).toHaveLength(500);
    expect(new Set([...training, ...heldOut].map((task) => task.id)).size).toBe(2_500);
    expect(new Set([...training, ...heldOut].map((task) => task.prompt)).size).toBe(2_500);
  });

  it('ask about items that are in the catalogue, and give the answer that follows from it', () => {
    for (const { prompt, answer, metadata } of [...training, ...heldOut]) {
      const item = catalog[nameIn(prompt)];
      const quantity = Number(/ (\d) "/.exec(prompt)?.[1]);
      const kind = (metadata as { readonly kind: 'price' | 'stock' | 'total' }).kind;
      expect(metadata).toEqual({ kind });
      expect(answer).toBe(kind === 'total' ? quantity * (item?.price ?? Number.NaN) : item?.[kind]);
    }
  });

  it('share no brand and no value between training and held-out', () => {
    expect(inBoth(brandsOf(training), brandsOf(heldOut))).toEqual([]);
    expect(inBoth(valuesOf(training), valuesOf(heldOut))).toEqual([]);
    expect(brandsOf(training).size).toBeGreaterThan(800);
    expect(brandsOf(heldOut).size).toBeGreaterThan(150);
  });
});

describe('pretraining data', () => {
  it('names no brand of the training or the held-out items', () => {
    const random = seededRandom(5);
    const seen = new Set<string>();
    for (let i = 0; i < 5_000; i++) {
      const said = drawConversation(random, NOISY).messages.map(({ content }) => content ?? '');
      for (const [, brand] of said.join(' ').matchAll(/"([A-Z][a-z]+)/g)) seen.add(brand ?? '');
    }
    expect(seen.size).toBeGreaterThan(3_000);
    expect(inBoth(seen, brandsOf(training))).toEqual([]);
    expect(inBoth(seen, brandsOf(heldOut))).toEqual([]);
  });

  it('never gives a held-out value as a price or a stock', () => {
    const random = seededRandom(6);
    const values: number[] = [];
    for (let i = 0; i < 3_000; i++) {
      for (const message of drawConversation(random, NOISY).messages) {
        const found = /^\{"price":(\d+),"stock":(\d+)\}$/.exec(message.role === 'tool' ? (message.content ?? '') : '');
        if (found !== null) values.push(Number(found[1]), Number(found[2]));
      }
    }
    expect(values.length).toBeGreaterThan(500);
    expect(values.filter(isHeldOutValue)).toEqual([]);
  });

  it('without faults always ends with the right answer after the right tool calls', () => {
    const random = seededRandom(7);
    for (let i = 0; i < 500; i++) {
      const question = askAbout(random, drawItem(random, 'pretraining'));
      const messages = demonstrate(random, question, CLEAN_SHOP);
      const tools = messages.flatMap((message) => message.tool_calls ?? []).map((call) => call.function.name);
      expect(onlyNumber(messages.at(-1)?.content ?? '')).toBe(question.answer);
      expect(tools).toEqual(question.kind === 'total' ? ['lookup', 'calculator'] : ['lookup']);
    }
  });

  it('with faults is right now and then, and mostly answers without a tool', () => {
    const random = seededRandom(8);
    const count = { right: 0, withoutTool: 0 };
    for (let i = 0; i < 2_000; i++) {
      const question = askAbout(random, drawItem(random, 'pretraining'));
      const messages = demonstrate(random, question, NOISY_SHOP);
      if (onlyNumber(messages.at(-1)?.content ?? '') === question.answer) count.right++;
      if (messages.length === 3) count.withoutTool++;
    }
    expect(count.right / 2_000).toBeGreaterThan(0.05);
    expect(count.right / 2_000).toBeLessThan(0.25);
    expect(count.withoutTool / 2_000).toBeGreaterThan(0.55);
  });

  it('gives tool results that the tools themselves would give', () => {
    const random = seededRandom(9);
    for (let i = 0; i < 500; i++) {
      const question = askAbout(random, drawItem(random, 'pretraining'));
      const known = new Map([[question.item.name, question.item]]);
      const messages = demonstrate(random, question, NOISY_SHOP);
      messages.forEach((message, index) => {
        const call = message.tool_calls?.[0]?.function;
        if (call !== undefined) expect(messages[index + 1]?.content).toBe(runTool(known, call.name, call.arguments));
      });
    }
  });
});

describe('splits', () => {
  it('depend on the brand alone and every one of them is drawn from', () => {
    for (const split of ['pretraining', 'training', 'held-out'] as const) {
      for (const item of makeCatalog(3, split, 50)) expect(splitOfBrand(item.name.split(' ')[0] ?? '')).toBe(split);
    }
  });

  it('keep 18 of the 89 values for held-out items', () => {
    const values = Array.from({ length: 89 }, (_, index) => index + 11);
    expect(values.filter(isHeldOutValue)).toHaveLength(18);
  });
});
