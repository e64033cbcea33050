import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import type { Refusal } from '../../http/refusal.ts';
import { type FutureResult, Futures, refused } from './requests.ts';

const reply = (value: object): FutureResult => ({ kind: 'reply', value });
const large = (floats: number): FutureResult => ({
  kind: 'sample',
  reply: { sequences: [{ stopReason: 'stop', tokens: new Int32Array(floats), logprobs: new Float32Array(floats) }] },
});
const kindOf = (work: () => unknown): string => {
  try {
    work();
    return 'kept';
  } catch (thrown) {
    return (thrown as Refusal).row.code;
  }
};

describe('futures', () => {
  it('give the same result as often as it is asked for', async () => {
    const futures = new Futures({ bytes: 1e6, ageMs: 60_000 });
    const future = futures.start(async () => reply({ a: 1 }));
    expect(await futures.wait(future, 1000)).toEqual(reply({ a: 1 }));
    expect(await futures.wait(futures.find(future.id), 1000)).toEqual(reply({ a: 1 }));
  });

  it('cannot be stopped once they are there, and let go of what could have been', async () => {
    const futures = new Futures({ bytes: 1e6, ageMs: 60_000 });
    let stopped = 0;
    const future = futures.start(
      async () => reply({}),
      undefined,
      () => stopped++,
    );
    await futures.done(future);
    future.cancel();
    expect(stopped).toBe(0);
  });

  it('are waited for no longer than was asked, and not at all by a client that hung up', async () => {
    const futures = new Futures({ bytes: 1e6, ageMs: 60_000 });
    const future = futures.start(() => new Promise(() => {}));
    expect(await futures.wait(future, 10)).toBeUndefined();
    expect(await futures.wait(future, 60_000, AbortSignal.timeout(10))).toBeUndefined();
  });

  it('fail with what their work throws, and say whose fault it was', async () => {
    const futures = new Futures({ bytes: 1e6, ageMs: 60_000 });
    const outcomeOf = (thrown: unknown) =>
      futures.wait(
        futures.start(() => {
          throw thrown;
        }),
        1000,
      );
    expect(await outcomeOf(refused('invalid_request', 'bad'))).toEqual({
      kind: 'failed',
      failure: { error: 'bad', category: 'user' },
    });
    expect(await outcomeOf(new Error('broke'))).toMatchObject({ failure: { category: 'server' } });
  });

  it('are forgotten oldest first when their results are too large together, but never the latest or one that is not there yet', async () => {
    const futures = new Futures({ bytes: 10_000, ageMs: 60_000 });
    const pending = futures.start(() => new Promise(() => {}));
    const [first, second, third] = [
      futures.start(async () => large(600)),
      futures.start(async () => large(500)),
      futures.start(async () => large(500)),
    ];
    for (const future of [first, second, third]) await futures.done(future!);
    await sleep(1);
    expect([first, second, third, pending].map((future) => kindOf(() => futures.find(future!.id)))).toEqual([
      'future_gone',
      'kept',
      'kept',
      'kept',
    ]);
    const huge = futures.start(async () => large(1e6));
    expect(await futures.wait(huge, 1000)).toMatchObject({ kind: 'sample' });
    expect(kindOf(() => futures.find(third!.id))).toBe('future_gone');
  });

  it('are forgotten after a while', async () => {
    const futures = new Futures({ bytes: 1e6, ageMs: 5 });
    const future = futures.start(async () => reply({}));
    await futures.done(future);
    await sleep(20);
    expect(kindOf(() => futures.find(future.id))).toBe('future_gone');
    expect(kindOf(() => futures.find('nonsense'))).toBe('unknown_future');
    expect(kindOf(() => new Futures({ bytes: 1, ageMs: 1 }).find(future.id))).toBe('future_gone');
  });
});
