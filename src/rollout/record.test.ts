import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { completionId } from '../core/turns.ts';
import type { RolloutIdentity, Turn } from '../core/types.ts';
import { type Ended, endedAs, onlyTrained, resultOf, settle } from './record.ts';

const identity: RolloutIdentity = { rolloutId: 'g1-0', groupId: 'g1', taskId: 't', purpose: 'train' };
const turns = [11, 22, 33].map(
  (seed, index) => ({ index, thread: index < 2 ? 'main' : 'critic', role: 'default', sampling: { seed } }) as Turn,
);
const settled = (returned: unknown) => resultOf(returned, identity, turns);

function refusal(returned: unknown): unknown {
  try {
    return { accepted: settled(returned) };
  } catch (error) {
    return error;
  }
}

describe('what a workflow returns', () => {
  it('may be nothing or a text, which is its output', () => {
    expect(settled(undefined)).toEqual({});
    expect(settled(null)).toEqual({});
    expect(settled('81')).toEqual({ output: '81' });
  });

  it('may say everything about itself', () => {
    const result = { output: [1], reward: 0.5, success: false, metadata: { path: 'a' }, metrics: { tries: 2 } };
    expect(settled(result)).toEqual({ ...result, reward: { value: 0.5, success: false, source: 'workflow' } });
  });

  it('names turns by index or by the id of their completion, with or without the dialect’s prefix', () => {
    const [first, second] = turns.map(({ sampling }) => completionId(identity, sampling.seed));
    const reward = { value: 1, byTurn: { [first!]: 1, [`chatcmpl-${second}`]: 2, 2: 3 } };
    expect(settled({ reward, trainedTurns: [0, `msg_${second}`] })).toEqual({
      reward: { value: 1, byTurn: { 0: 1, 1: 2, 2: 3 }, source: 'workflow' },
      trainedTurns: [0, 1],
    });
  });

  it.each([
    ['a number, which could be a reward or an answer', 0.5, '0.5'],
    ['true', true, 'true'],
    ['a list', [1], '[ 1 ]'],
    ['a reward by another name', { score: 1 }, 'score'],
    ['a reward that is a text', { reward: '1' }, "'1'"],
    ['a reward that is not finite', { reward: Number.NaN }, 'NaN'],
    ['a success that is a number', { success: 1 }, '1'],
    ['metadata that is a list', { metadata: [] }, '[]'],
    ['metrics that are a text', { metrics: 'fast' }, "'fast'"],
    ['a reward of a turn that is not there', { reward: { value: 1, byTurn: { 7: 1 } } }, '"7"'],
    ['a reward of a thread that is not there', { reward: { value: 1, byThread: { judge: 1 } } }, 'main, critic'],
    ['a reward of a role that is not there', { reward: { value: 1, byRole: { judge: 1 } } }, 'judge'],
    ['a trained turn that is not there', { trainedTurns: [3] }, '3'],
  ])('is refused if it is %s', (_, returned, shown) => {
    expect(refusal(returned)).toMatchObject({
      code: 'WORKFLOW_BAD_RESULT',
      message: expect.stringContaining(shown),
      hint: expect.stringContaining('reward'),
    });
  });

  const doubled = (levels: number): unknown => {
    const inner = levels === 0 ? 1 : doubled(levels - 1);
    return [inner, inner];
  };
  class Own {
    readonly text = 'x';
  }
  const around: Record<string, unknown> = {};
  around['self'] = around;
  it.each<[string, unknown, string]>([
    ['a bigint', { n: [1, { m: 12n }] }, 'output.n[1].m is of type bigint'],
    ['a function', { run: () => 1 }, 'output.run is of type function'],
    ['NaN', Number.NaN, 'output is NaN'],
    ['an infinity', [Number.POSITIVE_INFINITY], 'output[0] is Infinity'],
    ['a list with a gap', Array(2), 'output[0] is of type undefined'],
    ['a Map', { found: new Map([['a', 1]]) }, 'output.found is an instance of Map'],
    ['a Set', new Set([1]), 'output is an instance of Set'],
    ['an Error', new Error('boo'), 'output is an instance of Error'],
    ['an instance', new Own(), 'output is an instance of Own'],
    ['numbers of a fixed size', new Float32Array([1]), 'output is an instance of Float32Array'],
    ['bytes', Buffer.from('hi'), 'output is an instance of Buffer'],
    ['a date that is none', new Date(Number.NaN), 'output is of type undefined'],
    ['a circle', around, 'output.self contains itself'],
    ['too deep', JSON.parse('['.repeat(201) + ']'.repeat(201)), 'nested deeper than 200 levels'],
    ['too long', { text: 'y'.repeat(1_000_001) }, 'longer than 1000000 characters'],
    ['twice as long on each level', doubled(60), 'longer than 1000000'],
  ])('is refused where JSON would drop or change %s, with the place of it', (_, output, shown) => {
    const message = expect.stringContaining(shown);
    expect(refusal({ output })).toMatchObject({ code: 'WORKFLOW_BAD_RESULT', message });
    expect(refusal({ metadata: { output } })).toMatchObject({ code: 'WORKFLOW_BAD_RESULT' });
  });

  it('is no instance in which nothing can be seen', () => {
    for (const one of [new Date(0), new Map([['output', 1]]), new Set()]) {
      const message = expect.stringContaining(`run returned an instance of ${one.constructor.name}`);
      expect(refusal(one)).toMatchObject({ message });
    }
  });

  it('may be a text of a million characters, and no longer', () => {
    expect(settled('x'.repeat(1_000_000)).output).toHaveLength(1_000_000);
    expect(refusal('x'.repeat(1_000_001))).toMatchObject({ code: 'WORKFLOW_BAD_RESULT' });
  });

  it('is read as JSON is written: dates are texts, and what is undefined is not there', () => {
    const output = { at: new Date(0), left: undefined, ['__proto__']: null, url: new URL('http://a/') };
    expect(settled({ output }).output).toEqual(JSON.parse(JSON.stringify(output)));
  });

  it('loses a broken metric, never the rollout', () => {
    expect(settled({ metrics: { a: 1, b: Number.NaN, c: 'x', d: 1n } })).toEqual({ metrics: { a: 1 } });
  });

  it('never crashes the runner, whatever it is', () => {
    fc.assert(
      fc.property(fc.anything(), (returned) => {
        const outcome = refusal(returned);
        expect(outcome).toSatisfy((it: object) => 'accepted' in it || (it as { code: string }).code === 'WORKFLOW_BAD_RESULT');
      }),
    );
  });
});

describe('a side call', () => {
  const said = (index: number, content: string, more: Partial<Turn>) =>
    ({ ...turns[index], trainable: true, response: { role: 'assistant', content }, ...more }) as Turn;
  const fork = { cause: 'side_call', from: 0 } as const;
  const sealed = [said(0, 'a', {}), said(1, 'title', { trainable: false, fork }), said(2, 'b', {})];

  it.each([
    [[0, 1, 2], 'none'],
    [[1], 'none'],
    [[0], 'the title'],
    [[1], 'the title'],
    [undefined, 'the title'],
    [undefined, 'none'],
  ])('is graded and trained alike here, on a worker and in verify: %j named, %s returned', async (trainedTurns, output) => {
    const ended = {
      outcome: { kind: 'completed' },
      turns: onlyTrained(sealed, undefined, output),
      unanswered: [],
      result: { output, ...(trainedTurns && { trainedTurns }) },
      artifactsDir: null,
      startedAt: 0,
      endedAt: 1,
    } satisfies Ended;
    const ungraded = async () => ({ kind: 'ungraded', why: 'completed' }) as const;
    const record = await settle(identity, ended, ungraded);
    const again = endedAs(record, null);
    expect(again.turns).toEqual(ended.turns);
    expect(await settle(identity, again, ungraded)).toEqual(record);
  });
});
