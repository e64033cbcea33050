import { getEventListeners } from 'node:events';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  deadlineSignal,
  linkSignals,
  Mutex,
  mapConcurrently,
  mapYielding,
  openingWith,
  orAborted,
  Semaphore,
  yieldToEventLoop,
} from './async.ts';

describe('a semaphore', () => {
  it('lets no more in at once than its limit, in the order they came', async () => {
    await fc.assert(
      fc.asyncProperty(fc.integer({ min: 1, max: 4 }), fc.integer({ min: 0, max: 20 }), async (count, takers) => {
        const semaphore = new Semaphore(count);
        let held = 0;
        let most = 0;
        const order: number[] = [];
        const one = async (n: number): Promise<void> => {
          using _permit = await semaphore.acquire();
          order.push(n);
          most = Math.max(most, ++held);
          await Promise.resolve();
          held--;
        };
        await Promise.all(Array.from({ length: takers }, (_, n) => one(n)));
        expect(held).toBe(0);
        expect(most).toBeLessThanOrEqual(count);
        expect(order).toEqual(order.toSorted((a, b) => a - b));
      }),
    );
  });

  it('passes over whoever stopped waiting', async () => {
    const semaphore = new Semaphore(1);
    const first = await semaphore.acquire();
    const leaving = new AbortController();
    const second = semaphore.acquire(leaving.signal);
    const third = semaphore.acquire();
    leaving.abort(new Error('gone'));
    await expect(second).rejects.toThrow('gone');
    first[Symbol.dispose]();
    await (await third)[Symbol.dispose]();
    expect(semaphore.held).toBe(0);
    using _again = await semaphore.acquire();
  });

  it('counts a permit that is given back twice once', async () => {
    const semaphore = new Semaphore(1);
    const permit = await semaphore.acquire();
    permit[Symbol.dispose]();
    permit[Symbol.dispose]();
    using _first = await semaphore.acquire();
    const second = semaphore.acquire();
    expect(await Promise.race([second, Promise.resolve('waits')])).toBe('waits');
  });
});

it('a mutex does one thing after the other, also behind one that failed', async () => {
  const mutex = new Mutex();
  const order: string[] = [];
  const work = async (name: string): Promise<string> => {
    order.push(`${name} begins`);
    await nextTurn();
    order.push(`${name} ends`);
    if (name === 'a') throw new Error('a failed');
    return name;
  };
  const [a, b] = await Promise.allSettled([mutex.run(() => work('a')), mutex.run(() => work('b'))]);
  await mutex.idle();
  expect(order).toEqual(['a begins', 'a ends', 'b begins', 'b ends']);
  expect([a, b]).toMatchObject([{ status: 'rejected' }, { value: 'b' }]);
});

describe('mapConcurrently', () => {
  it('gives results in the order of the items, within the concurrency', async () => {
    let running = 0;
    let most = 0;
    const results = await mapConcurrently([5, 1, 3, 0, 2], 2, async (ms, index) => {
      most = Math.max(most, ++running);
      await sleep(ms);
      running--;
      return `${index}:${ms}`;
    });
    expect(results).toEqual(['0:5', '1:1', '2:3', '3:0', '4:2']);
    expect(most).toBe(2);
  });

  it('stops starting at the first error and throws it after the running ones ended', async () => {
    let begun = 0;
    let ended = 0;
    const run = mapConcurrently([1, 2, 3, 4], 2, async () => {
      if (++begun === 2) throw new Error('second');
      await sleep(10);
      ended++;
    });
    await expect(run).rejects.toThrow('second');
    expect({ begun, ended }).toEqual({ begun: 2, ended: 1 });
  });

  it('gives nothing when it was halted before the end, and everything when the halt came too late', async () => {
    const halt = new AbortController();
    const begun: number[] = [];
    const early = mapConcurrently(
      [0, 1, 2, 3],
      1,
      async (item) => {
        begun.push(item);
        if (item === 1) halt.abort();
      },
      halt.signal,
    );
    expect(await early).toBeUndefined();
    expect(begun).toEqual([0, 1]);
    const late = new AbortController();
    const halting = async (item: number): Promise<number> => {
      late.abort();
      return item;
    };
    expect(await mapConcurrently([7], 1, halting, late.signal)).toEqual([7]);
    expect(await mapConcurrently([], 3, () => Promise.reject(new Error('never')))).toEqual([]);
  });
});

function keepLoopBusy(milliseconds: number): void {
  const end = performance.now() + milliseconds;
  while (performance.now() < end);
}

describe('yieldToEventLoop', () => {
  it('makes nobody wait while the loop is not busy', async () => {
    for (let i = 0; i < 2; i++) {
      await nextTurn();
      expect(yieldToEventLoop()).toBeUndefined();
    }
  });

  it.each([
    { each: 0, most: 100, least: 20 },
    { each: 5, most: 3, least: 1 },
    { each: 20, most: 1, least: 1 },
  ])('lets as many go on per turn as fit, in order: work of $each ms', async ({ each, most, least }) => {
    await nextTurn();
    yieldToEventLoop();
    keepLoopBusy(20);
    const went: number[] = [];
    const crowd = Array.from({ length: each === 0 ? 100 : 6 }, async (_, place) => {
      // Behind a function that waits: the work comes a few microtasks after the release.
      await (async () => await yieldToEventLoop())();
      went.push(place);
      keepLoopBusy(each);
    });
    const perTurn: number[] = [];
    while (went.length < crowd.length) {
      const before = went.length;
      await nextTurn();
      if (went.length > before) perTurn.push(went.length - before);
    }
    await Promise.all(crowd);
    expect(went).toEqual(went.toSorted((a, b) => a - b));
    expect(Math.max(...perTurn)).toBeLessThanOrEqual(most);
    expect(Math.max(...perTurn)).toBeGreaterThanOrEqual(least);
    await nextTurn();
    await nextTurn();
    expect(yieldToEventLoop()).toBeUndefined();
  });

  it('lets nobody overtake those who wait', async () => {
    await nextTurn();
    yieldToEventLoop();
    keepLoopBusy(20);
    const went: string[] = [];
    const early = Array.from({ length: 4 }, () =>
      yieldToEventLoop()!.then(() => {
        keepLoopBusy(5);
        went.push('early');
      }),
    );
    await nextTurn();
    const late = yieldToEventLoop()?.then(() => went.push('late'));
    await Promise.all([...early, late]);
    expect(went.at(-1)).toBe('late');
  });

  it('comes between the items of mapYielding', async () => {
    let turns = 0;
    const counting = setInterval(() => turns++, 0);
    const mapped = await mapYielding([1, 2, 3], (item) => {
      keepLoopBusy(15);
      return item * 2;
    });
    clearInterval(counting);
    expect(mapped).toEqual([2, 4, 6]);
    expect(turns).toBeGreaterThan(0);
  });
});

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

it('deadlineSignal aborts when the time is over or with a source, and never after its release', async () => {
  using late = deadlineSignal(1, () => 'late');
  const source = new AbortController();
  using stopped = deadlineSignal(60_000, () => 'late', source.signal);
  const released = deadlineSignal(1, () => 'late', source.signal);
  released.release();
  source.abort('stopped');
  await sleep(10);
  expect([late, stopped, released].map(({ signal }) => signal.reason)).toEqual(['late', 'stopped', undefined]);
});

it('orAborted gives the result, or the reason where that comes first, and leaves no listener', async () => {
  const stop = new AbortController();
  expect(await orAborted(Promise.resolve(1), stop.signal)).toBe(1);
  expect(getEventListeners(stop.signal, 'abort')).toEqual([]);
  const hanging = orAborted(new Promise(() => undefined), stop.signal);
  stop.abort(new Error('stop'));
  await expect(hanging).rejects.toThrow('stop');
  await expect(orAborted(new Promise(() => undefined), stop.signal)).rejects.toThrow('stop');
});

it('openingWith closes everything in reverse where opening the rest fails, and tells why that failed', async () => {
  const closed: string[] = [];
  const opening = openingWith(async (opened) => {
    opened.defer(() => void closed.push('first'));
    opened.defer(() => Promise.reject(new Error('no teardown')));
    opened.defer(() => void closed.push('last'));
    throw new Error('no port');
  });
  await expect(opening).rejects.toThrow('no port');
  expect(closed).toEqual(['last', 'first']);
});
