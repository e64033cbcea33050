/**
 * `multipleChoice`: right if the response claims exactly one choice and it is the reference. Choices are the letters A to J, or their texts
 * if known (`choices`, else `task.metadata.choices`). Claims, in order of precedence: `\boxed{…}`, `<answer>` tags or `####`; "the answer
 * is …", "option B is correct"; a first or last line that is a label; a letter in brackets or bold in the last line. Two different letters
 * claimed in the same way are no claim, nor is "A or B". The word "a" is never choice A: a bare letter must end its clause.
 */
import type { Grader, GraderInput } from '../core/contracts.ts';
import { unscorable } from '../core/define.ts';
import { isObject } from '../core/json.ts';
import {
  acceptedAnswers,
  allBoxed,
  allTagged,
  answerOf,
  lastLine,
  lastLineWithHashes,
  spokenPart,
  type TextOptions,
  textGrader,
  withoutReason,
} from './answer-text.ts';
import { plainCharacters } from './math/tokens.ts';
import { normalised } from './text-match.ts';

export interface MultipleChoiceOptions extends TextOptions {
  /** Texts of the choices, A first, if all tasks share them. Absent: `task.metadata.choices`, else letters only. */
  readonly choices?: readonly string[];
}

const LETTERS = 'ABCDEFGHIJ';
const MOST_CLAIMS = 100;
const WRAPPING = String.raw`[\s"'“”‘’*_($\[{>#]{0,8}`;
/** A letter that is wrapped or ends its clause: "B.", "(B) because", "B is correct", but not "a triangle". */
const LABEL = new RegExp(
  String.raw`^${WRAPPING}(?:(?:option|choice|letter|answer)[\s:]{1,3})?${WRAPPING}([A-J])(?:[\s"'”’*_$]{0,3}[)\].:,;!?}/&+|]|["'”’*_$]{1,4}|\s*$|(?=\s+(?:because|since|as|due|given|or|and|not|is\s(?:the\s)?(?:correct|right|best|answer))\b))`,
  'i',
);
/** After "the answer is", any capital letter but A and I is a label: no other is a word. */
const CLAIMED_LABEL = new RegExp(String.raw`^${WRAPPING}(?:option\s|choice\s|letter\s)?${WRAPPING}([B-HJ])(?=\s)`);
const CLAIM =
  /\b(?:answer|choice|option)\b[*_]{0,2}(?:\s{0,3}(?:is|:|=|would be|must be|should be)[*_]{0,2}){1,2}\s{0,3}(?:the\s)?(?=([^\n]{1,300}))|\bI(?:'d|’d|\swill|\swould)?\s(?:choose|pick|select|go with)\s(?=([^\n]{1,300}))/gi;
const CALLED_RIGHT =
  /\b(?:option|choice|answer)\s[("'*[]{0,4}([A-J])(?![\p{L}\d])[^\n.]{0,3}\sis\s(?:the\s)?(?:correct|right)/giu;
const WRAPPED = /\(([A-J])\)|\[([A-J])\]|\*\*\(?([A-J])[).:]?\*\*/g;
/** A second label: in a list, after "or", or wrapped. The words A and I do not count. */
const FURTHER =
  /(?:^[\s)\]*.,:;"'_}]{0,6}|\b(?:[Oo]r|[Aa]nd|nor|also|possibly|maybe|perhaps|likely|be|alternatively|well as)\b[\s,:]{0,3}(?:option\s|choice\s|possibly\s|maybe\s|perhaps\s|alternatively\s|even\s)?|[/&,;+|]\s{0,3})[(["'*_]{0,4}([A-J])(?![\p{L}\d'’]|\s+\p{Ll})|[([*]([A-J])[)\]*]|(?<![\p{L}\d])([A-J])\)/gu;
const NEXT_SENTENCE = /[.!?]\s+(?!or\b)(?=\p{L}{2})/iu;
const DENIED = /\b(?:not|never|neither|wrong|incorrect|false)\b|n['’]t\b/i;

export function multipleChoice(options: MultipleChoiceOptions = {}): Grader {
  return textGrader('multipleChoice', options, { choices: 'texts' }, (said, input) => {
    const choices = options.choices ?? choicesOf(input);
    const right = rightLetters(input, choices);
    const claimed = claimedLetter(plainCharacters(spokenPart(said)), choices);
    return claimed !== undefined && right.includes(claimed);
  });
}

function choicesOf({ task: { id, metadata } }: GraderInput): readonly string[] {
  const given = isObject(metadata) ? metadata['choices'] : undefined;
  if (given === undefined) return [];
  const texts = Array.isArray(given) ? given.map((choice) => (typeof choice === 'number' ? String(choice) : choice)) : [];
  if (texts.length > 0 && texts.length <= LETTERS.length && texts.every((text) => typeof text === 'string')) return texts;
  return unscorable(`the choices of task ${JSON.stringify(id)} are not a list of 1 to ${LETTERS.length} texts`);
}

/** A numeric answer is the index of a choice from 0, as in datasets. */
function rightLetters(input: GraderInput, choices: readonly string[]): readonly string[] {
  const answer = answerOf(input);
  if (typeof answer === 'number') {
    const letter = LETTERS[answer];
    if (letter !== undefined && isOffered(letter, choices)) return [letter];
    return unscorable(`the answer of task ${JSON.stringify(input.task.id)} is not the index of a choice, counted from 0`);
  }
  return acceptedAnswers(input).map((text) => {
    const letter = choiceWithText(text, choices) ?? labelIn(text, choices);
    if (letter !== undefined && letter !== NO_CHOICE) return letter;
    return unscorable(`the answer of task ${JSON.stringify(input.task.id)} is neither a letter nor the text of a choice`);
  });
}

const isOffered = (letter: string, choices: readonly string[]) =>
  LETTERS.indexOf(letter) < (choices.length === 0 ? LETTERS.length : choices.length);

function claimedLetter(spoken: string, choices: readonly string[]): string | undefined {
  const claims = [marked, said, labelled, wrapped].map((read) => read(spoken, choices)).find((found) => found.length > 0) ?? [];
  return new Set(claims).size === 1 ? claims[0] : undefined;
}

/** Marked text that names no choice is still a claim, so later forms do not count. */
const NO_CHOICE = '';

function marked(spoken: string, choices: readonly string[]): readonly string[] {
  const boxed = allBoxed(spoken);
  const found = boxed.length > 0 ? boxed : allTagged(spoken);
  if (found.length > 0) return found.map((text) => labelIn(text, choices) ?? NO_CHOICE);
  const label = labelIn(lastLineWithHashes(spoken)?.text ?? '', choices);
  return label === undefined ? [] : [label];
}

/** The choice that a text names by its label, with or without its text or a reason, or by its text alone. */
function labelIn(text: string, choices: readonly string[], label = LABEL): string | undefined {
  const bare = text.replace(/\\(?:text|textbf|mathrm|mathbf)\s?\{|[{}$]|\\[()[\] ]/g, ' ').trim();
  const byText = choiceWithText(withoutReason(bare), choices);
  if (byText !== undefined) return byText;
  const found = label.exec(bare);
  const letter = found?.[1]?.toUpperCase();
  if (found === null || letter === undefined || !isOffered(letter, choices)) return undefined;
  const tail = bare.slice(found[0].length - (/[/&+|,;]$/.test(found[0]) ? 1 : 0));
  return claimsOneThing(letter, tail, choices) ? letter : NO_CHOICE;
}

/** False if another choice's text or a second label follows, or if the label is called wrong. */
function claimsOneThing(letter: string, tail: string, choices: readonly string[]): boolean {
  const named = choiceWithText(withoutReason(tail), choices);
  if (named !== undefined) return named === letter;
  const [clause = ''] = withoutReason(tail).split(NEXT_SENTENCE);
  const [own = ''] = clause.split(/,?\s(?:not|rather than|instead of)\s/i);
  if (/^\W{0,4}is\b/.test(own + tail) && DENIED.test(clause)) return false;
  return lettersOf(own, FURTHER, choices).every((other) => other === letter);
}

const lettersOf = (text: string, pattern: RegExp, choices: readonly string[]) =>
  [...text.matchAll(pattern)]
    .map((match) => match.slice(1).join('').toUpperCase())
    .filter((letter) => isOffered(letter, choices));

function choiceWithText(text: string, choices: readonly string[]): string | undefined {
  if (choices.length === 0 || text.length > 2_000 || text.trim() === '') return undefined;
  const wanted = normalised(text);
  const found = choices.flatMap((choice, index) => (normalised(choice) === wanted ? [LETTERS[index]!] : []));
  return found.length === 1 ? found[0] : undefined;
}

/** A last line that is only a letter counts as a claim in words. */
function said(spoken: string, choices: readonly string[]): readonly string[] {
  const claims = [...spoken.matchAll(CLAIM)].slice(-MOST_CLAIMS).flatMap(([, answer, chosen]) => {
    const rest = answer ?? chosen ?? '';
    return labelIn(rest, choices) ?? labelIn(rest, choices, CLAIMED_LABEL) ?? [];
  });
  const letters = [...claims, ...lettersOf(spoken, CALLED_RIGHT, choices)];
  const last = lastLine(spoken);
  return letters.length > 0 && last.length === 1 ? [...letters, ...(labelIn(last, choices) ?? [])] : letters;
}

function labelled(spoken: string, choices: readonly string[]): readonly string[] {
  const lines = spoken.trim().split('\n');
  return [lines[0] ?? '', lines.at(-1) ?? ''].flatMap((line) => labelIn(line, choices) ?? []);
}

function wrapped(spoken: string, choices: readonly string[]): readonly string[] {
  const line = spoken.trim().split('\n').at(-1) ?? '';
  if (DENIED.test(line)) return [];
  const named = choiceWithText(line.replace(WRAPPED, ' '), choices);
  return [...lettersOf(line, WRAPPED, choices), ...(named ?? [])];
}
