/** `exactMatch`: right where the answer was given to the letter. A list of answers accepts each of them. Does not look inside a text. */
import type { Grader } from '../../core/contracts.ts';
import { defineGrader } from '../../core/define-grader.ts';
import { checkOptions, type TextOptions } from '../options.ts';
import { rightOrWrong } from './right-or-wrong.ts';
import { acceptedAnswers, saidBy } from './said.ts';

export interface ExactMatchOptions extends TextOptions {
  /** Default true. */
  readonly caseSensitive?: boolean;
  /** Whether white space around either text is left out; default true. */
  readonly trim?: boolean;
}

export function exactMatch(options: ExactMatchOptions = {}): Grader {
  checkOptions('exactMatch', options, { of: 'function', caseSensitive: 'boolean', trim: 'boolean' });
  const { of, caseSensitive = true, trim = true } = options;
  const form = (text: string): string => {
    const trimmed = trim ? text.trim() : text;
    return caseSensitive ? trimmed : trimmed.toLowerCase();
  };
  return defineGrader({
    name: 'exactMatch',
    grade: (input) => {
      const said = form(saidBy(input, of));
      return rightOrWrong(acceptedAnswers(input).some((answer) => form(answer) === said));
    },
  });
}
