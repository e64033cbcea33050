import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { Semaphore } from '../core/async.ts';
import { Deadline } from './remote-rollout.ts';

const never = new AbortController().signal;

describe('a deadline', () => {
  it('gives back a slot that comes in the moment in which nobody wants it any more', async () => {
    const slots = new Semaphore(1);
    const held = await slots.acquire();
    const cancel = new AbortController();
    const entering = new Deadline('workflow', 60).acquire(slots, cancel.signal);
    await sleep(1);
    const giving = held[Symbol.dispose]();
    cancel.abort(new Error('enough'));
    await expect(entering).rejects.toThrow('enough');
    await giving;
    await expect(slots.acquire(AbortSignal.timeout(1000))).resolves.toBeDefined();
  });

  it('says how much of it was spent queued also when it ends later', async () => {
    const slots = new Semaphore(1);
    const held = await slots.acquire();
    const deadline = new Deadline('workflow', 0.3);
    setTimeout(() => void held[Symbol.dispose](), 150);
    using _slot = await deadline.acquire(slots, never);
    await expect(deadline.within(never, () => new Promise(() => undefined))).rejects.toThrow(
      /^workflow exceeded its 0\.3s deadline \(0\.\ds of it spent queued\)$/,
    );
  });
});
