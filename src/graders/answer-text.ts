/**
 * Shared by the built-in graders: option checks, the text to grade, the task's answer, and finding the final answer in a text.
 *
 * A misspelt option would silently change what is right, so all mistakes throw when the grader is defined. What is missing in the task is
 * unscorable, never 0: it is not the policy's fault. No message quotes an answer: messages are logged.
 */
import type { Grader, GraderInput, GraderTurn } from '../core/contracts.ts';
import { defineGrader, unscorable } from '../core/define.ts';
import { describeValue, unknownOptions } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { isObject } from '../core/json.ts';
import type { ByName, Json } from '../core/types.ts';

export type ReadSaid = (input: GraderInput) => string;

export interface TextOptions {
  /** Reads the text to grade. Absent: the workflow's output, else the last assistant message. */
  readonly of?: ReadSaid;
}

/** Yields every fault of an option's value; `undefined` means that it is missing. */
type OptionKind = (value: unknown, name: string) => Iterable<string>;

export const optionKind =
  (expected: string, fits: (value: unknown) => boolean): OptionKind =>
  (value, name) =>
    fits(value) ? [] : [`${name} is ${value === undefined ? 'missing' : describeValue(value)}, expected ${expected}`];

const isNumber = Number.isFinite as (value: unknown) => value is number;
const isWhole = Number.isSafeInteger as (value: unknown) => value is number;
const isText = (value: unknown) => typeof value === 'string';

const KINDS = {
  boolean: optionKind('true or false', (value) => typeof value === 'boolean'),
  function: optionKind('a function', (value) => typeof value === 'function'),
  text: optionKind('a text', (value) => typeof value === 'string' && value.trim() !== ''),
  texts: optionKind('a list of texts', (value) => Array.isArray(value) && value.length > 0 && value.every(isText)),
  number: optionKind('a finite number', isNumber),
  positive: optionKind('a number above 0', (value) => isNumber(value) && value > 0),
  amount: optionKind('a finite number from 0 up', (value) => isNumber(value) && value >= 0),
  count: optionKind('a whole number from 1 up', (value) => isWhole(value) && value >= 1),
  natural: optionKind('a whole number from 0 up', (value) => isWhole(value) && value >= 0),
  /** The grader checks it. */
  any: () => [],
} satisfies ByName<OptionKind>;

/** A list holds the allowed strings. */
export type OptionKinds = ByName<keyof typeof KINDS | OptionKind | readonly string[]>;

/** Throws GRADER_INVALID with all faults. Options that are not required may be absent. */
export function checkOptions(
  grader: string,
  given: unknown,
  kinds: OptionKinds,
  required: readonly string[] = [],
  hint?: string,
): void {
  const problems = [...optionFaults(given, kinds, required)];
  if (problems.length === 0) return;
  throw new TrainyardError('GRADER_INVALID', `${grader}: ${problems.join('; ')}`, hint);
}

/** `whose`: what messages call the object. */
export function* optionFaults(
  given: unknown,
  kinds: OptionKinds,
  required: readonly string[] = [],
  whose?: string,
): Generator<string> {
  const prefix = whose === undefined ? '' : `${whose}.`;
  if (!isObject(given)) {
    yield `${whose === undefined ? '' : `${whose}: `}expected an object of options, found ${describeValue(given)}`;
    return;
  }
  for (const name of new Set([...Object.keys(given), ...required])) {
    const value = given[name];
    if (!Object.hasOwn(kinds, name)) yield* unknownOptions({ [name]: value }, Object.keys(kinds), whose);
    else if (value !== undefined || required.includes(name)) yield* kindFrom(kinds[name]!)(value, `${prefix}${name}`);
  }
}

function kindFrom(given: OptionKinds[string]): OptionKind {
  if (typeof given === 'function') return given;
  if (typeof given === 'string') return KINDS[given];
  return optionKind(given.map((one) => `'${one}'`).join(' or '), (value) => given.includes(value as string));
}

/** A grader whose reward is 1 if the text is right, else 0. */
export function textGrader(
  name: string,
  options: TextOptions,
  kinds: OptionKinds,
  isRight: (said: string, input: GraderInput) => boolean,
): Grader {
  checkOptions(name, options, { of: 'function', ...kinds });
  return defineGrader({
    name,
    grade: (input) => {
      const success = isRight(saidBy(input, options.of), input);
      return { value: success ? 1 : 0, success };
    },
  });
}

/** The workflow's output if it is a string or number, else the last assistant message, or ''. Unscorable if `of` returns no string. */
export function saidBy(input: GraderInput, of?: ReadSaid): string {
  if (of !== undefined) {
    const read: unknown = of(input);
    if (typeof read === 'string') return read;
    return unscorable(`the grader's \`of\` returned ${describeValue(read)}, expected a text`);
  }
  const { output, messages } = input;
  if (typeof output === 'string') return output;
  if (typeof output === 'number') return String(output);
  return messages.findLast(({ role }) => role === 'assistant')?.content ?? '';
}

/** The policy's own turns whose responses were delivered. Excludes other models' turns. */
export function ownTurns({ turns }: GraderInput): readonly GraderTurn[] {
  return turns.filter(({ model, undelivered }) => model === undefined && !undelivered);
}

/** Throws GRADER_UNSCORABLE if the task has no answer or an empty one. */
export function answerOf({ task }: GraderInput): Exclude<Json, null> {
  const { answer } = task;
  const isEmpty = typeof answer === 'string' ? answer.trim() === '' : Array.isArray(answer) && answer.length === 0;
  if (answer === undefined || answer === null) return unscorable(`task ${JSON.stringify(task.id)} has no answer to compare with`);
  if (isEmpty) return unscorable(`the answer of task ${JSON.stringify(task.id)} is empty`);
  return answer;
}

/** Like `answerOf`, but allows an empty list. */
export const jsonAnswerOf = (input: GraderInput): Json =>
  Array.isArray(input.task.answer) ? input.task.answer : answerOf(input);

/** The task's answer, or each item of a list, as text. Throws GRADER_UNSCORABLE for anything but strings, numbers and booleans. */
export function acceptedAnswers(input: GraderInput): readonly string[] {
  const answer = answerOf(input);
  return (Array.isArray(answer) ? (answer as readonly Json[]) : [answer]).map((one) => {
    if (typeof one === 'string' && one.trim() !== '') return one;
    if (typeof one === 'number' || typeof one === 'boolean') return String(one);
    const found = one === null ? 'null' : typeof one === 'string' ? 'an empty text' : Array.isArray(one) ? 'a list' : 'an object';
    return unscorable(
      `the answer of task ${JSON.stringify(input.task.id)} is or holds ${found}, expected a text or number, or a list of them`,
    );
  });
}

/** Only the end of a text is read: the answer is there. */
const MOST_CHARS = 100_000;
/** Most answers side by side, and most characters between two of them. */
const MOST_BESIDE = 20;
const MOST_BETWEEN = 40;
const BOX = /\\(?:boxed|fbox)(?![A-Za-z])/g;
const BETWEEN = /^(?:[\s$,;.&/*]|\\[,;:! ()[\]]|\\q?quad(?![a-z])|\\text\s?\{\s*(?:or|and)\s*\}|\b(?:or|and)\b)*$/i;
const CLAIM = /\b(?:final[ \t]{1,3})?answers?[*_]{0,2}(?:[ \t]{0,3}(?:is|are|:|=)[*_]{0,2}){1,2}/gi;
const HASHES = /^[ \t]{0,8}#{4}(?!#)/gm;
const REASON = /[,;]?\s(?:because|since|as|due to|given|which|so|where)\s/;
/** After REASON these introduce a second answer, not a reason. */
const SECOND_ANSWER = /\b(?:as well as|or|also|could|might|maybe|perhaps|possibly|alternatively|so is)\b/i;
const BEHIND = /\.\s+(?=\p{Lu})|\.\s*$|\.?\s*\*\*/u;

/** The end of a text without the reasoning; '' if the reasoning never ends. */
export function spokenPart(text: string): string {
  const end = text.slice(-MOST_CHARS);
  const thought = end.lastIndexOf('</think>');
  if (thought !== -1) return end.slice(thought + '</think>'.length);
  return end.includes('<think>') ? '' : end;
}

/**
 * The marked answers: the last `\boxed{…}`, else the last `<answer>…</answer>`, else the later of the last `####` and "the answer is …".
 * An empty or unclosed mark is an empty answer; no earlier one replaces it. Undefined if nothing is marked. Marks with only "or", "and" or
 * punctuation between them are several answers: hedging is not answering, and a list may be marked item by item. Every scan is linear.
 */
export function markedAnswers(spoken: string): readonly string[] | undefined {
  const hashes = lastLineWithHashes(spoken);
  const claim = lastClaim(spoken);
  const claimed = hashes === undefined || (claim !== undefined && claim.at > hashes.at) ? claim : hashes;
  return lastBeside(spoken, boxesIn(spoken)) ?? lastBeside(spoken, tagsIn(spoken)) ?? (claimed && [claimed.text]);
}

/** Datasets give whole solutions as references, with the answer in `\boxed` or after `####`. */
export function referenceAnswer(answer: string): string {
  return (lastBeside(answer, boxesIn(answer))?.join(', ') ?? lastLineWithHashes(answer)?.text) || answer.trim();
}

interface Mark {
  readonly at: number;
  readonly text: string;
}

interface Enclosed extends Mark {
  readonly end: number;
}

/** The last mark and those directly before it. Skips marks that enclose a later one. */
function lastBeside(text: string, marks: readonly Enclosed[]): readonly string[] | undefined {
  let first = marks.at(-1);
  if (first === undefined) return undefined;
  const found = [first.text];
  for (const mark of marks.slice(0, -1).reverse()) {
    if (mark.end > first.at) continue;
    if (first.at - mark.end > MOST_BETWEEN || !BETWEEN.test(text.slice(mark.end, first.at))) break;
    found.unshift(mark.text);
    first = mark;
  }
  return found;
}

const boxesIn = (text: string) =>
  [...text.matchAll(BOX)].slice(-MOST_BESIDE).map(({ index, 0: command }) => braced(text, index, index + command.length));

/** Contents of all outermost boxes. */
export function allBoxed(text: string): readonly string[] {
  let end = 0;
  return [...text.matchAll(BOX)].flatMap(({ index, 0: command }) => {
    if (index < end) return [];
    const box = braced(text, index, index + command.length);
    end = box.end;
    return [box.text];
  });
}

/** Up to the matching brace; without a brace, the next word. */
function braced(text: string, at: number, from: number): Enclosed {
  const [ahead, word = ''] = /^\s{0,7}(\{|\\?[^\s{}$]{1,40})?/.exec(text.slice(from, from + 60))!;
  if (word !== '{') return { at, end: from + (word === '' ? 0 : ahead.length), text: word };
  const start = from + ahead.length;
  let depth = 1;
  for (let here = start; here < text.length; here++) {
    const char = text[here];
    if (char === '\\') here++;
    else if (char === '{') depth++;
    else if (char === '}' && --depth === 0) return { at, end: here + 1, text: text.slice(start, here).trim() };
  }
  return { at, end: text.length, text: '' };
}

function tagsIn(text: string): readonly Enclosed[] {
  return [...text.matchAll(/<answer>/gi)].slice(-MOST_BESIDE).map(({ index, 0: tag }) => {
    const from = index + tag.length;
    const close = /<\/answer>/i.exec(text.slice(from));
    if (close === null) return { at: index, end: text.length, text: '' };
    return { at: index, end: from + close.index + close[0].length, text: text.slice(from, from + close.index).trim() };
  });
}

export const allTagged = (text: string): readonly string[] => tagsIn(text).map((tag) => tag.text);

export function lastLineWithHashes(text: string): Mark | undefined {
  const found = [...text.matchAll(HASHES)].at(-1);
  return found && { at: found.index, text: bare(lineFrom(text, found.index + found[0].length)) };
}

/** "The answer is …" up to a reason or the next sentence. */
function lastClaim(text: string): Mark | undefined {
  const found = [...text.matchAll(CLAIM)].at(-1);
  if (found === undefined) return undefined;
  const line = withoutReason(lineFrom(text, found.index + found[0].length).replace(/^\*\*/, ''));
  const behind = BEHIND.exec(`${line} `);
  return { at: found.index, text: bare(behind === null ? line : line.slice(0, behind.index)) };
}

/** Cuts a trailing reason, unless it introduces a second answer. */
export function withoutReason(line: string): string {
  const reason = REASON.exec(line);
  return reason === null || SECOND_ANSWER.test(line.slice(reason.index)) ? line : line.slice(0, reason.index);
}

/** The rest of the line, or the next line that is not empty. */
function lineFrom(text: string, from: number): string {
  return /\S.*/.exec(text.slice(from, from + 2_000))?.[0].trim() ?? '';
}

/** Removes the full stop, and emphasis or quotes around the whole line. */
function bare(line: string): string {
  const text = line.replace(/[.\s]{1,20}$/, '').trim();
  const inside = /^(\*\*|`|"|“)(.*?)(\*\*|`|"|”)$/.exec(text)?.[2];
  return inside === undefined ? text : inside.replace(/[.\s]{1,20}$/, '').trim();
}

/** The last line that is not empty; if that only closes a displayed formula, the formula. */
export function lastLine(spoken: string): string {
  const trimmed = spoken.trimEnd();
  const line = trimmed.slice(trimmed.lastIndexOf('\n') + 1).trim();
  const opens = { '\\]': '\\[', $$: '$$' }[line];
  const before = trimmed.slice(0, -line.length);
  const from = opens === undefined ? -1 : before.lastIndexOf(opens);
  return bare(from === -1 ? line : before.slice(from + 2).trim());
}

const DENIES = /\b(?:not|never|wrong|incorrect|false)\b|n't\b/i;
const FORMULA = /\$\$?([^$]{1,1000})\$\$?|\\\(([^$]{1,1000}?)\\\)|\\\[([^$]{1,1000}?)\\\]/g;

/** The only formula in a line of prose; undefined if there are several or the prose denies it. */
export function onlyFormula(line: string): string | undefined {
  if (line.length > 4_000) return undefined;
  const found = [...line.matchAll(FORMULA)];
  if (found.length !== 1 || DENIES.test(line)) return undefined;
  return (found[0]![1] ?? found[0]![2] ?? found[0]![3])!.trim();
}
