/** What holds for every text, whoever wrote it: an answer equals itself in any spelling, graders never throw, and work is bounded. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { gradeOf } from '../../test/fixtures/grader/rollout-input.ts';
import type { Grader } from '../core/contracts.ts';
import type { Json } from '../core/types.ts';
import { countdown } from './countdown.ts';
import { mathMatch, sameMath } from './math/math-match.ts';
import { budgetLeft } from './math/rational.ts';
import { multipleChoice } from './multiple-choice.ts';
import { numberMatch } from './number-match.ts';
import { exactMatch, normalisedMatch } from './text-match.ts';

/** An expression, to be written in several ways. */
type Made =
  | { readonly kind: 'number'; readonly top: number; readonly bottom: number }
  | { readonly kind: 'variable'; readonly name: string }
  | { readonly kind: 'sum' | 'product' | 'quotient'; readonly left: Made; readonly right: Made }
  | { readonly kind: 'square' | 'root' | 'negative'; readonly of: Made };

const { expression } = fc.letrec<{ expression: Made }>((tie) => ({
  expression: fc.oneof(
    { maxDepth: 4, depthSize: 'small' },
    fc.record({
      kind: fc.constant('number' as const),
      top: fc.integer({ min: 1, max: 99 }),
      bottom: fc.constantFrom(1, 2, 4, 5, 3, 7),
    }),
    fc.record({ kind: fc.constant('variable' as const), name: fc.constantFrom('x', 'y', 'n') }),
    fc.record({
      kind: fc.constantFrom('sum' as const, 'product' as const, 'quotient' as const),
      left: tie('expression'),
      right: tie('expression'),
    }),
    fc.record({ kind: fc.constantFrom('square' as const, 'root' as const, 'negative' as const), of: tie('expression') }),
  ),
}));

/** As in LaTeX. */
function latex(made: Made): string {
  if (made.kind === 'number') return made.bottom === 1 ? String(made.top) : `\\frac{${made.top}}{${made.bottom}}`;
  if (made.kind === 'variable') return made.name;
  if (made.kind === 'sum') return `\\left(${latex(made.left)} + ${latex(made.right)}\\right)`;
  if (made.kind === 'product') return `${latex(made.left)} \\cdot ${latex(made.right)}`;
  if ('left' in made) return `\\dfrac{${latex(made.left)}}{${latex(made.right)}}`;
  if (made.kind === 'square') return `{\\left(${latex(made.of)}\\right)}^{2}`;
  return made.kind === 'root' ? `\\sqrt{${latex(made.of)}}` : `\\left(-${latex(made.of)}\\right)`;
}

/** As on a keyboard, with the operands of sums and products the other way round. */
function plain(made: Made): string {
  if (made.kind === 'number')
    return [2, 4, 5].includes(made.bottom) ? String(made.top / made.bottom) : `(${made.top}/${made.bottom})`;
  if (made.kind === 'variable') return made.name;
  if (made.kind === 'sum') return `(${plain(made.right)}+${plain(made.left)})`;
  if (made.kind === 'product') return `(${plain(made.right)})*(${plain(made.left)})`;
  if ('left' in made) return `((${plain(made.left)})/(${plain(made.right)}))`;
  if (made.kind === 'square') return `((${plain(made.of)})*(${plain(made.of)}))`;
  return made.kind === 'root' ? `sqrt(${plain(made.of)})` : `(−${plain(made.of)})`;
}

/** At a point; NaN or infinite where it is not defined. */
function valueAt(made: Made): number {
  if (made.kind === 'number') return made.top / made.bottom;
  if (made.kind === 'variable') return { x: 1.7, y: 0.6, n: 2.9 }[made.name] ?? Number.NaN;
  if ('of' in made) {
    const of = valueAt(made.of);
    return made.kind === 'square' ? of * of : made.kind === 'root' ? Math.sqrt(of) : -of;
  }
  const [left, right] = [valueAt(made.left), valueAt(made.right)];
  return made.kind === 'sum' ? left + right : made.kind === 'product' ? left * right : right === 0 ? Number.NaN : left / right;
}
const isRootless = (made: Made): boolean =>
  made.kind !== 'root' &&
  ('of' in made ? isRootless(made.of) : 'left' in made ? isRootless(made.left) && isRootless(made.right) : true);
/** Roots may be undefined everywhere, and quotients may divide by nothing; rationals that are finite somewhere are defined almost everywhere. */
const rationalExpression = expression.filter((made) => isRootless(made) && Number.isFinite(valueAt(made)));

const pieces = fc.constantFrom(
  ...String.raw`\boxed{ \frac{ \sqrt \sqrt[ \text{ \left( \right) \{ \} \pm \infty \begin{pmatrix} \end{pmatrix} & \\ { } ( ) [ ] | ^ _ + - * / = < > , ; : ! % $ . 1 23 0.5 1,234 1e9 x y e \pi i sin log or and cm answer is #### A B (C) ** ° ² ½ ∞`.split(
    ' ',
  ),
  ' ',
  '\n',
);
const anyText = fc.oneof(
  fc.string({ unit: 'binary', maxLength: 60 }),
  fc.array(pieces, { maxLength: 40 }).map((parts) => parts.join('')),
  expression.map(latex),
);

describe('sameMath', () => {
  it('knows an expression without roots in another spelling, and tells it from one that is more by 1', () => {
    fc.assert(
      fc.property(rationalExpression, (made) => {
        expect(sameMath(latex(made), plain(made))).toBe(true);
        expect(sameMath(`${latex(made)} + 1`, plain(made))).toBe(false);
      }),
      { numRuns: 400 },
    );
  });

  it('never takes an expression for one that is more by 1, roots or not', () => {
    fc.assert(
      fc.property(expression, (made) => !sameMath(`${latex(made)} + 1`, plain(made))),
      { numRuns: 300 },
    );
  });

  it('holds for every text and itself', () => {
    fc.assert(
      fc.property(anyText, (text) => sameMath(text, text)),
      { numRuns: 500 },
    );
  });

  it('is symmetric', () => {
    fc.assert(
      fc.property(anyText, anyText, (a, b) => sameMath(a, b) === sameMath(b, a)),
      { numRuns: 500 },
    );
    fc.assert(fc.property(expression, expression, (a, b) => sameMath(latex(a), plain(b)) === sameMath(plain(b), latex(a))));
  });

  it('does no more work than is allowed, whatever it reads', () => {
    const long = fc.array(pieces, { minLength: 200, maxLength: 1_500 }).map((parts) => parts.join(''));
    const many = fc
      .tuple(expression.map(latex), fc.integer({ min: 1, max: 60 }))
      .map(([text, times]) => Array(times).fill(text).join('+'));
    fc.assert(
      fc.property(fc.oneof(anyText, long, many), fc.oneof(anyText, many), (a, b) => {
        sameMath(a, b);
        // The last step may be one on the longest numbers.
        expect(budgetLeft()).toBeGreaterThan(-1_000);
      }),
      { numRuns: 300 },
    );
  });
});

describe('every grader of texts', () => {
  const graders: readonly (readonly [Grader, Json])[] = [
    [exactMatch(), 'x'],
    [normalisedMatch(), 'x'],
    [numberMatch({ relative: 0.1 }), 42],
    [mathMatch(), String.raw`\frac{1}{2}`],
    [mathMatch({ unmarked: 'last-number' }), '42'],
    [multipleChoice(), 'B'],
    [countdown(), { numbers: [1, 2], target: 3 }],
  ];
  const grade = (grader: Grader, said: string, answer: Json) => gradeOf(grader, { said, answer });

  it('grades whatever was said', async () => {
    await fc.assert(
      fc.asyncProperty(anyText, async (said) => {
        for (const [grader, answer] of graders) {
          const { kind, reward } = (await grade(grader, said, answer)) as { kind: string; reward: { value: number } };
          expect({ kind, inRange: [0, 0.1, 1].includes(reward.value) }).toEqual({ kind: 'graded', inRange: true });
        }
      }),
      { numRuns: 300 },
    );
  });

  it('grades against whatever the reference is, or says that it cannot be scored', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.oneof(
          anyText,
          fc.json().map((text) => JSON.parse(text) as Json),
        ),
        async (answer) => {
          for (const [grader] of graders) {
            const grade1 = await grade(grader, String.raw`\boxed{42}`, answer);
            if (grade1.kind !== 'graded') expect(grade1).toMatchObject({ kind: 'failed', code: 'GRADER_UNSCORABLE' });
          }
        },
      ),
      { numRuns: 200 },
    );
  });
});
