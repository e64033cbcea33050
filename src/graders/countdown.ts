/**
 * `countdown`: reach a target from given numbers. Scores 1 if the expression uses each number exactly once and reaches the target, 0.1 if
 * it is at least an expression of whole numbers with + - * / and brackets, else 0. A parser computes exact fractions. The task has
 * `numbers` (or `nums`) and `target` in its answer or metadata. The expression is the marked answer, else the last line; a trailing "= 24"
 * must be true.
 */
import type { Grader, GraderInput } from '../core/contracts.ts';
import { defineGrader, unscorable } from '../core/define.ts';
import { isObject } from '../core/json.ts';
import type { Json } from '../core/types.ts';
import { checkOptions, lastLine, markedAnswers, saidBy, spokenPart, type TextOptions } from './answer-text.ts';
import { exactly } from './math/evaluation.ts';
import { parseMath } from './math/parse.ts';
import { fromNumber, readable, same, Unreadable, withinBudget } from './math/rational.ts';
import { plainCharacters } from './math/tokens.ts';

const FOR_FORMAT = 0.1;
const MOST_CHARS = 1_000;

export function countdown(options: TextOptions = {}): Grader {
  checkOptions('countdown', options, { of: 'function' });
  return defineGrader({
    name: 'countdown',
    grade: (input) => {
      const { numbers, target } = puzzleOf(input);
      const spoken = spokenPart(saidBy(input, options.of));
      const played = withinBudget(() => readable(() => playedIn(spoken, target)));
      if (played === undefined) return { value: 0, success: false };
      const used = played.numbers.toSorted(byValue).join() === numbers.map(BigInt).sort(byValue).join();
      const success = used && played.isTarget;
      return { value: success ? 1 : FOR_FORMAT, success };
    },
  });
}

const byValue = (a: bigint, b: bigint): number => (a < b ? -1 : a > b ? 1 : 0);

interface Puzzle {
  readonly numbers: readonly number[];
  readonly target: number;
}

function puzzleOf({ task }: GraderInput): Puzzle {
  const { answer, metadata } = task;
  const fields: Readonly<Record<string, Json>> = {
    ...fieldsOf(metadata),
    ...fieldsOf(answer),
    ...(typeof answer === 'number' ? { target: answer } : {}),
  };
  const numbers: unknown = fields['numbers'] ?? fields['nums'];
  const target = fields['target'];
  const areWhole = Array.isArray(numbers) && numbers.length > 0 && numbers.every((one) => Number.isSafeInteger(one) && one >= 0);
  if (areWhole && typeof target === 'number' && Number.isFinite(target)) return { numbers, target };
  return unscorable(
    `task ${JSON.stringify(task.id)} has no list of whole \`numbers\` with a \`target\`, in its answer or metadata`,
  );
}

const fieldsOf = (value: Json | undefined): Readonly<Record<string, Json>> => (isObject(value) ? value : {});

interface Played {
  /** False if it divides by zero or claims another value. */
  readonly isTarget: boolean;
  readonly numbers: readonly bigint[];
}

/** Throws `Unreadable` if the text is not an expression of this game. */
function playedIn(spoken: string, target: number): Played {
  const marked = new Set(markedAnswers(spoken) ?? [lastLine(spoken)]);
  if (marked.size > 1) throw new Unreadable('several answers');
  const text = [...marked].join();
  if (text.length > MOST_CHARS) throw new Unreadable('too long');
  const plain = plainCharacters(text)
    .replace(/\\(?:times|cdot)(?![A-Za-z])/g, '*')
    .replace(/\\div(?![A-Za-z])/g, '/');
  const [expression = '', claimed, ...more] = plain.split('=');
  if (more.length > 0) throw new Unreadable('several equals signs');
  const numbers = (expression.match(/\d+/g) ?? []).map(BigInt);
  if (!isArithmetic(expression)) throw new Unreadable('something else than + - * / and brackets');
  const value = exactly(parseMath(expression, { commas: 'separate', unitLetters: false }), new Map());
  const isTrue = claimed === undefined || (/^\s*-?\d{1,15}\s*$/.test(claimed) && Number(claimed) === target);
  return { isTarget: isTrue && value !== undefined && same(value, fromNumber(target)), numbers };
}

/** Whole numbers with an operator between any two. Excludes what the parser would also read: 2(3), 2**3, 1 000, +3. */
function isArithmetic(text: string): boolean {
  if (!/^[\d\s()+*/-]+$/.test(text) || /\d{16}|\d\s+\d|[\d)]\s*\(|\)\s*\d/.test(text)) return false;
  return !/[*/]\s*[*/]|(?:^|[(+*/-])\s*\+/.test(text);
}
