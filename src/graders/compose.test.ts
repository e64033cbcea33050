import { setTimeout as sleep } from 'node:timers/promises';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { gradeOf, rewardOf, turnSaying } from '../../test/fixtures/grader/rollout-input.ts';
import type { Grader, GraderResult } from '../core/contracts.ts';
import { defineGrader, rejected, unscorable } from '../core/define.ts';
import {
  clipped,
  formatPenalty,
  gated,
  lengthPenalty,
  maximum,
  minimum,
  repetitionPenalty,
  scaled,
  weighted,
} from './compose.ts';

const gives = (result: GraderResult): Grader => defineGrader({ name: 'gives', grade: () => result });
const rejecting = defineGrader({ name: 'rejecting', grade: () => rejected('nothing to see') });
const unable = defineGrader({ name: 'unable', grade: () => unscorable('no answer') });
const never: Grader = defineGrader({
  name: 'never',
  grade: () => {
    throw new Error('must not be asked');
  },
});

describe('weighted', () => {
  it('is the sum of the values by weight, with every value under its name', async () => {
    const grader = weighted({ correct: [gives(1), 0.8], format: [gives(0.5), 0.2] });
    const parts = { correct: 1, format: 0.5 };
    expect(await rewardOf(grader, {})).toEqual({ value: 0.8 + 0.5 * 0.2, success: false, parts, metrics: {} });
  });

  it('flattens parts and metrics of nested sums by name', async () => {
    const inner = weighted({ x: [gives({ value: 1, parts: { p: 2 }, metrics: { m: 3 } }), 1] });
    expect(await rewardOf(weighted({ a: [inner, 1] }), {})).toMatchObject({
      parts: { a: 1, 'a.x': 1, 'a.x.p': 2 },
      metrics: { 'a.x.m': 3 },
    });
  });

  it('is a success from 1 up, whatever the rounding of the sum', async () => {
    const thirds = weighted(Object.fromEntries(['a', 'b', 'c'].map((name) => [name, [gives(1), name === 'a' ? 0.7 : 0.15]])));
    const reward = await rewardOf(thirds, {});
    expect(reward.success).toBe(true);
    const tenths = Object.fromEntries(Array.from({ length: 10 }, (_, i) => [`p${i}`, [gives(1), 0.1] as const]));
    expect((await rewardOf(weighted(tenths), {})).value).toBeLessThan(1);
    expect((await rewardOf(weighted(tenths), {})).success).toBe(true);
  });

  it('takes the success of the component that it is told to', async () => {
    const parts = { correct: [gives({ value: 0.2, success: true }), 1], cost: [gives(-1), 1] } as const;
    expect((await rewardOf(weighted(parts, { success: 'correct' }), {})).success).toBe(true);
    expect((await rewardOf(weighted(parts), {})).success).toBe(false);
  });

  it('fails where a component cannot score, and never is a sum of the others', async () => {
    const grader = weighted({ good: [gives(1), 1], bad: [unable, 1], odd: [rejecting, 1] });
    expect(await gradeOf(grader, {})).toEqual({ kind: 'failed', code: 'GRADER_UNSCORABLE', message: 'no answer' });
  });

  it('is rejected where a component rejects, and says which', async () => {
    const grader = weighted({ good: [gives(1), 1], odd: [rejecting, 0] });
    expect(await gradeOf(grader, {})).toEqual({ kind: 'ungraded', why: 'odd: nothing to see' });
  });

  it('fails, naming the component, for what is no reward', async () => {
    const grader = weighted({ good: [gives(1), 1], odd: [gives(Number.NaN), 1] });
    const message = expect.stringMatching(/"odd" returned NaN/);
    expect(await gradeOf(grader, {})).toMatchObject({ code: 'GRADER_BAD_REWARD', message });
  });

  it('fails rather than give a sum that is not finite', async () => {
    expect(await gradeOf(weighted({ a: [gives(1e308), 1e308] }), {})).toMatchObject({ code: 'GRADER_BAD_REWARD' });
  });

  it('tells the others to stop when one fails', async () => {
    let stopped = false;
    const slow = defineGrader(async (_, { signal }) => {
      await sleep(20_000, undefined, { signal }).catch(() => {
        stopped = true;
      });
      return 1;
    });
    const failing = defineGrader(async () => unscorable('broken'));
    expect(await gradeOf(weighted({ slow: [slow, 1], failing: [failing, 1] }), {})).toMatchObject({ message: 'broken' });
    expect(stopped).toBe(true);
  });

  it('sums rewards by turn where all components give them for the same turns, and fails where only some do', async () => {
    const turns = [turnSaying({ role: 'assistant', content: 'a' }), turnSaying({ role: 'assistant', content: 'b' })];
    const a = gives({ value: 1, byTurn: [1, 0], untrained: ['x'] });
    const b = gives({ value: 1, byTurn: { 1: 2, 0: 4 }, untrained: ['x', 'y'] });
    expect(await rewardOf(weighted({ a: [a, 1], b: [b, 0.5] }), { turns })).toMatchObject({
      byTurn: { 0: 3, 1: 1 },
      untrained: ['x', 'y'],
    });
    for (const other of [gives(1), gives({ value: 1, byTurn: { 0: 1 } })]) {
      expect(await gradeOf(weighted({ a: [a, 1], other: [other, 1] }), { turns })).toMatchObject({
        code: 'GRADER_BAD_REWARD',
        message: expect.stringMatching(/byTurn of other/),
      });
    }
  });

  it('inherits the strictest concurrency, the longest deadline, the most retries and the wish for the policy', () => {
    const one = defineGrader({ concurrency: 4, deadlineMs: 10, retries: 1, grade: () => 1 });
    const two = defineGrader({ concurrency: 2, deadlineMs: 30, asksPolicy: true, grade: () => 1 });
    const whole = { concurrency: 2, deadlineMs: 30, retries: 1, asksPolicy: true };
    expect(weighted({ one: [one, 1], two: [two, 1] })).toMatchObject(whole);
    expect(gated(one, two)).toMatchObject({ ...whole, deadlineMs: 40 });
    expect(Object.keys(weighted({ a: [gives(1), 1] }))).toEqual(['name', 'grade']);
  });

  it('does not hurry a component without a deadline because another has a short one', () => {
    const quick = defineGrader({ deadlineMs: 10, grade: () => 1 });
    expect(weighted({ quick: [quick, 1], slow: [gives(1), 1] }).deadlineMs).toBe(30_000);
    expect(gated(quick, gives(1)).deadlineMs).toBe(30_010);
    const patient = defineGrader({ deadlineMs: 90_000, grade: () => 1 });
    expect(weighted({ quick: [gives(1), 1], patient: [patient, 1] }).deadlineMs).toBe(90_000);
  });

  it.each<[string, () => Grader, RegExp]>([
    ['no components', () => weighted({}), /at least one/],
    ['a name with a dot', () => weighted({ 'a.b': [gives(1), 1] }), /"a\.b", expected a name without dots/],
    ['a weight that is not finite', () => weighted({ a: [gives(1), Number.NaN] }), /the weight of a: .*NaN/],
    ['no weight', () => weighted({ a: gives(1) as never }), /a: expected \[grader, weight\]/],
    ['something else than a grader', () => weighted({ a: [{} as Grader, 1] }), /a: expected a grader, found object/],
    ['an unknown component as success', () => weighted({ a: [gives(1), 1] }, { success: 'b' }), /success is 'b', expected 'a'/],
    ['a list', () => weighted([] as never), /object of graders by name/],
    ['a gate that is none', () => gated(null as never, gives(1)), /the gate: expected a grader, found null/],
    ['bounds that cross', () => clipped(gives(1), { min: 2, max: 1 }), /min is 2, expected at most max/],
    ['no bounds', () => clipped(gives(1), {}), /found neither/],
    ['an infinite factor', () => scaled(gives(1), { by: Infinity }), /by is Infinity, expected a finite number/],
    ['a penalty per nothing', () => lengthPenalty({ unit: 'tokens', free: 1, per: 0 }), /per is 0/],
    ['a penalty that rewards', () => formatPenalty(/x/, -1), /cost is -1/],
    ['a repetition that is free', () => repetitionPenalty({ cost: 0 }), /cost is 0/],
    ['a misspelt bound', () => clipped(gives(1), { maximum: 1 } as never), /clipped: it has no option maximum, expected min/],
    ['a misspelt factor', () => scaled(gives(1), { factor: 2 } as never), /scaled: it has no option factor/],
    ['a misspelt floor', () => gated(gives(1), gives(1), { flor: 1 } as never), /gated: it has no option flor/],
    ['a misspelt success', () => weighted({ a: [gives(1), 1] }, { sucess: 'a' } as never), /weighted: it has no option sucess/],
    ['a penalty of nothing', () => lengthPenalty(undefined as never), /lengthPenalty: expected an object of options/],
    [
      'a penalty in nothing',
      () => lengthPenalty({ free: 1, per: 1 } as never),
      /unit is missing, expected 'tokens' or 'characters'/,
    ],
    ['a test that is none', () => formatPenalty('x' as never, 1), /test is 'x', expected a regular expression or a function/],
  ])('refuses %s at once', (_, make, message) => {
    expect(make).toThrow(expect.objectContaining({ code: 'GRADER_INVALID', message: expect.stringMatching(message) }));
  });

  it('equals the plain sum for any weights and values', async () => {
    const finite = fc.double({ min: -100, max: 100, noNaN: true });
    await fc.assert(
      fc.asyncProperty(fc.array(fc.tuple(finite, finite), { minLength: 1, maxLength: 6 }), async (pairs) => {
        const grader = weighted(Object.fromEntries(pairs.map(([value, weight], i) => [`p${i}`, [gives(value), weight]])));
        const expected = pairs.reduce((sum, [value, weight]) => sum + value * weight, 0);
        expect((await rewardOf(grader, {})).value).toBeCloseTo(expected, 6);
      }),
    );
  });
});

describe('gated', () => {
  it('does not ask the grader where the gate is closed, and gives the floor', async () => {
    const closed = { value: 0, success: false, parts: { gate: 0.9, 'gate.x': 0.9 }, metrics: {} };
    expect(await rewardOf(gated(gives({ value: 0.9, parts: { x: 0.9 } }), never), {})).toEqual(closed);
    expect((await rewardOf(gated(gives(0), never, { floor: -1 }), {})).value).toBe(-1);
  });

  it('gives the reward of the grader where the gate is open, with both in its parts', async () => {
    const score = gives({ value: 0.3, success: true, byRole: { default: 2 } });
    expect(await rewardOf(gated(gives({ value: 0, success: true }), score), {})).toEqual({
      value: 0.3,
      success: true,
      byRole: { default: 2 },
      parts: { gate: 0, score: 0.3 },
      metrics: {},
    });
  });

  it('passes on what the gate or the grader could not do', async () => {
    expect(await gradeOf(gated(rejecting, never), {})).toEqual({ kind: 'ungraded', why: 'gate: nothing to see' });
    expect(await gradeOf(gated(gives(1), rejecting), {})).toEqual({ kind: 'ungraded', why: 'score: nothing to see' });
    expect(await gradeOf(gated(unable, gives(1)), {})).toMatchObject({ code: 'GRADER_UNSCORABLE' });
    expect(await gradeOf(gated(gives(1), unable), {})).toMatchObject({ code: 'GRADER_UNSCORABLE' });
  });
});

describe('clipped and scaled', () => {
  it('keep rewards within bounds, by turn too, and the success as it was', async () => {
    const grader = clipped(gives({ value: 3, byRole: { a: -5, b: 0.5 }, metrics: { m: 1 } }), { min: -1, max: 0.5 });
    const kept = { value: 0.5, success: true, byRole: { a: -1, b: 0.5 }, metrics: { m: 1, clipped: 1 } };
    expect(await rewardOf(grader, {})).toEqual(kept);
    expect(await rewardOf(clipped(gives(0.2), { max: 1 }), {})).toMatchObject({ value: 0.2, metrics: { clipped: 0 } });
  });

  it('multiply, then add', async () => {
    const grader = scaled(gives({ value: 1, byThread: { t: 3 }, parts: { p: 1 } }), { by: 2, plus: -1 });
    expect(await rewardOf(grader, {})).toEqual({ value: 1, success: true, byThread: { t: 5 }, parts: { p: 1 } });
  });
});

describe('minimum and maximum', () => {
  it('are the worst and the best, a success where all or one is', async () => {
    const both = { a: gives(0.2), b: gives(1) };
    expect(await rewardOf(minimum(both), {})).toMatchObject({ value: 0.2, success: false, parts: { a: 0.2, b: 1 } });
    expect(await rewardOf(maximum(both), {})).toMatchObject({ value: 1, success: true });
    expect(await gradeOf(maximum({ a: gives(1), b: unable }), {})).toMatchObject({ code: 'GRADER_UNSCORABLE' });
    const byRole = minimum({ a: gives({ value: 1, byRole: { default: 1 } }) });
    expect(await gradeOf(byRole, {})).toMatchObject({ code: 'GRADER_BAD_REWARD' });
  });
});

describe('penalties', () => {
  const ids = (length: number): { sampledIds: Int32Array } => ({ sampledIds: new Int32Array(length) });
  const said = { role: 'assistant', content: 'abcd' } as const;

  it('count the tokens that the policy itself sampled and somebody got', async () => {
    const turns = [
      turnSaying(said, ids(10)),
      turnSaying(said, ids(7)),
      turnSaying(said, { ...ids(0), model: 'other' }),
      turnSaying(said, { ...ids(100), undelivered: true }),
    ];
    const penalty = lengthPenalty({ unit: 'tokens', free: 12, per: 10 });
    expect(await rewardOf(penalty, { turns })).toEqual({ value: -0.5, success: false, metrics: { tokens: 17 } });
    expect(Object.is((await rewardOf(lengthPenalty({ unit: 'tokens', free: 17, per: 1 }), { turns })).value, 0)).toBe(true);
    expect((await rewardOf(lengthPenalty({ unit: 'tokens', free: 0, per: 1, most: 0.25 }), { turns })).value).toBe(-0.25);
  });

  it('cannot count tokens that are not known', async () => {
    const penalty = lengthPenalty({ unit: 'tokens', free: 0, per: 1 });
    expect(await gradeOf(penalty, { said: 'a' })).toMatchObject({ code: 'GRADER_UNSCORABLE' });
  });

  it('count characters of texts, thoughts and calls', async () => {
    const call = { id: '1', type: 'function', function: { name: 'f', arguments: '{}' } } as const;
    const turns = [
      turnSaying({ ...said, reasoning: 'xyz', tool_calls: [call] }),
      turnSaying({ role: 'assistant', content: null }),
    ];
    const penalty = lengthPenalty({ unit: 'characters', free: 0, per: 9 });
    expect(await rewardOf(penalty, { turns })).toEqual({ value: -1, success: false, metrics: { characters: 9 } });
  });

  it('cost where the format does not hold', async () => {
    const penalty = formatPenalty(/^<answer>.*<\/answer>$/gs, 0.3);
    for (let i = 0; i < 3; i++) {
      expect(await rewardOf(penalty, { said: '<answer>7</answer>' })).toEqual({ value: 0, success: true });
      expect(await rewardOf(penalty, { said: '7' })).toEqual({ value: -0.3, success: false });
    }
    const short = formatPenalty((text) => text.length < 3, 1);
    expect((await rewardOf(short, { said: 'long' })).value).toBe(-1);
    expect(await gradeOf(formatPenalty((() => 1) as never, 1), {})).toMatchObject({ code: 'GRADER_UNSCORABLE' });
  });

  it.each([
    ['café Zoë', 0, 1],
    ['', 0, 0],
    [Array(10).fill('wqd').join(' '), 0, 10],
    [Array(11).fill('wqd').join('\n '), -1, 11],
    [`well, ${Array(11).fill('I see that').join(' ')} now`, -1, 11],
    ['a b a b a c '.repeat(3), 0, 2],
    ['1 2 3 4 5 6 7 8 9 10 11 12', 0, 1],
    [`x${'ha'.repeat(201)}`, -1, 1],
    ['ha'.repeat(200), 0, 1],
    ['我'.repeat(201), -1, 1],
  ])('for saying one thing over and over, case %#', async (said, value, repeatedWords) => {
    const turns = ['fine', said].map((content) => turnSaying({ role: 'assistant', content }));
    const reward = await rewardOf(repetitionPenalty({ cost: 1 }), { turns });
    expect(reward).toMatchObject({ value, success: value === 0, metrics: { repeatedWords: Math.max(1, repeatedWords) } });
  });
});
