/** What the first screen of help holds, how `--set` reads names and values, and what messages call settings. */
import { describe, expect, it } from 'vitest';
import { flagOf, rowsOf } from '../settings/setting-rows.ts';
import { asTyped, settingsIn } from './flags.ts';
import { buildProgram } from './program.ts';

const optionsOf = (name: string) => buildProgram().commands.find((one) => one.name() === name)!.options;

it.each(['train', 'eval'] as const)(
  'the first screen of %s --help has at most 22 options, and every setting is a flag',
  (verb) => {
    const options = optionsOf(verb);
    // With --help.
    expect(options.filter(({ hidden }) => !hidden).length + 1).toBeLessThanOrEqual(22);
    const flags = rowsOf(verb).flatMap((row) => (flagOf(row) === '' ? [] : [`--${flagOf(row)}`]));
    expect(flags.filter((flag) => !options.some(({ long }) => long === flag))).toEqual([]);
  },
);

describe('--set', () => {
  const set = (...texts: readonly string[]) => settingsIn('train', { set: texts, json: false }, optionsOf('train'));

  it('takes names as flags and as config files have them, and values as flags do', () => {
    const texts = ['lora-rank=8', 'clipHigh=0.3', 'limits.turns=3', 'deadline=90s', 'baseURL=http://h', 'tensorboard=logs'];
    expect(set(...texts)).toEqual({
      json: false,
      loraRank: 8,
      clipHigh: 0.3,
      'limits.turns': 3,
      'limits.deadlineMs': 90_000,
      baseURL: 'http://h',
      tensorboard: 'logs',
    });
    expect(set('price=0.15,0.60', 'trainable=a, b', 'adam-beta2=0.9', 'steps=3', 'steps=4')).toMatchObject({
      price: [0.15, 0.6],
      trainable: ['a', 'b'],
      'adam.beta2': 0.9,
      steps: 4,
    });
  });

  it.each(['config=a.ts', 'set=x', 'n=3', 'json', 'clip-high=', '=3', 'steps=1e3'])('refuses %s by name', (text) => {
    expect(() => set(text)).toThrow(expect.objectContaining({ code: 'USAGE', message: expect.stringMatching(/^--set \S+: /) }));
  });
});

it('messages call a setting what was typed, and leave it as it is where nothing was', () => {
  const message = 'baseURL: expected x; limits.turns was 16, now it is 5; klEstimator: expected kl above 0';
  const argv = ['train', '--base-url=y', '--set', 'turns=5'];
  expect(asTyped(message, argv)).toBe(
    '--base-url: expected x; --set turns was 16, now it is 5; klEstimator: expected kl above 0',
  );
  expect(asTyped('the run was begun with seed 1, now it is 2', ['--seed', '2'])).toBe(
    'the run was begun with --seed 1, now it is 2',
  );
  const already = '--set learningRate: expected a number';
  expect(asTyped(already, ['--set', 'learningRate=x'])).toBe(already);
});
