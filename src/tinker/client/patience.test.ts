/** How long a server that is away is waited for. */
import { describe, expect, it, vi } from 'vitest';
import { Downtime } from '../../core/async.ts';
import { Patience, Trouble } from './patience.ts';

const signal = new AbortController().signal;

describe('patience', () => {
  it('goes with a downtime that lasts from the first failure until no request is in trouble, answered or not', async () => {
    const downtime = new Downtime();
    const trouble = new Trouble(() => {}, downtime);
    const [first, second] = [new Patience(1000, signal), new Patience(1000, signal)];
    trouble.begins(first, 'away');
    trouble.begins(second, 'away');
    trouble.ends(first, true);
    await new Promise((resolve) => setTimeout(resolve, 30));
    const running = downtime.milliseconds;
    expect(running).toBeGreaterThan(20);
    trouble.ends(second, false);
    const over = downtime.milliseconds;
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(downtime.milliseconds).toBe(over);
  });

  it('is not given anew to a request that takes the place of one that was given up', async () => {
    const trouble = new Trouble(() => {});
    const first = new Patience(80, signal);
    trouble.begins(first, 'away');
    await first.wait(0, trouble.silentSince);
    trouble.ends(first, false);
    await new Promise((resolve) => setTimeout(resolve, 80));
    const second = new Patience(80, signal);
    trouble.begins(second, 'still away');
    expect(await second.wait(0, trouble.silentSince)).toBe(false);
  });

  it('is not used up or stretched when the machine’s clock is set', async () => {
    const clock = vi.spyOn(Date, 'now');
    try {
      const patience = new Patience(5000, signal);
      expect(await patience.wait()).toBe(true);
      clock.mockReturnValue(Date.UTC(2100, 0));
      expect(await patience.wait()).toBe(true);
    } finally {
      clock.mockRestore();
    }
  });

  it('is given anew once the server has answered anyone', async () => {
    const trouble = new Trouble(() => {});
    const first = new Patience(80, signal);
    const second = new Patience(80, signal);
    trouble.begins(first, 'away');
    await new Promise((resolve) => setTimeout(resolve, 100));
    trouble.ends(second, true);
    const third = new Patience(5000, signal);
    trouble.begins(third, 'away again');
    expect(await third.wait(0, trouble.silentSince)).toBe(true);
  });
});
