import { describe, expect, it } from 'vitest';
import { gradeOf, rewardOf, rolloutInput, turnSaying } from '../../test/fixtures/grader/rollout-input.ts';
import type { GraderTurn } from '../core/contracts.ts';
import type { Json } from '../core/types.ts';
import { type ToolCallsOptions, toolCalls } from './tool-call-match.ts';

type Made = readonly [name: string, args: string];

function turn(calls: readonly Made[], more: Partial<GraderTurn> = {}): GraderTurn {
  const made = calls.map(([name, args], i) => ({ id: `${i}`, type: 'function' as const, function: { name, arguments: args } }));
  return turnSaying({ role: 'assistant', content: null, tool_calls: made }, more);
}

const graded = (answer: Json | undefined, turns: readonly GraderTurn[], options: ToolCallsOptions = {}) =>
  rewardOf(toolCalls(options), { answer, turns });

describe('toolCalls', () => {
  const look: Made = ['look', '{"at": "shelf"}'];
  const take: Made = ['take', '{ "item" : 7 , "n" : 1.0 }'];
  const wanted: Json = [
    { name: 'look', arguments: { at: 'shelf' } },
    { name: 'take', arguments: { n: 1, item: 7 } },
  ];

  it.each<[string, readonly Made[], ToolCallsOptions, number, number]>([
    ['the same calls', [look, take], {}, 1, 1],
    ['another order', [take, look], {}, 0, 0.5],
    ['another order where that does not matter', [take, look], { inOrder: false }, 1, 1],
    ['one missing', [look], {}, 0, 0.5],
    ['one more', [look, ['sing', ''], take], {}, 0, 2 / 3],
    ['one more where that is allowed', [look, ['sing', ''], take], { others: true }, 1, 1],
    ['a call made twice', [look, look, take], { inOrder: false }, 0, 2 / 3],
    ['another argument', [look, ['take', '{"item": 8, "n": 1}']], {}, 0, 0.5],
    ['one argument more', [look, ['take', '{"item": 7, "n": 1, "x": 0}']], {}, 0, 0.5],
    ['one argument more where that is allowed', [look, ['take', '{"item": 7, "n": 1, "x": 0}']], { arguments: 'subset' }, 1, 1],
    ['arguments that are no JSON', [look, ['take', '{"item": 7,']], {}, 0, 0.5],
    ['no call at all', [], {}, 0, 0],
  ])('with %s', async (_, made, options, value, share) => {
    expect(await graded(wanted, [turn(made)], options)).toMatchObject({ value, success: value === 1 });
    expect((await graded(wanted, [turn(made)], { ...options, partial: true })).value).toBeCloseTo(share, 12);
  });

  it('looks at the calls of all turns, and only at those of the policy that somebody got', async () => {
    const turns = [turn([look]), turn([look], { model: 'other' }), turn([take], { undelivered: true }), turn([take])];
    expect(await graded(wanted, turns)).toEqual({ value: 1, success: true, metrics: { matched: 2, missing: 0, extra: 0 } });
  });

  it('pairs calls so that as many as possible fit', async () => {
    const answer = [{ name: 'f' }, { name: 'f', arguments: { a: 1 } }];
    const made = ['{"a": 1}', '{}'].map((args): Made => ['f', args]);
    expect((await graded(answer, [turn(made)], { inOrder: false })).value).toBe(1);
  });

  it('may be told that nothing is to be called', async () => {
    expect((await graded([], [turn([])])).value).toBe(1);
    expect((await graded([], [turn([look])])).value).toBe(0);
    expect((await graded([], [turn([look])], { partial: true })).value).toBe(0);
  });

  it('takes expected calls as models write them, and from wherever it is told', async () => {
    const written = [{ type: 'function', function: { name: 'look', arguments: '{"at": "shelf"}' } }];
    expect((await graded(written, [turn([look])])).value).toBe(1);
    expect((await graded(JSON.stringify(written), [turn([look])])).value).toBe(1);
    const { task, ...input } = rolloutInput({ turns: [turn([look])] });
    const metadata = { calls: [{ name: 'look' }] };
    const expected: ToolCallsOptions['expected'] = (given) => (given.task.metadata as typeof metadata).calls;
    expect((await rewardOf(toolCalls({ expected }), { ...input, task: { ...task, metadata } })).value).toBe(1);
  });

  const none = [undefined, null, 'look', { name: 'look' }, [{ tool: 'look' }], [{ name: 'a', arguments: '{' }]];
  it.each(none.map((answer) => [answer]))('cannot score with %j as the expected calls', async (answer) => {
    const grade = await gradeOf(toolCalls(), { answer, turns: [turn([look])] });
    expect(grade).toMatchObject({ code: 'GRADER_UNSCORABLE', message: expect.stringMatching(/t1/) });
  });

  it('is not held up by a policy that calls without end', async () => {
    const many = turn(Array.from({ length: 20_000 }, () => look));
    expect(await graded(wanted, [many], { inOrder: false, partial: true })).toMatchObject({ value: 1 / 20_000 });
  });

  it('refuses options that are none', () => {
    expect(() => toolCalls({ arguments: 'some' as never })).toThrow(expect.objectContaining({ code: 'GRADER_INVALID' }));
    expect(() => toolCalls({ ordered: false } as never)).toThrow(/it has no option ordered, expected expected, inOrder/);
  });
});
