/**
 * Graders that compare texts: to the letter, by their words, by a regular expression. A list of answers accepts each of them. And regular
 * expressions that cannot hang, for all graders.
 */
import { createContext, Script } from 'node:vm';
import type { Grader, GraderInput } from '../core/contracts.ts';
import { unscorable } from '../core/define.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { acceptedAnswers, answerOf, type TextOptions, textGrader } from './answer-text.ts';

export interface ExactMatchOptions extends TextOptions {
  /** Default true. */
  readonly caseSensitive?: boolean;
  /** Whether white space around either text is left out; default true. */
  readonly trim?: boolean;
}

/** Right where the answer was given to the letter. Does not look inside a text. */
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

/** A text that is longer than this is no short answer; what is read of it bounds the time. */
const MOST_CHARS = 20_000;
const INVISIBLE = /[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]/g;
const DASHES = /[\u2010-\u2015\u2212]/g;
const THOUSANDS = /(?<=\d),(?=\d{3}(?!\d))/g;
/** Points and strokes between digits, signs and points before one, and percent signs stay. */
const IDLE_PUNCTUATION = /(?!(?<=\d)[./:,](?=\d)|(?<![\p{L}\d])[-.](?=\.?\d)|(?<=\d)%|[#&@])\p{P}/gu;
const ARTICLES = /(?<![\p{L}\d])(?:an?|the)(?![\p{L}\d])/gu;

/**
 * Right where the same words were said: case, articles, punctuation, white space and the many ways to write one character in Unicode do not
 * matter. What makes another number is kept: the sign and the point of -3.5, the stroke of 1/2, a percent sign. So are # + & @, which make
 * other names.
 */
export function normalisedMatch(options: TextOptions = {}): Grader {
  return textGrader('normalisedMatch', options, {}, (said, input) => {
    const accepted = acceptedAnswers(input);
    if (said.length > MOST_CHARS || said.trim() === '') return false;
    const normal = normalised(said);
    return accepted.some((answer) => normalised(answer) === normal);
  });
}

/** Never empty for a text that is not: where articles and punctuation are all there is, they are the text. */
export function normalised(text: string): string {
  const plain = text.normalize('NFKC').replace(INVISIBLE, '').replace(DASHES, '-').toLowerCase();
  const words = spaced(plain.replace(THOUSANDS, '').replace(IDLE_PUNCTUATION, ' '));
  return spaced(words.replace(ARTICLES, ' ')) || words || spaced(plain);
}

const spaced = (text: string): string => text.replace(/\s+/g, ' ').trim();

export interface RegexMatchOptions extends TextOptions {
  /** Absent: those of the expression; `u` for one that is a text. */
  readonly flags?: string;
  /** Default 1 s. */
  readonly timeoutMs?: number;
}

/**
 * Right where what was said has the expression in it. Without a pattern, the task's answer is one: a text. It is tried under a time limit;
 * past it the rollout is unscorable. Throws GRADER_INVALID for a pattern that is none.
 */
export function regexMatch(pattern?: RegExp | string, options: RegexMatchOptions = {}): Grader {
  const fixed = pattern === undefined ? undefined : regexWithin(checked(pattern, options?.flags), options?.timeoutMs);
  return textGrader('regexMatch', options, { flags: 'any', timeoutMs: 'count' }, (said, input) => {
    const matches = fixed ?? regexWithin(fromAnswer(input, options.flags), options.timeoutMs);
    return matches(said);
  });
}

function checked(pattern: unknown, flags: string | undefined): RegExp {
  const invalid = (why: string): TrainyardError => new TrainyardError('GRADER_INVALID', `regexMatch: ${why}`);
  if (typeof pattern !== 'string' && !(pattern instanceof RegExp)) {
    throw invalid(`expected a regular expression, found ${typeof pattern}`);
  }
  try {
    return statelessRegex(pattern, flags);
  } catch (cause) {
    throw invalid(messageOf(cause));
  }
}

/** Without the engine's own words, which quote the expression: it is the answer, and messages are logged. */
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

// ── regular expressions that are given up after a time limit ────────────────────────────────────────────────────────────

const REGEX_LIMIT_MS = 1_000;

const TRIED = new Script('pattern.test(text)');

/**
 * Expressions under one limit together: a text may give the same slow one a thousand strings to look at, each within the limit. Past it
 * throws GRADER_UNSCORABLE.
 */
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

/** The expression without the flags that remember where the last match was. Throws SyntaxError for one that is none. */
export function statelessRegex(pattern: RegExp | string, flags?: string): RegExp {
  const source = typeof pattern === 'string' ? pattern : pattern.source;
  const wanted = flags ?? (typeof pattern === 'string' ? 'u' : pattern.flags);
  // Checked as given, so that a flag which is none is not dropped with the others.
  new RegExp(source, wanted);
  return new RegExp(source, wanted.replace(/[gy]/g, ''));
}

/**
 * Whether the expression is somewhere in a text. Throws GRADER_UNSCORABLE past the limit: that is the expression's fault, not the
 * policy's. What V8 gives up for want of memory counts the same.
 *
 * An expression can take longer than the universe on forty characters, and the text it is tried on is what a policy made up. V8 looks for
 * a request to stop while it backtracks, and `node:vm` is what makes that request; a few dozen microseconds per call. The thread is held
 * up meanwhile, for at most the limit.
 */
export function regexWithin(pattern: RegExp, limitMs = REGEX_LIMIT_MS): (text: string, leftMs?: number) => boolean {
  let context: { text: string } | undefined;
  return (text, leftMs = limitMs) => {
    // Made when it is first needed: a context costs a millisecond, and entries are imported by processes that never grade.
    context ??= createContext({ pattern, text }) as { text: string };
    context.text = text;
    try {
      return TRIED.runInContext(context, { timeout: leftMs }) === true;
    } catch (thrown) {
      // An Error of the context's own, so not an instance of ours.
      const isLate = (thrown as { readonly code?: unknown }).code === 'ERR_SCRIPT_EXECUTION_TIMEOUT';
      const what = isLate ? `took longer than ${limitMs} ms` : `failed: ${messageOf(thrown)}`;
      return unscorable(`a regular expression ${what} on ${text.length} characters; write it without nested repetitions`);
    } finally {
      context.text = '';
    }
  };
}
