/**
 * Graders that compare text: literally, by normalised words, or by a regular expression. If the answer is a list, any item is right. Also
 * regular expressions with a time limit, for all graders.
 */
import { createContext, Script } from 'node:vm';
import type { Grader, GraderInput } from '../core/contracts.ts';
import { unscorable } from '../core/define.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { acceptedAnswers, answerOf, type TextOptions, textGrader } from './answer-text.ts';

export interface ExactMatchOptions extends TextOptions {
  /** Default true. */
  readonly caseSensitive?: boolean;
  /** Whether white space around either text is ignored. Default true. */
  readonly trim?: boolean;
}

/** Right if the whole response is the answer, character for character. */
export function exactMatch(options: ExactMatchOptions = {}): Grader {
  return textGrader('exactMatch', options, { caseSensitive: 'boolean', trim: 'boolean' }, (said, input) => {
    const { caseSensitive = true, trim = true } = options;
    const form = (text: string): string => {
      const trimmed = trim ? text.trim() : text;
      return caseSensitive ? trimmed : trimmed.toLowerCase();
    };
    return acceptedAnswers(input).some((answer) => form(answer) === form(said));
  });
}

/** Longer responses are wrong: they are not short answers, and this bounds the time. */
const MOST_CHARS = 20_000;
const INVISIBLE = /[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]/g;
const DASHES = /[\u2010-\u2015\u2212]/g;
const THOUSANDS = /(?<=\d),(?=\d{3}(?!\d))/g;
/** Punctuation without meaning. Kept: ./:, between digits, a minus or point before a digit, % after one, and # & @. */
const IDLE_PUNCTUATION = /(?!(?<=\d)[./:,](?=\d)|(?<![\p{L}\d])[-.](?=\.?\d)|(?<=\d)%|[#&@])\p{P}/gu;
const ARTICLES = /(?<![\p{L}\d])(?:an?|the)(?![\p{L}\d])/gu;

/**
 * Right if the words are the same. Ignores case, articles, punctuation, white space and Unicode variants of a character. Keeps what changes
 * a number (the sign and point of -3.5, the stroke of 1/2, percent) or a name (# + & @).
 */
export function normalisedMatch(options: TextOptions = {}): Grader {
  return textGrader('normalisedMatch', options, {}, (said, input) => {
    const accepted = acceptedAnswers(input);
    if (said.length > MOST_CHARS || said.trim() === '') return false;
    const normal = normalised(said);
    return accepted.some((answer) => normalised(answer) === normal);
  });
}

/** Empty only for blank texts: a text of nothing but articles and punctuation keeps them. */
export function normalised(text: string): string {
  const plain = text.normalize('NFKC').replace(INVISIBLE, '').replace(DASHES, '-').toLowerCase();
  const words = spaced(plain.replace(THOUSANDS, '').replace(IDLE_PUNCTUATION, ' '));
  return spaced(words.replace(ARTICLES, ' ')) || words || spaced(plain);
}

const spaced = (text: string) => text.replace(/\s+/g, ' ').trim();

export interface RegexMatchOptions extends TextOptions {
  /** Absent: those of the expression; `u` if it is a string. */
  readonly flags?: string;
  /** Default 1000. */
  readonly timeoutMs?: number;
}

/** Right if the pattern, by default the task's answer, matches anywhere. Unscorable past the time limit. Throws GRADER_INVALID. */
export function regexMatch(pattern?: RegExp | string, options: RegexMatchOptions = {}): Grader {
  const fixed = pattern === undefined ? undefined : regexWithin(checked(pattern, options?.flags), options?.timeoutMs);
  return textGrader('regexMatch', options, { flags: 'any', timeoutMs: 'count' }, (said, input) => {
    const matches = fixed ?? regexWithin(fromAnswer(input, options.flags), options.timeoutMs);
    return matches(said);
  });
}

function checked(pattern: unknown, flags: string | undefined): RegExp {
  const invalid = (why: string) => new TrainyardError('GRADER_INVALID', `regexMatch: ${why}`);
  if (typeof pattern !== 'string' && !(pattern instanceof RegExp)) {
    throw invalid(`expected a regular expression, found ${typeof pattern}`);
  }
  try {
    return statelessRegex(pattern, flags);
  } catch (cause) {
    throw invalid(messageOf(cause));
  }
}

/** Omits V8's error message, which quotes the pattern: it is the answer, and messages are logged. */
function fromAnswer(input: GraderInput, flags: string | undefined): RegExp {
  const answer = answerOf(input);
  const whose = `the answer of task ${JSON.stringify(input.task.id)}`;
  if (typeof answer !== 'string') {
    const found = Array.isArray(answer) ? 'a list' : `of type ${typeof answer}`;
    return unscorable(`${whose} is ${found}, expected the text of a regular expression`);
  }
  try {
    return statelessRegex(answer, flags);
  } catch {
    return unscorable(`${whose} is no regular expression with the flags ${JSON.stringify(flags ?? 'u')}`);
  }
}

const REGEX_LIMIT_MS = 1_000;

const TRIED = new Script('pattern.test(text)');

/** One limit for all matches of a response, which may hold a thousand slow strings. Past it, throws GRADER_UNSCORABLE. */
export function regexesTogether(limitMs = REGEX_LIMIT_MS): (matches: ReturnType<typeof regexWithin>, text: string) => boolean {
  let spentMs = 0;
  return (matches, text) => {
    if (spentMs >= limitMs) return unscorable(`regular expressions took longer than ${limitMs} ms together`);
    const began = performance.now();
    try {
      return matches(text, Math.ceil(limitMs - spentMs));
    } finally {
      spentMs += performance.now() - began;
    }
  };
}

/** Removes the flags g and y, which make matching stateful. Throws SyntaxError for an invalid pattern. */
export function statelessRegex(pattern: RegExp | string, flags?: string): RegExp {
  const source = typeof pattern === 'string' ? pattern : pattern.source;
  const wanted = flags ?? (typeof pattern === 'string' ? 'u' : pattern.flags);
  // Validates the flags as given, before g and y are dropped: invalid ones, like gg, must throw.
  new RegExp(source, wanted);
  return new RegExp(source, wanted.replace(/[gy]/g, ''));
}

/**
 * Tests whether the expression matches anywhere in a text. Throws GRADER_UNSCORABLE past the limit or if V8 runs out of memory: that is the
 * expression's fault, not the policy's. The policy chooses the text, and backtracking on forty characters can outlast the universe. V8
 * checks for interrupts while it backtracks, and `node:vm` requests one; a few dozen microseconds per call. The thread blocks for at most
 * the limit.
 */
export function regexWithin(pattern: RegExp, limitMs = REGEX_LIMIT_MS): (text: string, leftMs?: number) => boolean {
  let context: { text: string } | undefined;
  return (text, leftMs = limitMs) => {
    // Created lazily: a context costs a millisecond, and processes that never grade import entries, too.
    context ??= createContext({ pattern, text }) as { text: string };
    context.text = text;
    try {
      return TRIED.runInContext(context, { timeout: leftMs }) === true;
    } catch (thrown) {
      // The error may belong to the other context, so `instanceof` does not work.
      const isLate = (thrown as { readonly code?: unknown }).code === 'ERR_SCRIPT_EXECUTION_TIMEOUT';
      const what = isLate ? `took longer than ${limitMs} ms` : `failed: ${messageOf(thrown)}`;
      return unscorable(`a regular expression ${what} on ${text.length} characters; write it without nested repetitions`);
    } finally {
      context.text = '';
    }
  };
}
