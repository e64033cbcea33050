import { setImmediate as nextTurn } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { Turns } from './turns.ts';

describe('turns', () => {
  it('go in order, one per turn of the event loop, those that come meanwhile last', async () => {
    const turns = new Turns();
    const gone: string[] = [];
    turns.enter(() => {
      gone.push('first');
      turns.enter(() => gone.push('meanwhile'));
    });
    turns.enter(() => gone.push('second'));
    expect(gone).toEqual([]);
    for (const expected of [['first'], ['first', 'second'], ['first', 'second', 'meanwhile']]) {
      await nextTurn();
      expect(gone).toEqual(expected);
    }
  });

  it('go on after the line was empty, entered from outside or from the last one', async () => {
    const turns = new Turns();
    let gone = 0;
    turns.enter(() => turns.enter(() => gone++));
    for (let i = 0; i < 3; i++) await nextTurn();
    turns.enter(() => gone++);
    await nextTurn();
    expect(gone).toBe(2);
  });
});
