import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type FilterRow, rowFilter } from './filter.ts';

function row(more: Partial<FilterRow> = {}): FilterRow {
  return {
    ...{ seq: 1, rolloutId: 'g1-0', groupId: 'g1', taskId: 'task-12', purpose: 'train', outcome: 'truncated', limit: 'turns' },
    ...{ reward: 0.5, success: false, parts: { format: 1, 'my part': 2 }, metrics: { tries: 3 }, turns: 6, tokens: 100 },
    ...{ tools: ['web_Search', 'calculator'], forks: { compaction: 2 }, abandoned: 0, failedCalls: 1, versions: [2, 3] },
    ...{ seconds: 1.5, step: 4, excluded: null, excludedTurns: {} },
    ...more,
  } as FilterRow;
}

const passes = (filter: string, more: Partial<FilterRow> = {}): boolean => rowFilter(filter)(row(more));

describe('a filter', () => {
  const listed = (...lines: readonly string[]) => lines.flatMap((line) => line.split(' ; '));
  const through = listed(
    'reward>=0.5 && turns>5 && tool~"search" ; tool = calculator || reward > 2 ; !(reward<0.2) && !success ; TASK=task-12',
    'limit=turns ; fork=compaction && forks=2 ; version=3 ; step!=none ; excluded=none ; excluded = false ; failedCalls==1',
    'failed-calls>0 ; part.format=1 ; part."my part" = 2 ; metric.tries>2 ; part.nothing = null ; tools=2 ; fork ; !excluded',
    `task~'ASK' ; rollout!~zzz ; tool!=search ; seconds<1e1 ; outcome="truncated" ; success!=true ; tool != none`,
  );
  it.each(['', ...through])('lets through: %s', (filter) => {
    expect(passes(filter)).toBe(true);
  });

  const out = listed(
    'reward<0.5 ; reward>0.1 && turns<3 ; success ; excluded ; limit!=turns ; tool=search ; tool!~SEARCH ; purpose=eval',
    'part.constructor != none ; version<3 ; tool = none',
  );
  it.each(out)('keeps out: %s', (filter) => {
    expect(passes(filter)).toBe(false);
  });

  it.each(['reward<1', 'reward>=0', 'reward!=1', 'reward=0'])('finds no number that is missing: %s', (filter) => {
    expect(passes(filter, { reward: null })).toBe(false);
    expect(passes('reward = none && !(reward != none)', { reward: null })).toBe(true);
  });

  it.each([
    ['rewrad<1', 'filter, character 1: no field "rewrad", did you mean reward?'],
    ['reward<', 'filter, character 8: expected a value after <, found the end'],
    ['reward<x', 'filter, character 8: reward is a number, expected a number or none, found x'],
    ['reward~1', 'filter, character 8: reward is a number, expected < <= > >= = or !=, found ~'],
    ['tool<3', 'filter, character 6: tool is text, expected = != ~ or !~, found <'],
    ['success=none', 'filter, character 9: success is true or false, never none'],
    ['success=maybe', 'filter, character 9: success is true or false, found maybe'],
    ['(turns>1', 'filter, character 9: expected ), found the end'],
    ['turns>1 turns>2', 'filter, character 9: expected &&, || or the end, found turns'],
    ['turns>1 & turns<2', 'filter, character 9: expected &&, found &'],
    ['task="x', 'filter, character 6: expected " to be closed'],
    ['part. > 1', 'filter, character 7: expected a name after part., found >'],
    ['('.repeat(1001), 'filter: expected at most 1000 characters, found 1001'],
  ])('that is wrong says where, and what was expected: %s', (filter, message) => {
    expect(() => rowFilter(filter)).toThrow(expect.objectContaining({ code: 'USAGE', message }));
  });

  it('of any depth does not overflow the stack', () => {
    expect(passes(`${'('.repeat(490)}fork${')'.repeat(490)}`)).toBe(true);
    expect(passes(`${'!'.repeat(990)}fork`)).toBe(true);
  });

  it('binds ! before && before ||, however it is nested', () => {
    type Tree = { text: string; value: boolean };
    const leaf = fc.constantFrom<Tree>(
      { text: 'turns>5', value: true },
      { text: 'success', value: false },
      { text: 'tool~"calc"', value: true },
    );
    const { tree } = fc.letrec<{ tree: Tree }>((tie) => ({
      tree: fc.oneof(
        { maxDepth: 5 },
        leaf,
        tie('tree').map(({ text, value }) => ({ text: `!(${text})`, value: !value })),
        fc.tuple(tie('tree'), tie('tree')).map(([a, b]) => ({ text: `(${a.text})&&(${b.text})`, value: a.value && b.value })),
        fc
          .tuple(leaf, leaf, tie('tree'))
          .map(([a, b, c]) => ({ text: `!${a.text} && ${b.text} || (${c.text})`, value: (!a.value && b.value) || c.value })),
      ),
    }));
    fc.assert(fc.property(tree, ({ text, value }) => text.length > 1000 || passes(text) === value));
  });
});
