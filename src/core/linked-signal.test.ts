import { getEventListeners } from 'node:events';
import { describe, expect, it } from 'vitest';
import { linkSignals } from './linked-signal.ts';

describe('linked signals', () => {
  it('abort with the first of their sources, also one that was aborted before, and with its reason', () => {
    const [one, two] = [new AbortController(), new AbortController()];
    const { signal } = linkSignals(one.signal, two.signal);
    expect(signal.aborted).toBe(false);
    two.abort('two');
    one.abort('one');
    expect(signal.reason).toBe('two');
    expect(linkSignals(one.signal, two.signal).signal.reason).toBe('one');
  });

  it('leave nothing behind on a source that outlives them', () => {
    const long = new AbortController();
    for (let i = 0; i < 100; i++) {
      const short = new AbortController();
      const linked = linkSignals(long.signal, short.signal);
      if (i % 2 === 0) short.abort();
      linked.release();
      linked.release();
    }
    expect(getEventListeners(long.signal, 'abort')).toEqual([]);
  });

  it('are many on one source with one listener, and each can be released by itself', () => {
    const source = new AbortController();
    const [first, second, third] = [0, 1, 2].map(() => linkSignals(source.signal));
    expect(getEventListeners(source.signal, 'abort')).toHaveLength(1);
    second!.release();
    source.abort('over');
    expect([first, second, third].map((linked) => linked!.signal.aborted)).toEqual([true, false, true]);
    third!.release();
    expect(linkSignals(source.signal).signal.reason).toBe('over');
  });

  it('to the same source twice abort once', () => {
    const source = new AbortController();
    const linked = linkSignals(source.signal, source.signal);
    linked.release();
    source.abort();
    expect(linked.signal.aborted).toBe(false);
  });
});
