import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { z } from 'zod';
import { manifestOf, randomTrajectory } from '../../packages/testing/src/trajectories.ts';
import { gradedRollout, trainedTurn } from '../../test/fixtures/trained-rows.ts';
import { FORK_CAUSES } from '../core/types.ts';
import { manifestSchema, markSchema, misfitOf, trajectorySchema } from './schemas.ts';

const said = { role: 'user', content: 'hello' };

function trajectoryOf(...requests: readonly object[]): object {
  const said = { stopReason: 'stop', response: { role: 'assistant', content: 'hi' }, startedAt: 0, endedAt: 0 };
  const turns = requests.map((request, index) => ({ ...trainedTurn(index), ...said, request }));
  const identity = { taskId: 't', purpose: 'train', outcome: { kind: 'completed' } };
  return { ...gradedRollout('r', { value: 1 }), ...identity, turns, startedAt: 0, endedAt: 0 };
}

const misfit = (...requests: readonly object[]) => misfitOf(trajectorySchema, trajectoryOf(...requests));

describe('the shape of a trajectory', () => {
  it('is fitted by turns that share their messages', () => {
    expect(misfit({ messages: [said], tools: [] }, { messages: [said, said], tools: [] })).toBeUndefined();
  });

  it('names the first message that is none, by its place, whatever came before', () => {
    const bad = { role: 'user', content: 3 };
    const later = { messages: [said, said, bad], tools: [] };
    expect(misfit({ messages: [said], tools: [] }, later, later)).toMatch(
      /^turns\.1\.request\.messages\.2\.content: Invalid input/,
    );
    expect(misfit({ messages: [null], tools: [] })).toMatch(/^turns\.0\.request\.messages\.0: Invalid input: expected object/);
    expect(misfit({ messages: said, tools: [] })).toMatch(/^turns\.0\.request\.messages: Invalid input: expected array/);
    expect(misfit({ tools: [] })).toMatch(/^turns\.0\.request\.messages: Invalid input: expected array/);
    const tools = [{ type: 'function', function: {} }];
    expect(misfit({ messages: [], tools })).toMatch(
      /^turns\.0\.request\.tools\.0\.function\.name: Invalid input: expected string/,
    );
  });

  it('is not fitted by what was a message in an earlier record and is none now', () => {
    const changing = { role: 'user', content: 'hello' as unknown };
    expect(misfit({ messages: [changing], tools: [] })).toBeUndefined();
    changing.content = 3;
    expect(misfit({ messages: [changing], tools: [] })).toMatch(/^turns\.0\.request\.messages\.0\.content/);
  });
});

describe('the quick check', () => {
  const ODD = [
    '',
    'x',
    0,
    -1,
    0.5,
    2 ** 53,
    Number.NaN,
    true,
    null,
    [],
    [null],
    {},
    { a: 1 },
    { kind: 'graded' },
    new Float32Array(3),
  ];
  const optional = {
    constrained: { tool: 'x' },
    fork: { cause: FORK_CAUSES[0], from: 0 },
    usage: { promptTokens: 1, completionTokens: 2 },
  };

  /** Follows `steps` into the record and replaces what is there, or removes it. */
  function damaged(record: object, steps: readonly number[], odd: unknown): object {
    const copy = structuredClone(record);
    let at = copy as Record<string, unknown>;
    for (const [place, step] of steps.entries()) {
      const keys = Object.keys(at);
      const key = keys[step % keys.length];
      const inner = key === undefined ? undefined : at[key];
      if (place < steps.length - 1 && typeof inner === 'object' && inner !== null && !ArrayBuffer.isView(inner)) {
        at = inner as Record<string, unknown>;
        continue;
      }
      if (odd === undefined && !Array.isArray(at)) delete at[key ?? ''];
      else at[key ?? (Array.isArray(at) ? '0' : 'more')] = odd ?? null;
      break;
    }
    return copy;
  }

  it('agrees with zod on every record, whole or damaged', () => {
    const steps = fc.array(fc.nat(40), { minLength: 1, maxLength: 6 });
    const cases = fc.record({ seed: fc.nat(500), steps, odd: fc.constantFrom(undefined, ...ODD), kind: fc.nat(9) });
    const verdicts = new Set<boolean>();
    fc.assert(
      fc.property(cases, ({ seed, steps, odd, kind }) => {
        const { turns, ...rest } = randomTrajectory(seed);
        const call = { thread: 't', role: 'r', promptTokens: 1, sampledTokens: 0, turnsBefore: 0, startedAt: 0, endedAt: 0 };
        const more = seed % 5 === 0 ? { unanswered: [call], returned: { success: true } } : {};
        const richer = turns.map((turn) => (seed % 2 === 0 ? { ...turn, ...optional } : turn));
        const trajectory = { ...rest, ...more, turns: richer };
        const manifest = manifestOf(1 + (seed % 3), ['a', 'b'], { stale: { policyVersion: 0, most: 1, rule: 'drop' } });
        const mark = { rolloutId: 'a', turn: 1, excluded: true, reason: 'x', at: 0 };
        const others: readonly (readonly [z.ZodType, object])[] = [
          [manifestSchema, manifest],
          [markSchema, mark],
        ];
        const [schema, record] = others[kind] ?? ([trajectorySchema, trajectory] as const);
        for (const value of [record, damaged(record, steps, odd)]) {
          const { success } = schema.safeParse(value);
          if (value === record) expect(success).toBe(true);
          expect(misfitOf(schema, value) === undefined).toBe(success);
          verdicts.add(success);
        }
      }),
      { numRuns: 400 },
    );
    expect(verdicts.size).toBe(2);
  });
});
