import { describe, expect, it } from 'vitest';
import { REGULAR, SHAPES } from '../../../../test/fixtures/nn/models.ts';
import { refusal } from '../../../../test/fixtures/refusal.ts';
import { configJson, parseConfig } from './config.ts';

const json = configJson(REGULAR);

describe('config.json', () => {
  it.each(Object.entries(SHAPES))('says the same after writing and reading (%s)', (_, config) => {
    expect(parseConfig(JSON.parse(JSON.stringify(configJson(config))))).toEqual(config);
  });

  it('has the defaults of Hugging Face', () => {
    const optional = ['head_dim', 'num_key_value_heads', 'rms_norm_eps', 'rope_theta', 'tie_word_embeddings'];
    const rest = Object.fromEntries(Object.entries(json).filter(([name]) => !optional.includes(name)));
    expect(parseConfig(rest)).toMatchObject({ headDim: 8, kvHeads: 4, rmsNormEps: 1e-6, ropeTheta: 10_000, tied: false });
  });

  it('may give rotary settings in the newer way', () => {
    const newer = { ...json, rope_theta: undefined, rope_parameters: { rope_type: 'default', rope_theta: 500_000 } };
    expect(parseConfig(newer).ropeTheta).toBe(500_000);
  });

  it.each([
    ['model_type', { model_type: 'mamba' }],
    ['hidden_act', { hidden_act: 'gelu' }],
    ['attention_bias', { attention_bias: true }],
    ['mlp_bias', { mlp_bias: true }],
    ['rope_scaling', { rope_scaling: { rope_type: 'llama3', factor: 8 } }],
    ['rope_parameters', { rope_parameters: { rope_type: 'yarn' } }],
    ['quantization_config', { quantization_config: { bits: 4 } }],
    ['head_dim', { head_dim: 7 }],
    ['num_key_value_heads', { num_key_value_heads: 3 }],
    ['vocab_size', { vocab_size: 0 }],
    ['hidden_size', { hidden_size: '64' }],
    ['num_hidden_layers', { num_hidden_layers: 1e9 }],
    ['intermediate_size', { intermediate_size: 2 ** 40 }],
    ['rms_norm_eps', { rms_norm_eps: -1 }],
  ])('is refused, naming the field, for an unsupported %s', (field, change) => {
    expect(() => parseConfig({ ...json, ...change })).toThrow(refusal('MODEL_INVALID', field));
  });

  it('is refused with all its problems at once', () => {
    expect(() => parseConfig({})).toThrow(/vocab_size is missing.*model_type is missing/);
    expect(() => parseConfig([])).toThrow(/not a JSON object/);
  });
});
