/** Random answers that must never pass: another number in any notation, a tiny difference, two answers at once. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { gradeOf } from '../../test/fixtures/grader/rollout-input.ts';
import type { Grader } from '../core/contracts.ts';
import type { Json } from '../core/types.ts';
import { mathMatch, sameMath } from './math/math-match.ts';
import { multipleChoice } from './multiple-choice.ts';
import { numberMatch } from './number-match.ts';

const graded = async (grader: Grader, said: string, answer: Json): Promise<unknown> => {
  const grade = await gradeOf(grader, { said, answer });
  return grade.kind === 'graded' ? grade.reward.value : grade;
};

interface Fraction {
  readonly top: bigint;
  readonly bottom: bigint;
}

const fraction: fc.Arbitrary<Fraction> = fc.record({
  top: fc.oneof(fc.bigInt(-50n, 50n), fc.bigInt(-(10n ** 30n), 10n ** 30n)),
  bottom: fc.oneof(fc.constant(1n), fc.bigInt(1n, 60n), fc.bigInt(1n, 10n ** 25n)),
});
const equal = (a: Fraction, b: Fraction): boolean => a.top * b.bottom === b.top * a.bottom;
const size = (top: bigint): bigint => (top < 0n ? -top : top);
const sign = (top: bigint): string => (top < 0n ? '-' : '');
const grouped = (n: bigint): string => String(n).replace(/\B(?=(?:\d{3})+$)/g, ',');

/** Ways to write a fraction; each says exactly this number. */
const SPELLINGS: readonly ((one: Fraction) => string)[] = [
  ({ top, bottom }) => `${top}/${bottom}`,
  ({ top, bottom }) => `\\frac{${top}}{${bottom}}`,
  ({ top, bottom }) => `${sign(top)}\\dfrac{${size(top)}}{${bottom}}`,
  ({ top, bottom }) => `−${-top * 3n}/${bottom * 3n}`.replace('−-', ''),
  ({ top, bottom }) => `x = ${top} \\div ${bottom}`,
  ({ top, bottom }) => `${100n * top}/${bottom}\\%`,
  ({ top, bottom }) => (bottom === 1n ? `${sign(top)}${grouped(size(top))}` : `(${top})/(${bottom})`),
  ({ top, bottom }) => `${sign(top)}(${size(top) / bottom} + ${size(top) % bottom}/${bottom})`,
  ({ top, bottom }) => `\\left(${top} \\cdot 10^{-3}\\right) \\cdot \\frac{1000}{${bottom}}`,
];
const spelling = fc.constantFrom(...SPELLINGS);

describe('no false positives', () => {
  it('two fractions are the same in any spelling exactly where they are equal', () => {
    fc.assert(
      fc.property(fraction, spelling, spelling, (one, write, rewrite) => {
        expect([write(one), rewrite(one), sameMath(write(one), rewrite(one))]).toEqual([write(one), rewrite(one), true]);
      }),
      { numRuns: 400 },
    );
    fc.assert(
      fc.property(fraction, fraction, spelling, spelling, (a, b, write, rewrite) => {
        // A percent sign on one side may be left out: 50% is 50 or 0.5.
        const isPercent = write(a).endsWith('%') !== rewrite(b).endsWith('%');
        const times = (one: Fraction, text: string): Fraction =>
          isPercent && text.endsWith('%') ? { top: one.top * 100n, bottom: one.bottom } : one;
        const isSame = equal(a, b) || equal(times(a, write(a)), times(b, rewrite(b)));
        expect(sameMath(write(a), rewrite(b))).toBe(isSame);
      }),
      { numRuns: 600 },
    );
  });

  it('a difference of any size is seen beside roots and constants', () => {
    const irrational = fc.constantFrom('\\sqrt{2}', '\\pi', 'e', '\\sqrt[3]{5}', '\\ln 3', '\\sqrt{x}', '\\sin 1');
    const shape = fc.constantFrom<(of: string) => string>(
      (of) => of,
      (of) => `7 + ${of}`,
      (of) => `10^{15} + ${of}`,
      (of) => `\\frac{${of}}{3}`,
      (of) => `(1 + ${of})^2`,
      (of) => `\\sqrt{5 + ${of}}`,
    );
    fc.assert(
      fc.property(irrational, shape, fc.integer({ min: 1, max: 40 }), (of, shaped, places) => {
        expect(sameMath(shaped(of), shaped(`${of} + 10^{-${places}}`))).toBe(false);
        expect(sameMath(shaped(of), `${shaped(of)} + 10^{-${places}}`)).toBe(false);
        expect(sameMath(shaped(of), `(${shaped(of)})(1 + 10^{-${places}})`)).toBe(false);
      }),
      { numRuns: 200 },
    );
  });

  it('no decimal is a root, however many digits it has', () => {
    fc.assert(
      fc.property(fc.integer({ min: 2, max: 999 }), fc.integer({ min: 1, max: 17 }), (n, digits) => {
        fc.pre(!Number.isInteger(Math.sqrt(n)));
        expect(sameMath(`\\sqrt{${n}}`, Math.sqrt(n).toPrecision(digits))).toBe(false);
      }),
      { numRuns: 200 },
    );
  });
});

describe('two answers at once', () => {
  const joiner = fc.constantFrom(' or ', ', or ', ' or maybe ', ' or possibly ');
  const frame = fc.constantFrom<(a: string, join: string, b: string) => string>(
    (a, join, b) => `The answer is ${a}${join}${b}.`,
    (a, join, b) => `#### ${a}${join}${b}`,
    (a, join, b) => `\\boxed{${a}${join}${b}}`,
    (a, join, b) => `<answer>${a}${join}${b}</answer>`,
    (a, join, b) => `${a}${join}${b}`,
    (a, _join, b) => `\\boxed{${a}} or \\boxed{${b}}`,
  );

  it('are no number, whichever of them is right', async () => {
    const number = fc.integer({ min: -999, max: 9_999 });
    await fc.assert(
      fc.asyncProperty(number, number, joiner, frame, async (a, b, join, framed) => {
        fc.pre(a !== b);
        for (const answer of [a, b]) {
          for (const grader of [mathMatch(), numberMatch(), numberMatch({ strict: true })]) {
            expect([grader.name, await graded(grader, framed(String(a), join, String(b)), answer)]).toEqual([grader.name, 0]);
          }
        }
      }),
      { numRuns: 150 },
    );
  });

  it('are no choice, whichever of them is right', async () => {
    const letter = fc.constantFrom(...'ABCDEFGHJ');
    const written = fc.constantFrom<(one: string) => string>(
      (one) => one,
      (one) => `(${one})`,
      (one) => `**${one}**`,
    );
    const between = fc.oneof(joiner, fc.constantFrom(' and ', ', ', '/', ' & ', '; '));
    await fc.assert(
      fc.asyncProperty(letter, letter, written, between, frame, async (a, b, write, join, framed) => {
        fc.pre(a !== b);
        const said = framed(write(a), join, write(b));
        for (const answer of [a, b]) expect([said, await graded(multipleChoice(), said, answer)]).toEqual([said, 0]);
      }),
      { numRuns: 400 },
    );
  });
});
