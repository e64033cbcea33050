/**
 * What the built-in graders share: the check of their options, the text they look at, the answer they compare it with, and where in a text the
 * final answer is.
 *
 * A misspelt option would silently change what is right, so everything wrong is said at once when the grader is defined. Something missing in
 * the task is unscorable, never 0: it is not the policy's fault. No message quotes an answer: messages are logged.
 */
import type { Grader, GraderInput, GraderTurn } from '../core/contracts.ts';
import { defineGrader, unscorable } from '../core/define.ts';
import { describeValue, unknownOptions } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { isObject } from '../core/json.ts';
import type { Json } from '../core/types.ts';

/** Reads what is to be graded; for graders that should look at something else than the final answer. */
export type ReadSaid = (input: GraderInput) => string;

/** Every grader of texts may be told to read something else than the final answer. */
export interface TextOptions {
  /** Reads the text to grade; absent: the workflow's output, else the last message of the assistant. */
  readonly of?: ReadSaid;
}

/** Everything that is wrong with the value of an option. `undefined`: it is missing. */
type OptionKind = (value: unknown, name: string) => Iterable<string>;

/** `expected`: what a value must be, in words. */
export const optionKind =
  (expected: string, fits: (value: unknown) => boolean): OptionKind =>
  (value, name) =>
    fits(value) ? [] : [`${name} is ${value === undefined ? 'missing' : describeValue(value)}, expected ${expected}`];

const isNumber = Number.isFinite as (value: unknown) => value is number;
const isWhole = Number.isSafeInteger as (value: unknown) => value is number;
const isText = (value: unknown): boolean => typeof value === 'string';

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
  /** Whoever is given it looks at it. */
  any: () => [],
} satisfies Readonly<Record<string, OptionKind>>;

/** By name; a list holds the texts that an option may be. */
export type OptionKinds = Readonly<Record<string, keyof typeof KINDS | OptionKind | readonly string[]>>;

/** Throws GRADER_INVALID. What is not required may be absent. */
export function checkOptions(
  grader: string,
  given: unknown,
  kinds: OptionKinds,
  required: readonly string[] = [],
  hint?: string,
): void {
  const problems = [...optionFaults(given, kinds, required)];
  if (problems.length === 0) return;
  throw new TrainyardError('GRADER_INVALID', `${grader}: ${problems.join('; ')}`, hint === undefined ? {} : { hint });
}

/** Everything wrong with an object of options, in words. `whose` is what the object is called. */
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

/** A grader that reads one text and finds it right or wrong: 1 or 0. `options` may say what else to read, in `of`. */
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

// ── what was said, and the task's answer ─────────────────────────────────────────────────────────────────────────────

/** The workflow's output where it is a text or a number, else the last message of the assistant; '' where there is none. */
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

/** What the policy itself said and somebody got: not other models, and not answers that nobody got. */
export function ownTurns({ turns }: GraderInput): readonly GraderTurn[] {
  return turns.filter(({ model, undelivered }) => model === undefined && !undelivered);
}

/** The task's answer. Throws GRADER_UNSCORABLE where there is none, or an empty one. */
export function answerOf({ task }: GraderInput): Exclude<Json, null> {
  const { answer } = task;
  const isEmpty = typeof answer === 'string' ? answer.trim() === '' : Array.isArray(answer) && answer.length === 0;
  if (answer === undefined || answer === null) return unscorable(`task ${JSON.stringify(task.id)} has no answer to compare with`);
  if (isEmpty) return unscorable(`the answer of task ${JSON.stringify(task.id)} is empty`);
  return answer;
}

/** The texts that count as right: the task's answer, or each of them where it is a list. Throws GRADER_UNSCORABLE for anything else. */
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

// ── where in a text the final answer is ──────────────────────────────────────────────────────────────────────────────

/** Only the end of a text is read: an answer stands there. */
const MOST_CHARS = 100_000;
/** Answers side by side; and characters between two of them. */
const MOST_BESIDE = 20;
const MOST_BETWEEN = 40;
const BOX = /\\(?:boxed|fbox)(?![A-Za-z])/g;
const BETWEEN = /^(?:[\s$,;.&/*]|\\[,;:! ()[\]]|\\q?quad(?![a-z])|\\text\s?\{\s*(?:or|and)\s*\}|\b(?:or|and)\b)*$/i;
const CLAIM = /\b(?:final[ \t]{1,3})?answers?[*_]{0,2}(?:[ \t]{0,3}(?:is|are|:|=)[*_]{0,2}){1,2}/gi;
const HASHES = /^[ \t]{0,8}#{4}(?!#)/gm;
const REASON = /[,;]?\s(?:because|since|as|due to|given|which|so|where)\s/;
/** Behind "as" or "which" these bring no reason, but a second answer. */
const SECOND_ANSWER = /\b(?:as well as|or|also|could|might|maybe|perhaps|possibly|alternatively|so is)\b/i;
/** What ends the answer in its line. */
const BEHIND = /\.\s+(?=\p{Lu})|\.\s*$|\.?\s*\*\*/u;

/** The end of a text, without what was only thought. A thought that never ends leaves nothing. */
export function spokenPart(text: string): string {
  const end = text.slice(-MOST_CHARS);
  const thought = end.lastIndexOf('</think>');
  if (thought !== -1) return end.slice(thought + '</think>'.length);
  return end.includes('<think>') ? '' : end;
}

/**
 * The texts that are marked as the answer, in this order: the last `\boxed{…}`; the last `<answer>…</answer>`; whichever comes last of a `####`
 * line and "the answer is …". What is marked but empty, or never closed, is an empty answer: an earlier one does not count in its place.
 * Undefined where nothing is marked.
 *
 * Boxes side by side, with nothing but "or", "and" and commas in between, are several answers, not the last of them: who hedges has not
 * answered, and a list may be marked item by item. Every scan is linear in the text, and only its end is read.
 */
export function markedAnswers(spoken: string): readonly string[] | undefined {
  const [hashes, claim] = [lastLineWithHashes(spoken), lastClaim(spoken)];
  const claimed = hashes === undefined || (claim !== undefined && claim.at > hashes.at) ? claim : hashes;
  return lastBeside(spoken, boxesIn(spoken)) ?? lastBeside(spoken, tagsIn(spoken)) ?? (claimed && [claimed.text]);
}

/** The answer in a reference: datasets write whole solutions, in which `\boxed` or `####` marks the answer. */
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

/** The last mark, and those before it with nothing in between. A mark around a later one is left out. */
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

/** The last boxes, in order. */
const boxesIn = (text: string): readonly Enclosed[] =>
  [...text.matchAll(BOX)].slice(-MOST_BESIDE).map(({ index, 0: command }) => braced(text, index, index + command.length));

/** Everything that is in a box, outermost boxes only. */
export function allBoxed(text: string): readonly string[] {
  let end = 0;
  return [...text.matchAll(BOX)].flatMap(({ index, 0: command }) => {
    if (index < end) return [];
    const box = braced(text, index, index + command.length);
    end = box.end;
    return [box.text];
  });
}

/** From the brace on to the one that closes it; without a brace the one word that is there. */
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

/** The last tags, in order. */
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

/** "The answer is …", up to what is said of it: "because …", the next sentence. */
function lastClaim(text: string): Mark | undefined {
  const found = [...text.matchAll(CLAIM)].at(-1);
  if (found === undefined) return undefined;
  const line = withoutReason(lineFrom(text, found.index + found[0].length).replace(/^\*\*/, ''));
  const behind = BEHIND.exec(`${line} `);
  return { at: found.index, text: bare(behind === null ? line : line.slice(0, behind.index)) };
}

/** A line without the reason that it ends with; all of it where that is no reason but a second answer. */
export function withoutReason(line: string): string {
  const reason = REASON.exec(line);
  return reason === null || SECOND_ANSWER.test(line.slice(reason.index)) ? line : line.slice(0, reason.index);
}

/** The rest of a line; where that is empty, the next line that is not. */
function lineFrom(text: string, from: number): string {
  return /\S.*/.exec(text.slice(from, from + 2_000))?.[0].trim() ?? '';
}

/** Without the full stop, and without what emphasises or quotes all of it. */
function bare(line: string): string {
  const text = line.replace(/[.\s]{1,20}$/, '').trim();
  const inside = /^(\*\*|`|"|“)(.*?)(\*\*|`|"|”)$/.exec(text)?.[2];
  return inside === undefined ? text : inside.replace(/[.\s]{1,20}$/, '').trim();
}

/** The last line that is not empty; where that only closes a displayed formula, the formula. */
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

/** The one formula of a line of prose; undefined where there are several, or where the prose denies it. */
export function onlyFormula(line: string): string | undefined {
  if (line.length > 4_000) return undefined;
  const found = [...line.matchAll(FORMULA)];
  if (found.length !== 1 || DENIES.test(line)) return undefined;
  return (found[0]![1] ?? found[0]![2] ?? found[0]![3])!.trim();
}
