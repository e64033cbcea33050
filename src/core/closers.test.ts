import { describe, expect, it } from 'vitest';
import { Closers, openingWith } from './async.ts';

describe('what was opened', () => {
  it('is closed in reverse, all of it, also where closing some of it fails', async () => {
    const closed: string[] = [];
    const closers = new Closers();
    closers.defer(() => closed.push('first'));
    closers.defer(async () => {
      throw new Error('no teardown');
    });
    closers.defer(() => closed.push('last'));
    await expect(closers[Symbol.asyncDispose]()).rejects.toThrow('no teardown');
    expect(closed).toEqual(['last', 'first']);
    await closers[Symbol.asyncDispose]();
    expect(closed).toHaveLength(2);
  });

  it('is closed where opening the rest fails, and why it failed is what is told', async () => {
    let isClosed = false;
    const opening = openingWith(async (closers) => {
      closers.defer(() => {
        isClosed = true;
      });
      closers.defer(() => {
        throw new Error('no teardown');
      });
      throw new Error('no port');
    });
    await expect(opening).rejects.toThrow('no port');
    expect(isClosed).toBe(true);
  });
});
