import { describe, expect, it } from 'vitest';
import { gradedRollout, trainedTurn } from '../../test/fixtures/trained-rows.ts';
import { misfitOf, trajectorySchema } from './schemas.ts';

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
