import { describe, expect, it } from 'vitest';
import { readAs, WireError } from './codec.ts';
import {
  adamToWire,
  clientConfigReply,
  createModelRequest,
  failedReply,
  formatWeightsPath,
  optimStepRequest,
  parseWeightsPath,
} from './tinker-messages.ts';

describe('small bodies', () => {
  it('ignore keys of other versions, and take null for what may be left out', () => {
    const body = { session_id: 's', model_seq_id: 0, base_model: 'b', lora_config: null, of_next_year: 1 };
    expect(readAs(createModelRequest, body)).toEqual({ session_id: 's', model_seq_id: 0, base_model: 'b', lora_config: null });
  });

  it('have the hosted service’s defaults', () => {
    expect(readAs(clientConfigReply, { pjwt_auth_enabled: false })).toEqual({ sample_max_concurrent_requests: 2000 });
    expect(readAs(optimStepRequest, { model_id: 'm', adam_params: {} }).adam_params).toEqual({
      ...{ learningRate: 1e-4, beta1: 0.9, beta2: 0.95, epsilon: 1e-12, weightDecay: 0, maxGradNorm: 0 },
    });
  });

  it('keep each of the optimizer’s numbers in its place', () => {
    const adam = { learningRate: 1, beta1: 2, beta2: 3, epsilon: 4, weightDecay: 5, maxGradNorm: 6 };
    const wire = { learning_rate: 1, beta1: 2, beta2: 3, eps: 4, weight_decay: 5, grad_clip_norm: 6 };
    expect(adamToWire(adam)).toEqual(wire);
    expect(readAs(optimStepRequest, { model_id: 'm', adam_params: wire }).adam_params).toEqual(adam);
  });

  it.each<[unknown, string]>([
    [{ model_id: 'm', adam_params: { beta1: 'x' } }, 'adam_params.beta1: expected number, found "x"'],
    [{ model_id: 'm', seq_id: 0, adam_params: {} }, 'seq_id: expected number to be >=1, found 0'],
    ['text', 'the body: expected object, found "text"'],
  ])('say where they are wrong, what was expected and what was found: %j', (body, says) => {
    expect(() => readAs(optimStepRequest, body)).toThrow(WireError);
    expect(() => readAs(optimStepRequest, body)).toThrow(says);
  });

  it('know a failure of a category that nobody knows as unknown', () => {
    expect(readAs(failedReply, { error: 'e', category: 'user' }).category).toBe('user');
    expect(readAs(failedReply, { error: 'e', category: 'cosmic' }).category).toBe('unknown');
  });
});

describe('the path of saved weights', () => {
  it.each(['weights', 'sampler_weights'] as const)('is read as it is written: %s', (kind) => {
    const path = { modelId: 'model-1_a', kind, name: `${'n'.repeat(254)}9` };
    expect(formatWeightsPath(path)).toBe(`tinker://model-1_a/${kind}/${path.name}`);
    expect(parseWeightsPath(formatWeightsPath(path))).toEqual(path);
  });

  it.each([
    ...['model/weights/a', 'file://model/weights/a', 'tinker://model/weights', 'tinker://model/weights/'],
    ...['tinker:///weights/a', 'tinker://model/weights/a/b', 'tinker://model/other/a', 'tinker://model/weights/..'],
    ...['tinker://../weights/a', 'tinker://model/weights/a%2fb', 'tinker://model/weights/a\\b'],
    ...['tinker://model/weights/a\n', 'tinker://model/weights/é', `tinker://model/weights/${'n'.repeat(256)}`],
  ])('is refused: %j', (text) => {
    expect(() => parseWeightsPath(text, 'model_path')).toThrow(WireError);
    expect(() => parseWeightsPath(text, 'model_path')).toThrow('model_path: expected');
  });

  it('is not written with a name that could not be read', () => {
    expect(() => formatWeightsPath({ modelId: 'm', kind: 'weights', name: '../x' })).toThrow('path: expected a name of 1 to 255');
    expect(() => formatWeightsPath({ modelId: '', kind: 'weights', name: 'x' })).toThrow('model_id: expected a name');
  });
});
