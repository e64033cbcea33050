/** Triage's data: splits that never meet, demonstrations that are what their profile says, files that the script makes. */
import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { makeTriageFiles } from '../../examples/triage/make-tasks.ts';
import { splitOfBrand } from '../../models/item-names.ts';
import { drawConversation, NOISY } from '../../models/pretraining-data.ts';
import { seededRandom } from '../../models/random.ts';
import { CLEAN_TRIAGE, demonstrateTriage, NOISY_TRIAGE } from '../../models/triage-demonstrations.ts';
import { drawMessage, QUEUES, queueIn, TRIAGE_PROMPT } from '../../models/triage-domain.ts';

interface TaskLine {
  readonly id: string;
  readonly prompt: string;
  readonly answer: string;
  readonly metadata: { readonly happened: string };
}

const files = makeTriageFiles();
const training = tasksOf('train.jsonl');
const heldOut = tasksOf('held-out.jsonl');

function tasksOf(name: string): readonly TaskLine[] {
  const lines = (files[name] ?? '').trimEnd().split('\n');
  return lines.map((line) => JSON.parse(line) as TaskLine);
}

/** The sentences of a message, in any order, without the item. */
function pairIn(text: string): string {
  return (text.replace(/"[^"]+"/, '*').match(/[^.?]+[.?]/g) ?? [])
    .map((sentence) => sentence.trim())
    .toSorted()
    .join(' ');
}

function brandIn(text: string): string {
  return /"([A-Z][a-z]+) /.exec(text)?.[1] ?? '';
}

function inBoth<T>(some: Iterable<T>, others: Iterable<T>): readonly T[] {
  const known = new Set(others);
  return [...new Set(some)].filter((value) => known.has(value));
}

describe('triage’s task files', () => {
  it.each(Object.keys(files))('%s is what make-tasks.ts makes', (name) => {
    expect(readFileSync(new URL(`../../examples/triage/${name}`, import.meta.url), 'utf8')).toBe(files[name]);
  });

  it('hold 1,000 training and 300 held-out tasks with ids and messages of their own', () => {
    expect([training.length, heldOut.length]).toEqual([1_000, 300]);
    expect(new Set([...training, ...heldOut].map(({ id }) => id)).size).toBe(1_300);
    expect(new Set([...training, ...heldOut].map(({ prompt }) => prompt)).size).toBe(1_300);
  });

  it('share no brand and no pair of sentences between training and held-out', () => {
    const prompts = (tasks: readonly TaskLine[]) => tasks.map(({ prompt }) => prompt);
    expect(inBoth(prompts(training).map(brandIn), prompts(heldOut).map(brandIn))).toEqual([]);
    expect(inBoth(prompts(training).map(pairIn), prompts(heldOut).map(pairIn))).toEqual([]);
    for (const { prompt } of heldOut) expect(splitOfBrand(brandIn(prompt))).toBe('held-out');
    expect(new Set(prompts(heldOut).map(pairIn)).size).toBeGreaterThan(60);
  });

  it('give the same answer to every message that asks for the same', () => {
    const answers = new Map<string, string>();
    for (const { prompt, answer } of [...training, ...heldOut]) {
      const wish = pairIn(prompt)
        .split(/(?<=[.?]) /)
        .find((sentence) => !sentence.includes('*'));
      expect(answers.get(wish ?? '') ?? answer).toBe(answer);
      answers.set(wish ?? '', answer);
    }
    expect(answers.size).toBe(20);
  });

  it('are solved by the wrong habit in about one of four cases', () => {
    for (const tasks of [training, heldOut]) {
      const share = tasks.filter(({ answer, metadata }) => metadata.happened === answer).length / tasks.length;
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
    expect(
      inBoth(
        said.map(pairIn),
        heldOut.map(({ prompt }) => pairIn(prompt)),
      ),
    ).toEqual([]);
    expect(
      inBoth(
        said.map(brandIn),
        [...training, ...heldOut].map(({ prompt }) => brandIn(prompt)),
      ),
    ).toEqual([]);
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
