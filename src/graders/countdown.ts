/**
 * `countdown`: the game of making a target out of given numbers. 1 where the expression uses each number exactly once and reaches the target;
 * 0.1 where it is at least an expression of whole numbers with + - * / and brackets; 0 otherwise. Computed by a parser, in exact fractions.
 *
 * The task has `numbers` (or `nums`) and `target`, in its answer or its metadata. The expression is what is marked as the answer,
 * else the last line; "= 24" behind it has to be true.
 */
import type { Grader, GraderInput } from '../core/contracts.ts';
import { defineGrader, unscorable } from '../core/define.ts';
import { isObject } from '../core/json.ts';
import type { Json } from '../core/types.ts';
import { checkOptions, lastLine, markedAnswers, saidBy, spokenPart, type TextOptions } from './answers.ts';
import {
  fromNumber,
  minus,
  newWork,
  over,
  plus,
  type Rational,
  readable,
  same,
  spend,
  times,
  Unreadable,
  type Work,
  whole,
} from './math/rational.ts';
import { plainCharacters } from './math/tokens.ts';

const FOR_FORMAT = 0.1;
const MOST_CHARS = 1_000;
const MOST_DEPTH = 60;

export function countdown(options: TextOptions = {}): Grader {
  checkOptions('countdown', options, { of: 'function' });
  return defineGrader({
    name: 'countdown',
    grade: (input) => {
      const { numbers, target } = puzzleOf(input);
      const played = readable(() => playedIn(spokenPart(saidBy(input, options.of))));
      if (played === undefined) return { value: 0, success: false };
      const used = played.numbers.toSorted(byValue).join() === numbers.map(BigInt).sort(byValue).join();
      const success = used && played.value !== undefined && same(played.value, fromNumber(target, newWork()));
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
  /** Undefined where it divides by zero, or where what it says it equals is not true. */
  readonly value: Rational | undefined;
  readonly numbers: readonly bigint[];
}

function playedIn(spoken: string): Played {
  const marked = new Set(markedAnswers(spoken) ?? [lastLine(spoken)]);
  if (marked.size > 1) throw new Unreadable('several answers');
  const text = [...marked].join();
  if (text.length > MOST_CHARS) throw new Unreadable('too long');
  const plain = plainCharacters(text)
    .replace(/\\(?:times|cdot)(?![A-Za-z])/g, '*')
    .replace(/\\div(?![A-Za-z])/g, '/');
  const [expression = '', claimed, ...more] = plain.split('=');
  if (more.length > 0) throw new Unreadable('several equals signs');
  const work = newWork();
  const read = new Arithmetic(expression, work);
  const value = read.all();
  if (claimed === undefined) return { value, numbers: read.numbers };
  const isTrue = value !== undefined && /^\s*-?\d{1,15}\s*$/.test(claimed) && same(value, fromNumber(Number(claimed), work));
  return { value: isTrue ? value : undefined, numbers: read.numbers };
}

/** Whole numbers, + - * /, brackets. Throws `Unreadable` for anything else; a division by zero makes the value undefined. */
class Arithmetic {
  readonly numbers: bigint[] = [];
  readonly #tokens: readonly string[];
  readonly #work: Work;
  #at = 0;
  #depth = 0;

  constructor(text: string, work: Work) {
    this.#tokens = text.match(/\d+|[^\s\d]/g) ?? [];
    this.#work = work;
  }

  all(): Rational | undefined {
    const value = this.#sum();
    if (this.#at < this.#tokens.length) throw new Unreadable('something behind the expression');
    return value;
  }

  #skip(token: string): boolean {
    const found = this.#tokens[this.#at] === token;
    if (found) this.#at++;
    return found;
  }

  #sum(): Rational | undefined {
    return this.#chain({ '+': plus, '-': minus }, () => this.#product());
  }

  #product(): Rational | undefined {
    return this.#chain({ '*': times, '/': over }, () => this.#factor());
  }

  #chain(operations: Readonly<Record<string, typeof plus>>, operand: () => Rational | undefined): Rational | undefined {
    let total = operand();
    for (;;) {
      const operation = operations[this.#tokens[this.#at] ?? ''];
      if (operation === undefined) return total;
      this.#at++;
      const next = operand();
      const isDefined = operation !== over || next?.n !== 0n;
      total = isDefined && total && next ? operation(total, next, this.#work) : undefined;
    }
  }

  #factor(): Rational | undefined {
    spend(this.#work, 1);
    if (++this.#depth > MOST_DEPTH) throw new Unreadable('nested too deep');
    const value = this.#atom();
    this.#depth--;
    return value;
  }

  #atom(): Rational | undefined {
    if (this.#skip('-')) {
      const of = this.#factor();
      return of && times(whole(-1), of, this.#work);
    }
    if (this.#skip('(')) {
      const inside = this.#sum();
      if (!this.#skip(')')) throw new Unreadable('a bracket that is not closed');
      return inside;
    }
    const token = this.#tokens[this.#at++];
    if (token === undefined || !/^\d{1,15}$/.test(token)) throw new Unreadable('no number where one should be');
    this.numbers.push(BigInt(token));
    return whole(BigInt(token));
  }
}
