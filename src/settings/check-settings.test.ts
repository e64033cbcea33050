import { describe, expect, it } from 'vitest';
import { defaultThreads } from '../engines/embedded/embedded-model.ts';
import { DEFAULT_MEMORY_MB } from '../grading/pool.ts';
import { evaluationSettings, trainSettings } from './check-settings.ts';
import { rowsOf, tidyRows } from './row-ranges.ts';
import { TRAIN_DEFAULTS } from './setting-rows.ts';
import { learningRateAt } from './settings.ts';

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
    ['stale', 'keep'],
    ['checkpointEvery', 0],
    ['threads', 0],
    ['dualClip', 1],
    ['isCap', 1],
    ['isFloor', 2],
  ])('refuses %s %j', (name, value) => {
    expect(messageFrom(() => trainSettings({ entry: 'agent.ts', [name]: value }))).toContain(name);
  });
});

describe('a loss', () => {
  const settingsOf = (more: object) => trainSettings({ entry: 'agent.ts', ...more });

  it('is ppo, or decoupled_ppo where rollouts may run ahead, unless one is given', () => {
    expect([{}, { staleness: 2 }, { staleness: 2, loss: 'ppo' }].map((more) => settingsOf(more).loss)).toEqual([
      ...['ppo', 'decoupled_ppo', 'ppo'],
    ]);
  });

  it.each([
    ['dualClip', { dualClip: 3, loss: 'gspo' }],
    ['isCap', { isCap: 2 }],
    ['dpoBeta', { dpoBeta: 0.1 }],
    ['algorithm', { loss: 'dpo', algorithm: 'rloo' }],
    ['kl', { loss: 'dpo', kl: 0.1 }],
    ['klEstimator', { klEstimator: 'k1' }],
    ['overlongFactor', { overlongFactor: 1 }],
    ['overlongBuffer', { overlongBuffer: 5000 }],
    ['overlongBuffer', { overlongBuffer: 50, turnDiscount: 0.9 }],
  ])('has no use for %s among %j, which is refused', (name, more) => {
    expect(messageFrom(() => settingsOf(more))).toMatch(new RegExp(`^${name}: expected`));
  });
});

it('has the defaults of those who compute and grade', () => {
  const { threads, graderRetries, graderMemoryMb } = TRAIN_DEFAULTS;
  expect([threads, graderRetries, graderMemoryMb]).toEqual([defaultThreads(), 1, DEFAULT_MEMORY_MB]);
});

it('the learning rate is scaled up over the first steps and falls to a tenth', () => {
  const settings = { steps: 11, warmupSteps: 2, learningRate: 1 };
  expect([1, 2, 11].map((step) => learningRateAt(step, settings).toFixed(4))).toEqual(['0.5000', '0.9100', '0.1000']);
  expect(learningRateAt(1, { ...settings, warmupSteps: 0 })).toBe(1);
  expect(learningRateAt(1, { ...settings, steps: 1 })).toBeCloseTo(0.5);
});

describe('rows of a task file', () => {
  it('are sorted, each once, and all of them where none are named', () => {
    expect(rowsOf(undefined, 3)).toEqual([1, 2, 3]);
    expect(rowsOf('10-12,3,7,11-13, 3', 20)).toEqual([3, 7, 10, 11, 12, 13]);
    expect(tidyRows('10-12,3,7,11-13, 3')).toBe('3,7,10-13');
    expect(tidyRows('2,1,3')).toBe('1-3');
  });

  it.each(['', '3,,5', 'x', '-3', '3-', '1.5', '3 5', '0-4', '5-3'])('are refused when they are %j', (text) => {
    expect(() => rowsOf(text, 20)).toThrow(expect.objectContaining({ code: 'USAGE' }));
  });

  it('are refused with everything that is wrong at once', () => {
    expect(() => tidyRows('5-3,x,0')).toThrow(/5 to 3 is the wrong way round; .*"x".*; rows are counted from 1, found "0"/);
  });

  it('are refused past the end of the file, however far, without counting them', () => {
    expect(() => rowsOf('3-900000000000000', 20)).toThrow('from 1 to 20, the last of the file, found 900000000000000');
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

describe('settings of a model behind an API', () => {
  const api = { entry: 'agent.ts', engine: 'openai', model: 'gpt', baseURL: 'http://localhost:8000/v1' } as const;

  it('have limits of their own, and let the agent choose the temperature unless one is given', () => {
    const usual = evaluationSettings(api);
    expect(usual).toMatchObject({ model: 'gpt', concurrency: 16, callTokens: 65_536, temperature: 0, agentTemperature: true });
    expect(usual.limits).toEqual({ turns: 16, tokens: 65_536, deadlineMs: 600_000 });
    expect(evaluationSettings({ ...api, temperature: 0 }).agentTemperature).toBeUndefined();
    expect(evaluationSettings({ entry: 'agent.ts' }).agentTemperature).toBeUndefined();
    // What a run recorded is taken as it was, though all of it is then given.
    expect(evaluationSettings({ ...usual })).toEqual(usual);
  });

  it.each([
    [{ ...api, baseModel: 'gpt' }, /^baseModel: expected engine tinker/],
    [{ entry: 'agent.ts', loraAlpha: 8 }, /^loraAlpha: expected none here, it is a setting of train, preflight, sft$/],
    [{ ...api, loraRank: 8 }, /^loraRank: expected engine embedded or tinker/],
    [{ ...api, baseURL: 'http://user:secret@localhost/v1' }, /^baseURL: expected an address without a password/],
    [{ entry: 'agent.ts', baseURL: 'http://localhost:8000/v1' }, /^baseURL: expected engine openai, anthropic or tinker/],
    [{ entry: 'agent.ts', apiKeyEnv: 'KEY' }, /^apiKeyEnv: expected engine openai or anthropic/],
    [
      { entry: 'agent.ts', engine: 'anthropic', model: 'claude', apiKeyEnv: 'NOT_SET' },
      /^no NOT_SET is set, .* no baseURL of another server/,
    ],
  ] as const)('are refused by name where they mean nothing: %#', (request, message) => {
    expect(() => evaluationSettings(request)).toThrow(
      expect.objectContaining({ code: 'USAGE', message: expect.stringMatching(message) }),
    );
  });
});
