import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import type { Refusal } from '../../../http/refusal.ts';
import { type FutureResult, Futures, refused } from './requests.ts';

const reply = (value: object): FutureResult => ({ kind: 'reply', value });
const large = (floats: number): FutureResult => ({
  kind: 'sample',
  reply: { sequences: [{ stopReason: 'stop', tokens: new Int32Array(floats), logprobs: new Float32Array(floats) }] },
});
const kindOf = (futures: Futures, id: string): string => {
  try {
    futures.find(id);
    return 'kept';
  } catch (thrown) {
    return (thrown as Refusal).row.code;
  }
};
const never = () => new Promise<FutureResult>(() => {});

describe('futures', () => {
  const futures = new Futures({ bytes: 1e6, ageMs: 60_000 });

  it('cannot be stopped once they are there, and let go of what could have been', async () => {
    let stopped = 0;
    const work = async () => reply({});
    const future = futures.start(work, undefined, () => stopped++);
    await futures.done(future);
    future.cancel();
    expect(stopped).toBe(0);
  });

  it('are waited for no longer than was asked, and not at all by a client that hung up', async () => {
    const future = futures.start(never);
    expect(await futures.wait(future, 10)).toBeUndefined();
    expect(await futures.wait(future, 60_000, AbortSignal.timeout(10))).toBeUndefined();
  });

  it('fail with what their work throws, and say whose fault it was', async () => {
    const outcomeOf = (thrown: unknown) =>
      futures.wait(
        futures.start(() => Promise.reject(thrown)),
        1000,
      );
    const failure = { error: 'bad', category: 'user' };
    expect(await outcomeOf(refused('invalid_request', 'bad'))).toEqual({ kind: 'failed', failure });
    expect(await outcomeOf(new Error('broke'))).toMatchObject({ failure: { category: 'server' } });
  });

  it('are forgotten oldest first when their results are too large together, but never the latest or one that is not there yet', async () => {
    const few = new Futures({ bytes: 10_000, ageMs: 60_000 });
    const pending = few.start(never);
    const settled = [600, 500, 500].map((floats) => few.start(async () => large(floats)));
    for (const future of settled) await few.done(future);
    await sleep(1);
    const kinds = [...settled, pending].map(({ id }) => kindOf(few, id));
    expect(kinds).toEqual(['future_gone', 'kept', 'kept', 'kept']);
    const huge = few.start(async () => large(1e6));
    expect(await few.wait(huge, 1000)).toMatchObject({ kind: 'sample' });
    expect(kindOf(few, settled[2]!.id)).toBe('future_gone');
  });

  it('are forgotten after a while', async () => {
    const short = new Futures({ bytes: 1e6, ageMs: 5 });
    const { id } = short.start(async () => reply({}));
    await sleep(20);
    const kinds = [kindOf(short, id), kindOf(futures, id), kindOf(short, 'x')];
    expect(kinds).toEqual(['future_gone', 'future_gone', 'unknown_future']);
  });
});
