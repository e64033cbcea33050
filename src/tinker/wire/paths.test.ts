import { describe, expect, it } from 'vitest';
import { formatWeightsPath, parseWeightsPath } from './paths.ts';
import { WireError } from './wire-error.ts';

describe('the path of saved weights', () => {
  it.each(['weights', 'sampler_weights'] as const)('is read as it is written: %s', (kind) => {
    const path = { modelId: 'model-1_a', kind, name: `${'n'.repeat(254)}9` };
    expect(formatWeightsPath(path)).toBe(`tinker://model-1_a/${kind}/${path.name}`);
    expect(parseWeightsPath(formatWeightsPath(path))).toEqual(path);
  });

  it.each([
    'model/weights/a',
    'file://model/weights/a',
    'tinker://model/weights',
    'tinker://model/weights/',
    'tinker:///weights/a',
    'tinker://model/weights/a/b',
    'tinker://model/other/a',
    'tinker://model/weights/..',
    'tinker://../weights/a',
    'tinker://model/weights/a%2fb',
    'tinker://model/weights/a\\b',
    'tinker://model/weights/a\n',
    'tinker://model/weights/é',
    `tinker://model/weights/${'n'.repeat(256)}`,
  ])('is refused: %j', (text) => {
    expect(() => parseWeightsPath(text, 'model_path')).toThrow(WireError);
    expect(() => parseWeightsPath(text, 'model_path')).toThrow('model_path: expected');
  });

  it('is not written with a name that could not be read', () => {
    expect(() => formatWeightsPath({ modelId: 'm', kind: 'weights', name: '../x' })).toThrow('path: expected a name of 1 to 255');
    expect(() => formatWeightsPath({ modelId: '', kind: 'weights', name: 'x' })).toThrow('model_id: expected a name');
  });
});
