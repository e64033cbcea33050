/**
 * `normalisedMatch`: right where the same words were said: case, articles, punctuation, white space and the many ways to write one character
 * in Unicode do not matter. A list of answers accepts each of them.
 *
 * What makes another number is kept: the sign and the point of -3.5, the stroke of 1/2, a percent sign. So are # + & @, which make other names.
 */
import type { Grader } from '../../core/contracts.ts';
import { defineGrader } from '../../core/define-grader.ts';
import { checkOptions, type TextOptions } from '../options.ts';
import { rightOrWrong } from './right-or-wrong.ts';
import { acceptedAnswers, saidBy } from './said.ts';

/** A text that is longer than this is no short answer; what is read of it bounds the time. */
const MOST_CHARS = 20_000;
const INVISIBLE = /[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]/g;
const DASHES = /[\u2010-\u2015\u2212]/g;
const THOUSANDS = /(?<=\d),(?=\d{3}(?!\d))/g;
/** Points and strokes between digits, signs and points before one, and percent signs stay. */
const IDLE_PUNCTUATION = /(?!(?<=\d)[./:,](?=\d)|(?<![\p{L}\d])[-.](?=\.?\d)|(?<=\d)%|[#&@])\p{P}/gu;
const ARTICLES = /(?<![\p{L}\d])(?:an?|the)(?![\p{L}\d])/gu;

export function normalisedMatch(options: TextOptions = {}): Grader {
  checkOptions('normalisedMatch', options, { of: 'function' });
  return defineGrader({
    name: 'normalisedMatch',
    grade: (input) => {
      const said = saidBy(input, options.of);
      const accepted = acceptedAnswers(input);
      if (said.length > MOST_CHARS || said.trim() === '') return rightOrWrong(false);
      const normal = normalised(said);
      return rightOrWrong(accepted.some((answer) => normalised(answer) === normal));
    },
  });
}

/** Never empty for a text that is not: where articles and punctuation are all there is, they are the text. */
export function normalised(text: string): string {
  const plain = text.normalize('NFKC').replace(INVISIBLE, '').replace(DASHES, '-').toLowerCase();
  const words = spaced(plain.replace(THOUSANDS, '').replace(IDLE_PUNCTUATION, ' '));
  return spaced(words.replace(ARTICLES, ' ')) || words || spaced(plain);
}

const spaced = (text: string): string => text.replace(/\s+/g, ' ').trim();
