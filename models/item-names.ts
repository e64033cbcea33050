/**
 * Names of made-up items: a brand and a noun, `Binklex lamp`. All examples are about such items.
 *
 * Every brand belongs to exactly one split by its hash: what the base policy was pretrained on, what reinforcement learning
 * trains on and what it is measured on never share a brand. Nouns are shared.
 */
import { pick, type Random } from './random.ts';

export type Split = 'pretraining' | 'training' | 'held-out';

const ONSETS = ['b', 'd', 'f', 'g', 'k', 'l', 'm', 'n', 'p', 'r', 's', 't', 'v', 'z', 'br', 'tr', 'kl', 'st'];
const VOWELS = ['a', 'e', 'i', 'o', 'u'];
const CODAS = ['', 'n', 'r', 'l', 'x', 'k'];

export const NOUNS: readonly string[] = (
  'lamp chair desk shelf stool table mirror clock kettle pan cup bowl plate knife jug vase rug sofa bed fan heater radio ' +
  'phone tent bag boot coat scarf glove hat ring watch pen book brush towel candle basket ladder hammer'
).split(' ');

export function syllables(random: Random, count: number): string {
  let word = '';
  for (let i = 0; i < count; i++) word += pick(random, ONSETS) + pick(random, VOWELS) + pick(random, CODAS);
  return word;
}

export function capitalised(word: string): string {
  return word.charAt(0).toUpperCase() + word.slice(1);
}

/** FNV-1a with a final mix, so that `% 10` is even over short words. */
function hash(word: string): number {
  let value = 2166136261;
  for (let i = 0; i < word.length; i++) value = Math.imul(value ^ word.charCodeAt(i), 16777619);
  value ^= value >>> 15;
  value = Math.imul(value, 2246822519);
  return (value ^ (value >>> 13)) >>> 0;
}

/** Seven tenths of all brands are for pretraining, one for reinforcement learning, two are held out. */
export function splitOfBrand(brand: string): Split {
  const tenth = hash(brand) % 10;
  if (tenth < 7) return 'pretraining';
  return tenth === 7 ? 'training' : 'held-out';
}

export function drawName(random: Random, split: Split): string {
  for (;;) {
    const brand = capitalised(syllables(random, 2));
    if (splitOfBrand(brand) === split) return `${brand} ${pick(random, NOUNS)}`;
  }
}
