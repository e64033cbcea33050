/**
 * `multipleChoice`: right where exactly one choice is claimed, and it is the reference. Choices are the letters A to J, or their own texts
 * where those are known (`choices`, else `task.metadata.choices`).
 *
 * A claim is, in this order: what is in `\boxed{…}` or `<answer>` tags; "the answer is …", "option B is correct"; a first or last line that
 * is a label; a letter in brackets or bold in the last line. Two different letters claimed in the same way are no claim. The word "a" is
 * never the choice A: a bare letter has to end its clause.
 */
import type { Grader, GraderInput } from '../../core/contracts.ts';
import { defineGrader, unscorable } from '../../core/define-grader.ts';
import type { Json } from '../../core/types.ts';
import { allBoxed, spokenPart } from './final-answer.ts';
import { normalised } from './normalised-match.ts';
import { acceptedAnswers, answerOf, saidBy } from './said.ts';
import { checkOptions, type TextOptions, verdict } from './verdict.ts';

export interface MultipleChoiceOptions extends TextOptions {
  /** The texts of the choices, A first, where every task has the same; absent: `task.metadata.choices`, else letters only. */
  readonly choices?: readonly string[];
}

const LETTERS = 'ABCDEFGHIJ';
const OPEN = String.raw`[\s"'“‘*_($\[{]{0,6}(?:\\(?:text|textbf|mathrm|mathbf)\s?\{\s?)?[("'\[]{0,2}`;
/** Wrapped in something, or at the end of its clause: "B.", "(B) because", "B is …" but not "a triangle". */
const LETTER = String.raw`(?:[(\["'“*_{]{1,4}(?:option |choice )?([A-Ja-j])[)\]"'”*_}]{1,4}|([A-Ja-j])(?=\s*(?:$|[.,;:!?)\]}*"'$<\n])|\s+(?:because|since|as|due|given)\b)|([B-HJ])(?=\s))`;
const CLAIMS = [
  String.raw`\b(?:answer|choice|option)\b[*_]{0,2}(?:\s{0,3}(?:is|:|=|would be|must be|should be)[*_]{0,2}){1,2}\s{0,3}(?:the\s)?(?:option\s|choice\s|letter\s)?${OPEN}${LETTER}`,
  String.raw`\b(?:I|we)\s(?:choose|pick|select|go with|would choose)\s(?:option\s|choice\s|letter\s)?${OPEN}${LETTER}`,
  String.raw`\b(?:option|choice|answer)\s${OPEN}(?:([A-Ja-j]))(?![\p{L}\d])[^\n.]{0,3}\sis\s(?:the\s)?(?:correct|right)`,
].map((pattern) => new RegExp(pattern, 'giu'));
const MORE = /^[\s)*\].,"']{0,4}(?:or|and|\/|&)\s{0,2}[(*["']{0,3}([A-J])(?![\p{L}\d])/iu;
const LABEL = /^[\s"'*_>#$([]{0,6}([A-J])(?:[\s"'*_$]{0,3}[)\].:,]|["'*_$]{1,4}|\s*$)/i;
const WRAPPED = /\(([A-J])\)|\[([A-J])\]|\*\*\(?([A-J])[).:]?\*\*/g;

export function multipleChoice(options: MultipleChoiceOptions = {}): Grader {
  checkOptions('multipleChoice', options, { of: 'function', choices: 'texts' });
  return defineGrader({
    name: 'multipleChoice',
    grade: (input) => {
      const choices = options.choices ?? choicesOf(input);
      const right = rightLetters(input, choices);
      const claimed = claimedLetter(spokenPart(saidBy(input, options.of)), choices);
      return verdict(claimed !== undefined && right.includes(claimed));
    },
  });
}

function choicesOf({ task }: GraderInput): readonly string[] {
  const { metadata } = task;
  if (typeof metadata !== 'object' || metadata === null || Array.isArray(metadata) || !('choices' in metadata)) return [];
  const given: Json = (metadata as Readonly<Record<string, Json>>)['choices'] ?? [];
  const texts = Array.isArray(given)
    ? (given as readonly Json[]).map((choice) => (typeof choice === 'number' ? String(choice) : choice))
    : [];
  if (texts.length > 0 && texts.length <= LETTERS.length && texts.every((text) => typeof text === 'string')) return texts;
  return unscorable(`the choices of task ${JSON.stringify(task.id)} are not a list of 1 to ${LETTERS.length} texts`);
}

/** A number is the index of a choice from 0, as datasets have it. */
function rightLetters(input: GraderInput, choices: readonly string[]): readonly string[] {
  const answer = answerOf(input);
  if (typeof answer === 'number') {
    const letter = LETTERS[answer];
    if (letter !== undefined && isOffered(letter, choices)) return [letter];
    return unscorable(`the answer of task ${JSON.stringify(input.task.id)} is not the index of a choice, counted from 0`);
  }
  return acceptedAnswers(input).map((text) => {
    const letter = choiceWithText(text, choices) ?? /^[("'[\s]{0,2}([A-J])[)."'\]:\s]{0,2}$/i.exec(text)?.[1]?.toUpperCase();
    if (letter !== undefined && isOffered(letter, choices)) return letter;
    return unscorable(`the answer of task ${JSON.stringify(input.task.id)} is neither a letter nor the text of a choice`);
  });
}

const isOffered = (letter: string, choices: readonly string[]): boolean =>
  LETTERS.indexOf(letter) < (choices.length === 0 ? LETTERS.length : choices.length);

function claimedLetter(spoken: string, choices: readonly string[]): string | undefined {
  for (const claims of [marked(spoken, choices), said(spoken, choices), labelled(spoken, choices), wrapped(spoken, choices)]) {
    if (claims.length > 0) return new Set(claims).size === 1 ? claims[0] : undefined;
  }
  return undefined;
}

/** What is marked but names no choice is a claim too: of none. */
const NO_CHOICE = '';

function marked(spoken: string, choices: readonly string[]): readonly string[] {
  const boxed = allBoxed(spoken);
  const tagged =
    boxed.length > 0 ? boxed : [...spoken.matchAll(/<answer>([^<]{0,2000})<\/answer>/g)].map(([, text = '']) => text);
  return tagged.map((text) => labelIn(text, choices) ?? NO_CHOICE);
}

/** A text that is a label, with or without the choice's text behind it, or that text alone. */
function labelIn(text: string, choices: readonly string[]): string | undefined {
  const bare = text.replace(/\\(?:text|textbf|mathrm|mathbf)\s?\{|[{}$]|\\[()[\] ]/g, ' ').trim();
  const byText = choiceWithText(bare, choices);
  if (byText !== undefined) return byText;
  const label = LABEL.exec(bare);
  const letter = label?.[1]?.toUpperCase();
  if (letter === undefined || !isOffered(letter, choices)) return undefined;
  // A label and another choice's text, or a second label, claims two things.
  const rest = bare.slice(label![0].length);
  const other = choiceWithText(rest, choices) ?? (MORE.test(rest) || LABEL.test(rest) ? NO_CHOICE : letter);
  return other === letter ? letter : undefined;
}

function choiceWithText(text: string, choices: readonly string[]): string | undefined {
  if (text.length > 2_000 || text.trim() === '') return undefined;
  const wanted = normalised(text);
  const found = choices.flatMap((choice, index) => (normalised(choice) === wanted ? [LETTERS[index]!] : []));
  return found.length === 1 ? found[0] : undefined;
}

function said(spoken: string, choices: readonly string[]): readonly string[] {
  const letters = CLAIMS.flatMap((pattern) =>
    [...spoken.matchAll(pattern)].flatMap((match) => {
      const letter = match.slice(1).find((group) => group !== undefined);
      const more = MORE.exec(spoken.slice(match.index + match[0].length, match.index + match[0].length + 20))?.[1];
      return [letter, more].flatMap((one) => (one === undefined ? [] : [one.toUpperCase()]));
    }),
  ).filter((letter) => isOffered(letter, choices));
  return letters.length > 0 ? letters : saidTexts(spoken, choices);
}

/** "The answer is Paris." */
function saidTexts(spoken: string, choices: readonly string[]): readonly string[] {
  const claims = [...spoken.matchAll(/\banswer[*_]{0,2}(?:\s{0,3}(?:is|:)[*_]{0,2}){1,2}\s{0,3}([^\n]{1,300})/gi)];
  return claims.flatMap(([, rest = '']) => choiceWithText(rest, choices) ?? []);
}

function labelled(spoken: string, choices: readonly string[]): readonly string[] {
  const lines = spoken.trim().split('\n');
  return [lines[0] ?? '', lines.at(-1) ?? ''].flatMap((line) => labelIn(line, choices) ?? []);
}

function wrapped(spoken: string, choices: readonly string[]): readonly string[] {
  const line = spoken.trim().split('\n').at(-1) ?? '';
  return [...line.matchAll(WRAPPED)]
    .map((match) => match.slice(1).find((group) => group !== undefined)!)
    .filter((letter) => isOffered(letter, choices));
}
