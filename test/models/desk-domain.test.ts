/** The desk's data: splits that never meet, demonstrations that are what their profile says, files that the script makes. */
import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { makeDeskFiles } from '../../examples/desk/make-tasks.ts';
import { CLEAN_CLERK, demonstrateClerk, demonstrateCustomer, NOISY_CLERK } from '../../models/desk-demonstrations.ts';
import { drawWant, orderText, QUESTIONS, wantText } from '../../models/desk-domain.ts';
import { splitOfBrand } from '../../models/item-names.ts';
import { seededRandom } from '../../models/random.ts';

interface TaskLine {
  readonly id: string;
  readonly prompt: string;
  readonly answer: string;
  readonly metadata: { readonly want: string };
}

const files = makeDeskFiles();
const training = tasksOf('train.jsonl');
const heldOut = tasksOf('held-out.jsonl');

function tasksOf(name: string): readonly TaskLine[] {
  const lines = (files[name] ?? '').trimEnd().split('\n');
  return lines.map((line) => JSON.parse(line) as TaskLine);
}

function brandIn(text: string): string {
  return /"([A-Z][a-z]+) /.exec(text)?.[1] ?? '';
}

describe('the desk’s task files', () => {
  it.each(Object.keys(files))('%s is what make-tasks.ts makes', (name) => {
    expect(readFileSync(new URL(`../../examples/desk/${name}`, import.meta.url), 'utf8')).toBe(files[name]);
  });

  it('hold 1,000 training and 300 held-out tasks with ids and openings of their own', () => {
    expect([training.length, heldOut.length]).toEqual([1_000, 300]);
    expect(new Set([...training, ...heldOut].map(({ id }) => id)).size).toBe(1_300);
    expect(new Set([...training, ...heldOut].map(({ prompt }) => prompt)).size).toBe(1_300);
  });

  it('are about brands of their split', () => {
    for (const { prompt } of training) expect(splitOfBrand(brandIn(prompt))).toBe('training');
    for (const { prompt } of heldOut) expect(splitOfBrand(brandIn(prompt))).toBe('held-out');
  });

  it('tell the clerk the item and neither number nor colour', () => {
    for (const { prompt, metadata } of [...training, ...heldOut]) {
      const [, quantity, item, colour] = /^(\d) "(.+)" in (\w+)$/.exec(metadata.want) ?? [];
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
