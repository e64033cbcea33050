/**
 * A regular expression that cannot hang: it is given up after a time limit.
 *
 * An expression can take longer than the universe on forty characters, and the text it is tried on is what a policy made up. V8 looks for
 * a request to stop while it backtracks, and `node:vm` is what makes that request; a few dozen microseconds per call. The thread is held
 * up meanwhile, for at most the limit.
 */
import { createContext, Script } from 'node:vm';
import { unscorable } from '../../core/define-grader.ts';
import { messageOf } from '../../core/errors.ts';

const REGEX_LIMIT_MS = 1_000;

const TRIED = new Script('pattern.test(text)');

/**
 * Expressions under one limit together: a text may give the same slow one a thousand strings to look at, each within the limit. Past it
 * throws GRADER_UNSCORABLE.
 */
export function regexesTogether(limitMs = REGEX_LIMIT_MS): (matches: ReturnType<typeof regexWithin>, text: string) => boolean {
  let leftMs = limitMs;
  return (matches, text) => {
    if (leftMs <= 0) return unscorable(`regular expressions took longer than ${limitMs} ms together`);
    const began = performance.now();
    try {
      return matches(text, Math.ceil(leftMs));
    } finally {
      leftMs -= performance.now() - began;
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
