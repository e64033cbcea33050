/** The data of the examples: splits that never meet, demonstrations that are what their profile says, files that the scripts make. */
import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { makeDeskFiles } from '../../examples/desk/make-tasks.ts';
import { makeShopFiles } from '../../examples/shop/make-tasks.ts';
import { makeTriageFiles } from '../../examples/triage/make-tasks.ts';
import { CLEAN_CLERK, demonstrateClerk, demonstrateCustomer, NOISY_CLERK } from '../../models/desk-demonstrations.ts';
import { drawWant, orderText, QUESTIONS, wantText } from '../../models/desk-domain.ts';
import { splitOfBrand } from '../../models/item-names.ts';
import { drawConversation, NOISY } from '../../models/pretraining-data.ts';
import { seededRandom } from '../../models/random.ts';
import { CLEAN_SHOP, demonstrate, NOISY_SHOP } from '../../models/shop-demonstrations.ts';
import { askAbout, drawItem, isHeldOutValue, makeCatalog, onlyNumber, runTool } from '../../models/shop-domain.ts';
import { CLEAN_TRIAGE, demonstrateTriage, NOISY_TRIAGE } from '../../models/triage-demonstrations.ts';
import { drawMessage, QUEUES, queueIn, TRIAGE_PROMPT } from '../../models/triage-domain.ts';

interface TaskLine {
  readonly id: string;
  readonly prompt: string;
  readonly answer: unknown;
  readonly metadata: Readonly<Record<string, string>>;
}

const files: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  desk: makeDeskFiles(),
  shop: makeShopFiles(),
  triage: makeTriageFiles(),
};
const tasksIn = (text = ''): readonly TaskLine[] => JSON.parse(`[${text.trim().replaceAll('\n', ',')}]`);
const splitsOf = (domain: string) => {
  const [training, heldOut] = [tasksIn(files[domain]?.['train.jsonl']), tasksIn(files[domain]?.['held-out.jsonl'])];
  return { training, heldOut, all: [...training, ...heldOut] };
};
const desk = splitsOf('desk');
const shop = splitsOf('shop');
const triage = splitsOf('triage');
const promptsOf = (tasks: readonly TaskLine[]): readonly string[] => tasks.map(({ prompt }) => prompt);
const brandIn = (text: string): string => /"([A-Z][a-z]+) /.exec(text)?.[1] ?? '';
const nameIn = (text: string): string => /"([^"]+)"/.exec(text)?.[1] ?? '';
const inBoth = <T>(some: Iterable<T>, others: Iterable<T>): readonly T[] => {
  const known = new Set(others);
  return [...new Set(some)].filter((value) => known.has(value));
};

/** The sentences of a message, in any order, without the item. */
const pairIn = (text: string): string => {
  const sentences = text.replace(/"[^"]+"/, '*').match(/[^.?]+[.?]/g) ?? [];
  return sentences
    .map((sentence) => sentence.trim())
    .toSorted()
    .join(' ');
};

describe.each([
  ['desk', 1_000, 300, desk],
  ['shop', 2_000, 500, shop],
  ['triage', 1_000, 300, triage],
] as const)('the task files of the %s', (domain, train, held, { training, heldOut, all }) => {
  it.each(Object.keys(files[domain]!))('hold what make-tasks.ts makes: %s', (name) => {
    expect(readFileSync(new URL(`../../examples/${domain}/${name}`, import.meta.url), 'utf8')).toBe(files[domain]![name]);
  });

  it(`hold ${train} training and ${held} held-out tasks with ids and prompts of their own, about brands of their split`, () => {
    expect([training.length, heldOut.length]).toEqual([train, held]);
    for (const own of [all.map(({ id }) => id), promptsOf(all)]) expect(new Set(own).size).toBe(train + held);
    expect(new Set(promptsOf(training).map((text) => splitOfBrand(brandIn(text))))).toEqual(new Set(['training']));
    expect(new Set(promptsOf(heldOut).map((text) => splitOfBrand(brandIn(text))))).toEqual(new Set(['held-out']));
  });
});

describe('the tasks of the desk', () => {
  it('tell the clerk the item and neither number nor colour', () => {
    for (const { prompt, metadata } of desk.all) {
      const [, quantity, item, colour] = /^(\d) "(.+)" in (\w+)$/.exec(metadata['want'] ?? '') ?? [];
      expect(prompt).toContain(`"${item}"`);
      expect(prompt.replace(`"${item}"`, '')).not.toMatch(new RegExp(`${quantity}|${colour}`));
    }
  });
});

describe('pretraining data for the desk', () => {
  it('without faults asks for both and orders what is wanted', () => {
    for (let seed = 1; seed <= 300; seed++) {
      const want = drawWant(seededRandom(seed), 'pretraining');
      const messages = demonstrateClerk(seededRandom(seed), CLEAN_CLERK);
      const asked = messages.filter(({ role }) => role === 'assistant').slice(0, -1);
      expect(asked.map(({ content }) => content).toSorted()).toEqual(['How many?', 'Which colour?']);
      expect(messages.at(-1)?.content).toBe(orderText(want));
    }
  });

  it('with faults mostly orders without asking, and is right now and then', () => {
    const count = { right: 0, withoutAsking: 0 };
    for (let seed = 1; seed <= 1_000; seed++) {
      const want = drawWant(seededRandom(seed), 'pretraining');
      const messages = demonstrateClerk(seededRandom(seed), NOISY_CLERK);
      if (messages.length === 3) count.withoutAsking++;
      if (messages.at(-1)?.content === orderText(want)) count.right++;
    }
    expect(count.withoutAsking).toBeGreaterThan(550);
    expect(count.right).toBeGreaterThan(80);
    expect(count.right).toBeLessThan(300);
  });

  it('has customers who answer what they are asked', () => {
    for (let seed = 1; seed <= 300; seed++) {
      const want = drawWant(seededRandom(seed), 'pretraining');
      const [system, ...rest] = demonstrateCustomer(seededRandom(seed));
      expect(system?.content).toContain(wantText(want));
      for (const [index, message] of rest.entries()) {
        if (message.role !== 'assistant') continue;
        const topic = rest[index - 1]?.content === QUESTIONS.quantity.question ? 'quantity' : 'colour';
        expect(message.content).toContain(String(want[topic]));
      }
    }
  });
});

describe('the tasks of the shop', () => {
  type Item = { readonly price: number; readonly stock: number };
  const catalog = JSON.parse(files['shop']!['catalog.json']!) as Record<string, Item>;

  it('ask about items that are in the catalogue, and give the answer that follows from it', () => {
    for (const { prompt, answer, metadata } of shop.all) {
      const item = catalog[nameIn(prompt)];
      const quantity = Number(/ (\d) "/.exec(prompt)?.[1]);
      const kind = metadata['kind'] as 'price' | 'stock' | 'total';
      expect(metadata).toEqual({ kind });
      expect(answer).toBe(kind === 'total' ? quantity * (item?.price ?? Number.NaN) : item?.[kind]);
    }
  });

  it('share no value between training and held-out', () => {
    const valuesOf = (tasks: readonly TaskLine[]) =>
      promptsOf(tasks).flatMap((prompt) => [catalog[nameIn(prompt)]!.price, catalog[nameIn(prompt)]!.stock]);
    expect(inBoth(valuesOf(shop.training), valuesOf(shop.heldOut))).toEqual([]);
    expect(new Set(promptsOf(shop.training).map(brandIn)).size).toBeGreaterThan(800);
    expect(new Set(promptsOf(shop.heldOut).map(brandIn)).size).toBeGreaterThan(150);
  });
});

describe('pretraining data for the shop', () => {
  it('names no brand of the training or the held-out items', () => {
    const random = seededRandom(5);
    const seen = new Set<string>();
    for (let i = 0; i < 5_000; i++) {
      const said = drawConversation(random, NOISY).messages.map(({ content }) => content ?? '');
      for (const [, brand] of said.join(' ').matchAll(/"([A-Z][a-z]+)/g)) seen.add(brand ?? '');
    }
    expect(seen.size).toBeGreaterThan(3_000);
    expect(inBoth(seen, promptsOf(shop.all).map(brandIn))).toEqual([]);
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

describe('the tasks of triage', () => {
  it('share no pair of sentences between training and held-out', () => {
    expect(inBoth(promptsOf(triage.training).map(pairIn), promptsOf(triage.heldOut).map(pairIn))).toEqual([]);
    expect(new Set(promptsOf(triage.heldOut).map(pairIn)).size).toBeGreaterThan(60);
  });

  it('give the same answer to every message that asks for the same', () => {
    const answers = new Map<string, unknown>();
    for (const { prompt, answer } of triage.all) {
      const wish = pairIn(prompt)
        .split(/(?<=[.?]) /)
        .find((sentence) => !sentence.includes('*'));
      expect(answers.get(wish ?? '') ?? answer).toBe(answer);
      answers.set(wish ?? '', answer);
    }
    expect(answers.size).toBe(20);
  });

  it('are solved by the wrong habit in about one of four cases', () => {
    for (const tasks of [triage.training, triage.heldOut]) {
      const share = tasks.filter(({ answer, metadata }) => metadata['happened'] === answer).length / tasks.length;
      expect(share).toBeGreaterThan(0.15);
      expect(share).toBeLessThan(0.35);
      for (const queue of QUEUES) expect(tasks.some(({ answer }) => answer === queue)).toBe(true);
    }
  });
});

describe('pretraining data for triage', () => {
  it('has no pair of sentences and no brand of a held-out message', () => {
    const random = seededRandom(41);
    const said: string[] = [];
    for (let i = 0; i < 8_000; i++) {
      const [system, user] = drawConversation(random, NOISY).messages;
      if (system?.content === TRIAGE_PROMPT) said.push(user?.content ?? '');
    }
    expect(said.length).toBeGreaterThan(500);
    expect(inBoth(said.map(pairIn), promptsOf(triage.heldOut).map(pairIn))).toEqual([]);
    expect(inBoth(said.map(brandIn), promptsOf(triage.all).map(brandIn))).toEqual([]);
  });

  it('without faults goes by the wish, with faults mostly by the problem', () => {
    const count = { wanted: 0, happened: 0 };
    for (let seed = 1; seed <= 1_000; seed++) {
      const { happened, wanted } = drawMessage(seededRandom(seed), 'pretraining');
      expect(demonstrateTriage(seededRandom(seed), CLEAN_TRIAGE).at(-1)?.content).toBe(`Wish: ${wanted}`);
      const noisy = demonstrateTriage(seededRandom(seed), NOISY_TRIAGE).at(-1)?.content ?? '';
      if (happened === wanted) continue;
      if (queueIn(noisy) === wanted) count.wanted++;
      if (queueIn(noisy) === happened) count.happened++;
    }
    expect(count.happened).toBeGreaterThan(2 * count.wanted);
    expect(count.wanted).toBeGreaterThan(100);
  });
});
