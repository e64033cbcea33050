/** `regexMatch`: whether what was said has a regular expression in it. It is tried under a time limit; past it the rollout is unscorable. */
import type { Grader, GraderInput } from '../../core/contracts.ts';
import { defineGrader, unscorable } from '../../core/define-grader.ts';
import { messageOf, TrainyardError } from '../../core/errors.ts';
import { checkOptionNames } from '../option-names.ts';
import { REGEX_LIMIT_MS, regexWithin, statelessRegex } from './regex-within.ts';
import { answerOf, type ReadSaid, saidBy } from './said.ts';

export interface RegexMatchOptions {
  /** Absent: those of the expression; `u` for one that is a text. */
  readonly flags?: string;
  /** Default 1 s. */
  readonly limitMs?: number;
  readonly of?: ReadSaid;
}

/** Without a pattern, the task's answer is one: a text. Throws GRADER_INVALID for a pattern that is none. */
export function regexMatch(pattern?: RegExp | string, options: RegexMatchOptions = {}): Grader {
  checkOptionNames('regexMatch', options, ['flags', 'limitMs', 'of']);
  const { flags, limitMs = REGEX_LIMIT_MS, of } = options;
  if (!(Number.isSafeInteger(limitMs) && limitMs >= 1)) {
    throw new TrainyardError('GRADER_INVALID', `regexMatch: limitMs is ${limitMs}, expected a whole number from 1 up`);
  }
  const fixed = pattern === undefined ? undefined : regexWithin(checked(pattern, flags), limitMs);
  return defineGrader({
    name: 'regexMatch',
    grade(input) {
      const matches = fixed ?? regexWithin(fromAnswer(input, flags), limitMs);
      const success = matches(saidBy(input, of));
      return { value: success ? 1 : 0, success };
    },
  });
}

function checked(pattern: unknown, flags: string | undefined): RegExp {
  if (typeof pattern !== 'string' && !(pattern instanceof RegExp)) {
    throw new TrainyardError('GRADER_INVALID', `regexMatch: expected a regular expression, found ${typeof pattern}`);
  }
  try {
    return statelessRegex(pattern, flags);
  } catch (cause) {
    throw new TrainyardError('GRADER_INVALID', `regexMatch: ${messageOf(cause)}`, { cause });
  }
}

/** Without the engine's own words, which quote the expression: it is the answer, and messages are logged. */
function fromAnswer(input: GraderInput, flags: string | undefined): RegExp {
  const answer = answerOf(input);
  const id = JSON.stringify(input.task.id);
  if (typeof answer !== 'string') {
    return unscorable(
      `the answer of task ${id} is ${Array.isArray(answer) ? 'a list' : `of type ${typeof answer}`}, expected the text of a regular expression`,
    );
  }
  try {
    return statelessRegex(answer, flags);
  } catch {
    return unscorable(`the answer of task ${id} is no regular expression with the flags ${JSON.stringify(flags ?? 'u')}`);
  }
}
