/**
 * config.json ⇄ LlamaConfig: the shape of a Llama-style decoder, in the field names of Hugging Face's LlamaForCausalLM; and the place of
 * each tensor in the flat parameter buffer. Settings that the kernels do not compute (biases, scaled rotary positions, other activations)
 * are refused by name, all at once, so a model that loads is computed as its file says. Other fields are kept for writing and never read.
 */
import { TrainyardError } from '../core/errors.ts';

export interface LlamaConfig {
  readonly vocabSize: number;
  readonly hiddenSize: number;
  readonly intermediateSize: number;
  readonly layers: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly contextLength: number;
  readonly rmsNormEps: number;
  readonly ropeTheta: number;
  /** Whether the output head is the embedding matrix. */
  readonly tied: boolean;
}

type Fields = Readonly<Record<string, unknown>>;

/** Bounds of the sizes, far above any model that fits into memory: planning a model takes time and memory too. */
const MOST = 2 ** 24;
const MOST_LAYERS = 4096;

/** Reads a parsed config.json. Throws MODEL_INVALID naming every field that is missing or unsupported. */
export function parseConfig(json: unknown): LlamaConfig {
  if (typeof json !== 'object' || json === null || Array.isArray(json)) {
    throw new TrainyardError('MODEL_INVALID', 'config.json is not a JSON object', {
      hint: 'use the config.json of a Llama model',
    });
  }
  const fields = json as Fields;
  const problems: string[] = [];

  function count(name: string, fallback?: number): number {
    const value = fields[name] ?? fallback;
    const most = name === 'num_hidden_layers' ? MOST_LAYERS : MOST;
    if (typeof value === 'number' && Number.isSafeInteger(value) && value > 0 && value <= most) return value;
    problems.push(`${name} is ${show(value)}, expected a positive integer up to ${most}`);
    return 1;
  }
  function positive(name: string, value: unknown, fallback: number): number {
    if (value === undefined || value === null) return fallback;
    if (typeof value === 'number' && Number.isFinite(value) && value > 0) return value;
    problems.push(`${name} is ${show(value)}, expected a positive number`);
    return fallback;
  }

  const hiddenSize = count('hidden_size');
  const heads = count('num_attention_heads');
  const rope = ropeFields(fields, problems);
  const config: LlamaConfig = {
    vocabSize: count('vocab_size'),
    hiddenSize,
    intermediateSize: count('intermediate_size'),
    layers: count('num_hidden_layers'),
    heads,
    kvHeads: count('num_key_value_heads', heads),
    headDim: count('head_dim', Math.floor(hiddenSize / heads)),
    contextLength: count('max_position_embeddings', 2048),
    rmsNormEps: positive('rms_norm_eps', fields['rms_norm_eps'], 1e-6),
    ropeTheta: positive('rope_theta', rope['rope_theta'] ?? fields['rope_theta'], 10_000),
    tied: fields['tie_word_embeddings'] === true,
  };
  problems.push(...unsupported(fields), ...inconsistent(config));
  if (problems.length > 0) {
    throw new TrainyardError('MODEL_INVALID', `config.json: ${problems.join('; ')}`, {
      hint: 'the embedded engine computes plain Llama models; serve others through an inference server',
    });
  }
  return config;
}

/** The config.json of a model; `source` provides the fields that do not describe its shape. Weights are always written as float32. */
export function configJson(config: LlamaConfig, source: Fields = {}): Fields {
  const { torch_dtype: _, ...kept } = source;
  return {
    ...kept,
    architectures: ['LlamaForCausalLM'],
    model_type: 'llama',
    dtype: 'float32',
    vocab_size: config.vocabSize,
    hidden_size: config.hiddenSize,
    intermediate_size: config.intermediateSize,
    num_hidden_layers: config.layers,
    num_attention_heads: config.heads,
    num_key_value_heads: config.kvHeads,
    head_dim: config.headDim,
    max_position_embeddings: config.contextLength,
    rms_norm_eps: config.rmsNormEps,
    rope_theta: config.ropeTheta,
    hidden_act: 'silu',
    attention_bias: false,
    mlp_bias: false,
    tie_word_embeddings: config.tied,
  };
}

/** Newer files keep rotary settings in `rope_parameters`, older ones in `rope_theta` and `rope_scaling`. */
function ropeFields(fields: Fields, problems: string[]): Fields {
  for (const name of ['rope_parameters', 'rope_scaling']) {
    const value = fields[name];
    if (value === undefined || value === null) continue;
    const rope = (typeof value === 'object' ? value : {}) as Fields;
    const type = rope['rope_type'] ?? rope['type'] ?? (name === 'rope_parameters' ? 'default' : undefined);
    const whole = (rope['partial_rotary_factor'] ?? 1) === 1;
    if (type === 'default' && whole) return rope;
    problems.push(`${name} is ${show(value)}, expected plain rotary embeddings`);
  }
  return {};
}

function unsupported(fields: Fields): string[] {
  const expected: Readonly<Record<string, readonly unknown[]>> = {
    model_type: ['llama'],
    hidden_act: ['silu', undefined],
    attention_bias: [false, null, undefined],
    mlp_bias: [false, null, undefined],
    quantization_config: [null, undefined],
    sliding_window: [null, undefined],
    partial_rotary_factor: [1, null, undefined],
  };
  return Object.entries(expected)
    .filter(([name, allowed]) => !allowed.includes(fields[name]))
    .map(([name, allowed]) => `${name} is ${show(fields[name])}, expected ${show(allowed[0])}`);
}

function inconsistent(config: LlamaConfig): string[] {
  const problems: string[] = [];
  if (config.heads % config.kvHeads !== 0) {
    problems.push(`num_attention_heads ${config.heads} is not a multiple of num_key_value_heads ${config.kvHeads}`);
  }
  if (config.headDim % 2 !== 0) problems.push(`head_dim is ${config.headDim}, expected an even number`);
  return problems;
}

function show(value: unknown): string {
  return JSON.stringify(value) ?? 'missing';
}

/** Sizes that follow from a config, in floats. */
export function widthsOf(config: LlamaConfig) {
  const query = config.heads * config.headDim;
  const key = config.kvHeads * config.headDim;
  return { query, key, qkv: query + 2 * key };
}

interface TensorSpec {
  readonly name: string;
  readonly shape: readonly number[];
  /** Offset and length in floats. */
  readonly offset: number;
  readonly length: number;
}

/** Offsets in floats of one layer's matrices. */
export interface LayerOffsets {
  readonly inputNorm: number;
  /** [(heads + 2·kvHeads)·headDim, hidden] */
  readonly qkv: number;
  /** [hidden, heads·headDim] */
  readonly attentionOut: number;
  readonly postNorm: number;
  /** [2·intermediate, hidden] */
  readonly gateUp: number;
  /** [hidden, intermediate] */
  readonly down: number;
}

/**
 * The place of each tensor in the flat parameter buffer, under Hugging Face's names and orientation ([out, in], row-major). Weights,
 * gradients, optimizer moments and the data section of model.safetensors share this order. A layer's query, key and value are adjacent, and
 * so are gate and up: each group is one taller matrix, multiplied at once and never copied.
 */
export interface Layout {
  readonly tensors: readonly TensorSpec[];
  readonly layers: readonly LayerOffsets[];
  readonly embedding: number;
  readonly finalNorm: number;
  /** The embedding's offset when tied. */
  readonly head: number;
  /** Number of parameters. */
  readonly length: number;
}

export function planLayout(config: LlamaConfig): Layout {
  const { hiddenSize, intermediateSize } = config;
  const { query: queryWidth, key: keyWidth } = widthsOf(config);
  const tensors: TensorSpec[] = [];
  let length = 0;

  function add(name: string, ...shape: number[]): number {
    const offset = length;
    const floats = shape.reduce((product, n) => product * n, 1);
    tensors.push({ name, shape, offset, length: floats });
    length += floats;
    return offset;
  }

  const embedding = add('model.embed_tokens.weight', config.vocabSize, hiddenSize);
  const layers: LayerOffsets[] = [];
  for (let l = 0; l < config.layers; l++) {
    const layer = `model.layers.${l}`;
    const inputNorm = add(`${layer}.input_layernorm.weight`, hiddenSize);
    const qkv = add(`${layer}.self_attn.q_proj.weight`, queryWidth, hiddenSize);
    add(`${layer}.self_attn.k_proj.weight`, keyWidth, hiddenSize);
    add(`${layer}.self_attn.v_proj.weight`, keyWidth, hiddenSize);
    const attentionOut = add(`${layer}.self_attn.o_proj.weight`, hiddenSize, queryWidth);
    const postNorm = add(`${layer}.post_attention_layernorm.weight`, hiddenSize);
    const gateUp = add(`${layer}.mlp.gate_proj.weight`, intermediateSize, hiddenSize);
    add(`${layer}.mlp.up_proj.weight`, intermediateSize, hiddenSize);
    const down = add(`${layer}.mlp.down_proj.weight`, hiddenSize, intermediateSize);
    layers.push({ inputNorm, qkv, attentionOut, postNorm, gateUp, down });
  }
  const finalNorm = add('model.norm.weight', hiddenSize);
  const head = config.tied ? embedding : add('lm_head.weight', config.vocabSize, hiddenSize);
  return { tensors, layers, embedding, finalNorm, head, length };
}
