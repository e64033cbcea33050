import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { currentRollout, runInRollout } from './context.ts';
import type { WorkflowContext } from './contracts.ts';
import { boundary, messageOf, TrainyardError } from './errors.ts';

const contextNamed = (rolloutId: string): WorkflowContext => ({ rolloutId }) as WorkflowContext;

describe('the ambient rollout', () => {
  it('is absent outside a rollout', () => {
    expect(currentRollout()).toBeUndefined();
  });

  it('follows awaits and timers, and keeps concurrent rollouts apart', async () => {
    const seen = await Promise.all(
      ['a', 'b', 'c'].map((name) =>
        runInRollout(contextNamed(name), async () => {
          await sleep(5);
          return currentRollout()?.rolloutId;
        }),
      ),
    );
    expect(seen).toEqual(['a', 'b', 'c']);
  });

  it('nests: the inner rollout sees itself, the outer one is back afterwards', async () => {
    await runInRollout(contextNamed('outer'), async () => {
      await runInRollout(contextNamed('inner'), async () => {
        await sleep(1);
        expect(currentRollout()?.rolloutId).toBe('inner');
      });
      expect(currentRollout()?.rolloutId).toBe('outer');
    });
  });
});

describe('boundary', () => {
  it('wraps a foreign error once, with what was being done and its cause', async () => {
    const cause = new Error('disk on fire');
    const error = await boundary('STORE_FAILED', 'writing', () => {
      throw cause;
    }).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(TrainyardError);
    expect(error).toMatchObject({ code: 'STORE_FAILED', boundary: 'store', message: 'writing: disk on fire', cause });
  });

  it('lets typed errors pass through', async () => {
    const typed = new TrainyardError('USAGE', 'no');
    await expect(boundary('STORE_FAILED', 'writing', () => Promise.reject(typed))).rejects.toBe(typed);
  });
});

it.each([
  ['a null prototype', Object.create(null)],
  ['a throwing toString', { toString: () => JSON.parse('no') as string }],
  ['a symbol', Symbol('s')],
  ['several failures to close', new SuppressedError(new Error('second'), new Error('first'))],
  ['an error without text', Object.assign(new Error('x'), { message: undefined })],
])('messageOf gives text for %s', (_, value) => {
  expect(typeof messageOf(value)).toBe('string');
});
