/**
 * `mathMatch`: right where the final answer is mathematically the same as the reference, however it is written. Both are read by a parser and
 * compared as numbers, expressions, sets, intervals, matrices, equations; nothing is ever evaluated as code.
 *
 * What cannot be read as mathematics in the model's text is wrong. A reference that cannot be read is compared as text. How much is computed
 * for one grading is bounded (`math/work.ts`): what would take longer is wrong.
 */
import type { Grader } from '../core/contracts.ts';
import { defineGrader } from '../core/define.ts';
import { lastLine, markedAnswers, onlyFormula, referenceAnswer, spokenPart } from './final-answer.ts';
import { plainCharacters } from './math/characters.ts';
import type { Node } from './math/nodes.ts';
import { parseMath } from './math/parse.ts';
import type { Commas } from './math/tokens.ts';
import { sameValue } from './math/values.ts';
import { newWork, readable, type Work } from './math/work.ts';
import { lastNumber } from './number-match.ts';
import { checkOptions, type TextOptions } from './options.ts';
import { acceptedAnswers, rightOrWrong, saidBy } from './said.ts';

/** A text that is longer is only the same as itself. */
const MOST_PLAIN_CHARS = 20_000;

export interface MathMatchOptions extends TextOptions {
  /** What is read where nothing is marked as the answer; `wrong`: nothing, it is wrong. Default `last-line`. */
  readonly unmarked?: 'last-line' | 'last-number' | 'wrong';
}

export function mathMatch(options: MathMatchOptions = {}): Grader {
  checkOptions('mathMatch', options, { of: 'function', unmarked: ['last-line', 'last-number', 'wrong'] });
  const { of, unmarked = 'last-line' } = options;
  return defineGrader({
    name: 'mathMatch',
    grade: (input) => {
      const said = saidAnswers(saidBy(input, of), unmarked);
      const references = acceptedAnswers(input).map(referenceAnswer);
      const work = newWork();
      return rightOrWrong(references.some((reference) => isAnswer(said, reference, work)));
    },
  });
}

/** The answer, or several that were given side by side. */
function saidAnswers(text: string, unmarked: NonNullable<MathMatchOptions['unmarked']>): readonly string[] {
  const spoken = spokenPart(text);
  const marked = markedAnswers(spoken);
  if (marked !== undefined) return marked;
  if (unmarked === 'wrong') return [];
  return [(unmarked === 'last-number' ? lastNumber(spoken) : lastLine(spoken)) ?? ''];
}

/** Of several answers each has to be right, or all of them together are the list that was asked for. */
function isAnswer(said: readonly string[], reference: string, work: Work): boolean {
  if (said.length === 0 || said.some((one) => one === '')) return false;
  const isRight = (one: string): boolean => sameMath(one, reference, work) || sameMath(onlyFormula(one) ?? '', reference, work);
  return said.every(isRight) || (said.length > 1 && sameMath(said.join(', '), reference, work));
}

/** Whether two texts are the same answer. Never throws; symmetric; a text is always the same as itself. */
export function sameMath(said: string, reference: string, work: Work = newWork()): boolean {
  const [left, right] = [plainText(said), plainText(reference)];
  if (left === right) return left !== '' || said === reference;
  if (left === '' || right === '') return false;
  const seed = textHash(said) ^ textHash(reference);
  let wasRead = false;
  for (const commas of ['group', 'separate'] as const) {
    const [a, b] = [readAs(said, commas, work), readAs(reference, commas, work)];
    if (a === undefined || b === undefined) continue;
    wasRead = true;
    if (readable(() => sameValue(a, b, { work, seed })) === true) return true;
    if ((a.kind === 'measured') === (b.kind === 'measured')) continue;
    // Where the other one has a unit in words, m is metres and no variable.
    const [c, d] = a.kind === 'measured' ? [a, readAs(reference, commas, work, true)] : [readAs(said, commas, work, true), b];
    if (c?.kind !== 'measured' || d?.kind !== 'measured') continue;
    if (readable(() => sameValue(c, d, { work, seed })) === true) return true;
  }
  // In formulas x and X are two things; in words they are one.
  return !wasRead && left.toLowerCase() === right.toLowerCase();
}

const readAs = (text: string, commas: Commas, work: Work, unitLetters = false): Node | undefined =>
  readable(() => parseMath(text, { commas, unitLetters }, work));

const WORDS = /\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s?\{([^{}]{0,200})\}/g;
const IDLE = /\\(?:left|right|displaystyle)(?![A-Za-z])|\\[,;:! ()[\]]|^\s*\*\*|\*\*\s*$|\$|\s+/g;

/** Without what only spaces, wraps or emphasises; signs and brackets stay, but around a single word. */
function plainText(text: string): string {
  if (text.length > MOST_PLAIN_CHARS) return text;
  const plain = plainCharacters(text).replace(WORDS, ' $1 ').replace(IDLE, ' ').replace(/ +/g, ' ').trim();
  // Behind a word it is an exclamation mark, behind n a factorial.
  const bare = plain.replace(/\.$|(?<=\p{L}{3})!$/u, '').replace(/ (?=[,;:)\]])/g, '');
  return /^\(\s?(\p{L}+)\s?\)$/u.exec(bare)?.[1] ?? bare;
}

function textHash(text: string): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193);
  return hash;
}
