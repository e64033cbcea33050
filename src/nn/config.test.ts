import { describe, expect, it } from 'vitest';
import { REGULAR, SHAPES } from '../../test/fixtures/nn/models.ts';
import { planArena } from './arena.ts';
import { configJson, parseConfig, planLayout } from './config.ts';

const json = configJson(REGULAR);

describe('config.json', () => {
  it.each(Object.entries(SHAPES))('says the same after writing and reading (%s)', (_, config) => {
    expect(parseConfig(JSON.parse(JSON.stringify(configJson(config))))).toEqual(config);
  });

  it('has the defaults of Hugging Face', () => {
    const {
      head_dim: _,
      num_key_value_heads: __,
      rms_norm_eps: ___,
      rope_theta: ____,
      tie_word_embeddings: _____,
      ...rest
    } = json;
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
    ['rms_norm_eps', { rms_norm_eps: -1 }],
  ])('is refused, naming the field, for an unsupported %s', (field, change) => {
    expect(() => parseConfig({ ...json, ...change })).toThrow(
      expect.objectContaining({ code: 'MODEL_INVALID', message: expect.stringContaining(field) as string }),
    );
  });

  it('is refused with all its problems at once', () => {
    expect(() => parseConfig({})).toThrow(/vocab_size is missing.*model_type is missing/);
    expect(() => parseConfig([])).toThrow(/not a JSON object/);
  });
});

describe('the plan of the memory', () => {
  it('refuses a model that WASM cannot address', () => {
    const huge = { ...REGULAR, hiddenSize: 4096, intermediateSize: 11_008, layers: 32 };
    expect(() => planArena(huge, planLayout(huge), 2)).toThrow(expect.objectContaining({ code: 'MODEL_INVALID' }));
  });

  it('has no two regions that overlap', () => {
    const layout = planLayout(REGULAR);
    const arena = planArena(REGULAR, layout, 2);
    const starts = addresses(arena).sort((a, b) => a - b);
    expect(new Set(starts).size).toBe(starts.length);
    expect(starts.length).toBeGreaterThan(100);
    expect(arena.pages * 65_536).toBeGreaterThanOrEqual(starts.at(-1)! + layout.length * 4);
  });
});

/** All addresses in a plan: its numbers beyond the small counts. */
function addresses(value: unknown): number[] {
  if (typeof value === 'number') return value >= 65_536 ? [value] : [];
  return typeof value === 'object' && value !== null ? Object.values(value).flatMap(addresses) : [];
}
