/**
 * One spelling for characters that mean the same: full-width digits, the minus signs, superscripts, vulgar fractions. What cannot be seen
 * (direction marks, zero-width characters) is left out: it changes what is shown, never what is meant.
 *
 * Digits of other scripts stay what they are, which is no digits.
 */
import { bySpelling } from './vocabulary.ts';

const INVISIBLE = /[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff]/g;
const SUPERSCRIPTS = /[\u2070\u00b9\u00b2\u00b3\u2074-\u207b\u207f]+/g;
const SUBSCRIPTS = /[\u2080-\u2089]+/g;
const VULGAR_FRACTION = /[\u00bc-\u00be\u2150-\u215e]/g;

/** Behind NFKC, which leaves these apart. */
const SAME = bySpelling({
  '-': '− – ‐ ‑',
  '/': '⁄ ∕ ÷',
  '*': '× · ⋅ ∙',
  '(': '⟨',
  ')': '⟩',
});
const DIFFERENT = new RegExp(`[${Object.keys(SAME).join('')}]`, 'g');

export function plainCharacters(text: string): string {
  return text
    .toWellFormed()
    .replace(INVISIBLE, '')
    .replace(SUPERSCRIPTS, (run) => `^{${run.normalize('NFKC')}}`)
    .replace(SUBSCRIPTS, (run) => `_{${run.normalize('NFKC')}}`)
    .replace(VULGAR_FRACTION, (one) => one.normalize('NFKC').replace(/^(\d+)\u2044(\d+)$/, '\\frac{$1}{$2}'))
    .normalize('NFKC')
    .replace(DIFFERENT, (one) => SAME[one] ?? one);
}
