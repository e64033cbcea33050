/**
 * Who plays the roles that are not trained. Give the address of an OpenAI-compatible server in OPPONENTS_URL (and a key in OPPONENTS_KEY) to
 * play against real models; without one a simple program plays, so that the example runs anywhere.
 */
import type { DefaultModelGiven } from 'trainyard/tuner';

export type Random = () => number;

export function opponent(name: string, random: Random): DefaultModelGiven {
  const { OPPONENTS_URL: baseURL, OPPONENTS_KEY: apiKey } = process.env;
  return baseURL === undefined ? program(name, random) : { name, baseURL, ...(apiKey === undefined ? {} : { apiKey }) };
}

/** Names anybody it may name. A seer tells what it saw, and goes by it; the others go by what is said. */
function program(name: string, random: Random): DefaultModelGiven {
  return {
    name,
    generate: async ({ messages }) => {
      const question = messages.at(-1)?.content ?? '';
      const choices = /: ([\d ]+)$/.exec(question)?.[1]?.split(' ') ?? [];
      const suspects = [...question.matchAll(/(\d+) is a werewolf/g)].flatMap(([, number]) => number ?? []);
      const suspect = suspects.find((number) => choices.includes(number));
      if (question.includes('Say save') && random() < 0.5) return { content: 'save' };
      if (choices.length === 0) return { content: suspects.length > 0 ? `${suspects.at(-1)} is a werewolf` : 'I am good' };
      if (question.includes('or none') && suspect === undefined && random() < 0.7) return { content: 'none' };
      return { content: suspect ?? choices[Math.floor(random() * choices.length)] ?? '' };
    },
  };
}

/** The same numbers for the same seed. */
export function seeded(seed: number): Random {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

export function shuffled<T>(list: readonly T[], random: Random): T[] {
  return list
    .map((one) => ({ one, place: random() }))
    .toSorted((a, b) => a.place - b.place)
    .map(({ one }) => one);
}
