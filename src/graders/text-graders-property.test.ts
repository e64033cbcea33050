/** Properties for any text: an answer equals itself in any notation, graders never throw, and their work is bounded. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { gradeOf } from '../../test/fixtures/grader/rollout-input.ts';
import type { Grader } from '../core/contracts.ts';
import type { Json } from '../core/types.ts';
import { mathMatch, sameMath } from './math/math-match.ts';
import { budgetLeft } from './math/rational.ts';
import { multipleChoice } from './multiple-choice.ts';
import { numberMatch } from './number-match.ts';
import { exactMatch, normalisedMatch } from './text-match.ts';

/** An expression in LaTeX, and as on a keyboard with operands the other way round; and its value at a point, NaN where it has none. */
interface Made {
  readonly latex: string;
  readonly plain: string;
  readonly value: number;
  readonly hasRoot?: boolean;
}

const number = fc.tuple(fc.integer({ min: 1, max: 99 }), fc.constantFrom(1, 2, 4, 5, 3, 7)).map(
  ([top, bottom]): Made => ({
    latex: bottom === 1 ? String(top) : `\\frac{${top}}{${bottom}}`,
    plain: [2, 4, 5].includes(bottom) ? String(top / bottom) : `(${top}/${bottom})`,
    value: top / bottom,
  }),
);
const variable = fc
  .constantFrom<[string, number]>(['x', 1.7], ['y', 0.6], ['n', 2.9])
  .map(([name, value]): Made => ({ latex: name, plain: name, value }));
const operation = fc.constantFrom<(a: Made, b: Made) => Made>(
  (a, b) => ({ latex: `\\left(${a.latex} + ${b.latex}\\right)`, plain: `(${b.plain}+${a.plain})`, value: a.value + b.value }),
  (a, b) => ({ latex: `${a.latex} \\cdot ${b.latex}`, plain: `(${b.plain})*(${a.plain})`, value: a.value * b.value }),
  (a, b) => ({
    latex: `\\dfrac{${a.latex}}{${b.latex}}`,
    plain: `((${a.plain})/(${b.plain}))`,
    value: b.value === 0 ? Number.NaN : a.value / b.value,
  }),
);
const change = fc.constantFrom<(of: Made) => Made>(
  (of) => ({ latex: `{\\left(${of.latex}\\right)}^{2}`, plain: `((${of.plain})*(${of.plain}))`, value: of.value * of.value }),
  (of) => ({ latex: `\\sqrt{${of.latex}}`, plain: `sqrt(${of.plain})`, value: Math.sqrt(of.value), hasRoot: true }),
  (of) => ({ latex: `\\left(-${of.latex}\\right)`, plain: `(−${of.plain})`, value: -of.value }),
);
const { expression } = fc.letrec<{ expression: Made }>((tie) => ({
  expression: fc.oneof(
    { maxDepth: 4, depthSize: 'small' },
    number,
    variable,
    fc.tuple(operation, tie('expression'), tie('expression')).map(([operate, a, b]) => {
      return { ...operate(a, b), hasRoot: a.hasRoot === true || b.hasRoot === true };
    }),
    fc.tuple(change, tie('expression')).map(([changed, of]) => ({ hasRoot: of.hasRoot === true, ...changed(of) })),
  ),
}));
/** Roots may be undefined everywhere, and quotients may divide by nothing; rationals that are finite somewhere are defined almost everywhere. */
const rationalExpression = expression.filter(({ hasRoot, value }) => hasRoot !== true && Number.isFinite(value));

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
  expression.map(({ latex }) => latex),
);

describe('sameMath', () => {
  it('knows an expression without roots in another spelling, and tells it from one that is more by 1', () => {
    fc.assert(
      fc.property(rationalExpression, ({ latex, plain }) => {
        expect(sameMath(latex, plain)).toBe(true);
        expect(sameMath(`${latex} + 1`, plain)).toBe(false);
      }),
      { numRuns: 400 },
    );
  });

  it('never takes an expression for one that is more by 1, roots or not', () => {
    fc.assert(
      fc.property(expression, ({ latex, plain }) => !sameMath(`${latex} + 1`, plain)),
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
    fc.assert(fc.property(expression, expression, (a, b) => sameMath(a.latex, b.plain) === sameMath(b.plain, a.latex)));
  });

  it('does no more work than is allowed, whatever it reads', () => {
    const long = fc.array(pieces, { minLength: 200, maxLength: 1_500 }).map((parts) => parts.join(''));
    const many = fc
      .tuple(expression, fc.integer({ min: 1, max: 60 }))
      .map(([{ latex }, times]) => Array(times).fill(latex).join('+'));
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
  ];
  const grade = (grader: Grader, said: string, answer: Json) => gradeOf(grader, { said, answer });

  it('grades whatever was said', async () => {
    await fc.assert(
      fc.asyncProperty(anyText, async (said) => {
        for (const [grader, answer] of graders) {
          const { kind, reward } = (await grade(grader, said, answer)) as { kind: string; reward: { value: number } };
          expect({ kind, inRange: [0, 1].includes(reward.value) }).toEqual({ kind: 'graded', inRange: true });
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
