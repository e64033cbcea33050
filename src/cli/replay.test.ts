import { stripVTControlCharacters } from 'node:util';
import { expect, it } from 'vitest';
import type { Replay } from '../audit/replay.ts';
import type { Trajectory } from '../core/types.ts';
import { differenceLines } from './replay.ts';

const shown = (found: Partial<Replay>): string => {
  const trajectory = { outcome: { kind: 'completed' } } as Trajectory;
  const lines = differenceLines({ trajectory, first: null, different: 0, notMade: [], extra: 0, changes: [], ...found });
  return stripVTControlCharacters(lines.join('\n'));
};

it('a difference is shown where it is, in long texts, ids and values that are no texts', () => {
  const long = (end: string) => ({ role: 'tool', content: `${'🙂'.repeat(300)}${end}`, tool_call_id: 'c' });
  const first = { turn: 2, thread: 'main', message: 5, was: long('3'), is: long('4\u001b[2J') };
  const place = 'main · the call of turn 2 differs at message 5\n';
  const before = `…${'🙂'.repeat(30)}`;
  expect(shown({ first, different: 1 })).toBe(
    `${place}    was ${before}3\n    is  ${before}4·[2J\nNot as recorded · 1 call asked something else`,
  );
  const ids = {
    ...first,
    was: { role: 'tool', content: 'x', tool_call_id: 'a' },
    is: { role: 'tool', content: 'x', tool_call_id: 'b' },
  };
  expect(shown({ first: ids, different: 1 })).toContain('"tool_call_id":"a"}');
  const changes = [{ what: 'output' as const, was: undefined, is: 0.5 }];
  expect(shown({ changes, notMade: [3], extra: 2 })).toBe(
    'another output\n    was nothing\n    is  0.5\nNot as recorded · not made: the call of turn 3 · 2 calls without a recorded answer',
  );
  expect(shown({})).toBe('As recorded');
});
