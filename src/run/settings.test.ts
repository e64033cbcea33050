import { describe, expect, it } from 'vitest';
import { learningRateAt, TRAIN_DEFAULTS, trainSettings } from './settings.ts';

describe('trainSettings', () => {
  it('fills in what is not given; undefined is not given', () => {
    const settings = trainSettings({ entry: 'somewhere/agent.ts', steps: 3, kl: undefined as never });
    expect(settings).toMatchObject({ ...TRAIN_DEFAULTS, steps: 3, tasks: 'somewhere/train.jsonl', heldOut: undefined });
    expect(settings.run).toMatch(/^runs\/somewhere-\d{8}-\d{6}$/);
  });

  it('refuses what cannot be, all of it at once, each by its name', () => {
    const wrong = { steps: 0, group: 1, staleness: -1, temperature: 0, algorithm: 'ppo', kl: Number.NaN, maxTime: 0, colour: 1 };
    const message = messageFrom(() => trainSettings({ entry: 'agent.ts', ...(wrong as object) }));
    for (const name of Object.keys(wrong)) expect(message).toContain(name);
  });

  it.each([
    ['limits', { turns: 1, tokens: 0, deadlineMs: 5 }],
    ['adam', { beta1: 2 }],
    ['concurrency', 1.5],
    ['trainable', []],
    ['learningRate', Number.POSITIVE_INFINITY],
    ['clipLow', 1.5],
    ['checkpointEvery', 0],
    ['threads', 0],
  ])('refuses %s %j', (name, value) => {
    expect(messageFrom(() => trainSettings({ entry: 'agent.ts', [name]: value }))).toContain(name);
  });
});

describe('the learning rate', () => {
  const settings = { steps: 11, warmupSteps: 2, learningRate: 1 };
  it('is scaled up over the first steps and falls to a tenth', () => {
    expect(learningRateAt(1, settings)).toBeCloseTo(0.5);
    expect(learningRateAt(2, settings)).toBeCloseTo(0.91);
    expect(learningRateAt(11, settings)).toBeCloseTo(0.1);
    expect(learningRateAt(1, { ...settings, warmupSteps: 0 })).toBe(1);
    expect(learningRateAt(1, { ...settings, steps: 1 })).toBeCloseTo(0.5);
  });
});

function messageFrom(fn: () => unknown): string {
  try {
    fn();
  } catch (thrown) {
    expect(thrown).toMatchObject({ code: 'USAGE' });
    return (thrown as Error).message;
  }
  throw new Error('expected it to be refused');
}
