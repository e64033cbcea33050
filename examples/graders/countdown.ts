/**
 * Countdown: to make a target out of given numbers, each used once. Many answers are right, so the grader is one of one's own. It gives 1 if
 * the answer does that, and 0.1 if it is at least arithmetic. It parses the answer and never runs it.
 *
 *   npm run trainyard -- eval examples/graders/countdown.ts --held-out examples/graders/countdown.jsonl
 */
import { isDeepStrictEqual } from 'node:util';
import { defineGrader, defineWorkflow } from 'trainyard';

export default defineWorkflow(async (ctx) => {
  const { message } = await ctx.model().generate({ messages: ctx.prompt });
  return message.content;
});

const MOST_CHARS = 200;
const byValue = (a: number, b: number): number => a - b;

export const grader = defineGrader(({ task, messages }) => {
  const { numbers, target } = task.answer as { readonly numbers: readonly number[]; readonly target: number };
  const expression = /<answer>([^<]*)<\/answer>\s*$/.exec(messages.at(-1)?.content ?? '')?.[1] ?? '';
  const value = valueIn(expression);
  if (Number.isNaN(value)) return { value: 0, success: false };
  const used = (expression.match(/\d+/g) ?? []).map(Number);
  const success = Math.abs(value - target) < 1e-9 && isDeepStrictEqual(used.sort(byValue), numbers.toSorted(byValue));
  return { value: success ? 1 : 0.1, success };
});

/** NaN if it is anything but whole numbers with + - * / and brackets. */
function valueIn(text: string): number {
  if (text.length > MOST_CHARS || !/^[\d\s()+*/-]*$/.test(text)) return Number.NaN;
  const left = text.match(/\d+|[-+*/()]/g) ?? [];
  const isNext = (...signs: readonly string[]): boolean => signs.includes(left[0] ?? '');
  const atom = (): number => {
    const token = left.shift();
    if (token !== '(') return Number(token);
    const inside = sum();
    return left.shift() === ')' ? inside : Number.NaN;
  };
  const product = (): number => {
    let value = atom();
    while (isNext('*', '/')) value = left.shift() === '*' ? value * atom() : value / atom();
    return value;
  };
  const sum = (): number => {
    let value = product();
    while (isNext('+', '-')) value += (left.shift() === '+' ? 1 : -1) * product();
    return value;
  };
  const value = sum();
  return left.length === 0 ? value : Number.NaN;
}
