/**
 * config.json ⇄ LlamaConfig: the shape of a Llama-style decoder (Llama, Qwen2, Qwen3), in Hugging Face's field names; and the place of each
 * tensor in the flat parameter buffer. Settings that the kernels do not compute (other activations, other scalings of the rotary positions)
 * are refused by name, all at once, so a model that loads is computed as its file says. Other fields are kept for writing and never read.
 */
import { TrainyardError } from '../../../core/errors.ts';

/** qwen2 adds biases to queries, keys and values; qwen3 normalises each query and key head before it is rotated. */
export const FAMILIES = { llama: 'LlamaForCausalLM', qwen2: 'Qwen2ForCausalLM', qwen3: 'Qwen3ForCausalLM' } as const;
type Family = keyof typeof FAMILIES;

/** As Llama 3.1 does it: low frequencies are divided by `factor`, high ones kept, those between interpolated. */
interface RopeScaling {
  readonly factor: number;
  readonly lowFrequencyFactor: number;
  readonly highFrequencyFactor: number;
  readonly originalContext: number;
}

export interface LlamaConfig {
  readonly family: Family;
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
  readonly ropeScaling: RopeScaling | undefined;
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
    throw new TrainyardError('MODEL_INVALID', 'config.json is not a JSON object', 'use the config.json of a Llama or Qwen model');
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
  const family = (Object.hasOwn(FAMILIES, String(fields['model_type'])) ? fields['model_type'] : 'llama') as Family;
  const config: LlamaConfig = {
    family,
    vocabSize: count('vocab_size'),
    hiddenSize,
    intermediateSize: count('intermediate_size'),
    layers: count('num_hidden_layers'),
    heads,
    kvHeads: count('num_key_value_heads', heads),
    headDim: count('head_dim', family === 'qwen3' ? 128 : Math.floor(hiddenSize / heads)),
    contextLength: count('max_position_embeddings', 2048),
    rmsNormEps: positive('rms_norm_eps', fields['rms_norm_eps'], 1e-6),
    ropeTheta: positive('rope_theta', rope['rope_theta'] ?? fields['rope_theta'], 10_000),
    ropeScaling: scalingOf(rope, positive),
    tied: fields['tie_word_embeddings'] === true,
  };
  problems.push(...unsupported(fields), ...inconsistent(config));
  if (problems.length > 0) {
    throw new TrainyardError(
      'MODEL_INVALID',
      `config.json: ${problems.join('; ')}`,
      'the embedded engine computes Llama, Qwen2 and Qwen3 models; measure others through a server, with --engine openai',
    );
  }
  return config;
}

/** The config.json of a model; `source` provides the fields that do not describe its shape. Weights are always written as float32. */
export function configJson(config: LlamaConfig, source: Fields = {}): Fields {
  const { torch_dtype: _, rope_scaling: _scaling, rope_parameters: _parameters, ...kept } = source;
  const { family, ropeScaling } = config;
  return {
    ...kept,
    architectures: [FAMILIES[family]],
    model_type: family,
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
    ...(ropeScaling && {
      rope_scaling: {
        rope_type: 'llama3',
        factor: ropeScaling.factor,
        low_freq_factor: ropeScaling.lowFrequencyFactor,
        high_freq_factor: ropeScaling.highFrequencyFactor,
        original_max_position_embeddings: ropeScaling.originalContext,
      },
    }),
    hidden_act: 'silu',
    ...(family === 'llama' && { mlp_bias: false }),
    ...(family !== 'qwen2' && { attention_bias: false }),
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
    if ((type === 'default' || type === 'llama3') && whole) return { ...rope, rope_type: type };
    problems.push(`${name} is ${show(value)}, expected plain rotary positions or those of Llama 3`);
  }
  return {};
}

function scalingOf(rope: Fields, positive: (name: string, value: unknown, fallback: number) => number): RopeScaling | undefined {
  if (rope['rope_type'] !== 'llama3') return undefined;
  const read = (name: string) => positive(`rope_scaling.${name}`, rope[name] ?? 'missing', 1);
  return {
    factor: read('factor'),
    lowFrequencyFactor: read('low_freq_factor'),
    highFrequencyFactor: read('high_freq_factor'),
    originalContext: read('original_max_position_embeddings'),
  };
}

function unsupported(fields: Fields): string[] {
  const isWindowed = fields['use_sliding_window'] !== false && fields['sliding_window'] !== undefined;
  const expected: Readonly<Record<string, readonly unknown[]>> = {
    model_type: Object.keys(FAMILIES),
    hidden_act: ['silu', undefined],
    attention_bias: [false, null, undefined],
    mlp_bias: [false, null, undefined],
    quantization_config: [null, undefined],
    partial_rotary_factor: [1, null, undefined],
    ...(isWindowed && { sliding_window: [null] }),
  };
  return Object.entries(expected)
    .filter(([name, allowed]) => !allowed.includes(fields[name]))
    .map(([name, allowed]) => {
      const wanted = name === 'model_type' ? allowed.join(', ') : show(allowed[0]);
      return `${name} is ${show(fields[name])}, expected ${wanted}`;
    });
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

/** Throws USAGE if the model was made for less. */
export function boundedContext({ contextLength }: LlamaConfig, context: number | undefined): number {
  if (context === undefined) return contextLength;
  if (Number.isSafeInteger(context) && context >= 1 && context <= contextLength) return context;
  throw new TrainyardError('USAGE', `context is ${context}, expected 1 to ${contextLength}, which this model was made for`);
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

/** Named tensors one after the other in one buffer. */
export interface Flat {
  readonly tensors: readonly TensorSpec[];
  /** In floats. */
  readonly length: number;
}

export class FlatBuilder {
  readonly #tensors: TensorSpec[] = [];
  #length = 0;

  /** Returns the tensor's offset. */
  add(name: string, ...shape: number[]): number {
    const offset = this.#length;
    const length = shape.reduce((product, n) => product * n, 1);
    this.#tensors.push({ name, shape, offset, length });
    this.#length += length;
    return offset;
  }

  built(): Flat {
    return { tensors: this.#tensors, length: this.#length };
  }
}

/** The products of a layer; some compute several modules at once, one above the other. */
export type LinearName = 'qkv' | 'attentionOut' | 'gateUp' | 'down';

export interface Linear {
  readonly name: LinearName;
  readonly inputs: number;
  readonly outputs: number;
  /** `column`: the module's first output among the linear's. */
  readonly modules: readonly { readonly module: string; readonly column: number; readonly outputs: number }[];
}

export function linearsOf(config: LlamaConfig): readonly Linear[] {
  const { hiddenSize, intermediateSize } = config;
  const { query, key } = widthsOf(config);
  const linear = (name: LinearName, inputs: number, modules: readonly (readonly [module: string, outputs: number])[]): Linear => {
    let outputs = 0;
    const placed = modules.map(([module, count]) => {
      outputs += count;
      return { module, column: outputs - count, outputs: count };
    });
    return { name, inputs, outputs, modules: placed };
  };
  return [
    linear('qkv', hiddenSize, [
      ['self_attn.q_proj', query],
      ['self_attn.k_proj', key],
      ['self_attn.v_proj', key],
    ]),
    linear('attentionOut', query, [['self_attn.o_proj', hiddenSize]]),
    linear('gateUp', hiddenSize, [
      ['mlp.gate_proj', intermediateSize],
      ['mlp.up_proj', intermediateSize],
    ]),
    linear('down', intermediateSize, [['mlp.down_proj', hiddenSize]]),
  ];
}

/** Offsets in floats of one layer's matrices. */
interface LayerOffsets {
  readonly inputNorm: number;
  /** [(heads + 2·kvHeads)·headDim, hidden] */
  readonly qkv: number;
  /** [(heads + 2·kvHeads)·headDim]; qwen2 only */
  readonly qkvBias: number | undefined;
  /** [headDim] for queries, then for keys; qwen3 only */
  readonly headNorms: number | undefined;
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
export interface Layout extends Flat {
  readonly layers: readonly LayerOffsets[];
  readonly embedding: number;
  readonly finalNorm: number;
  /** The embedding's offset when tied. */
  readonly head: number;
}

export function planLayout(config: LlamaConfig): Layout {
  const { hiddenSize, vocabSize, headDim, family } = config;
  const { query, key } = widthsOf(config);
  const linears = linearsOf(config);
  const flat = new FlatBuilder();
  const embedding = flat.add('model.embed_tokens.weight', vocabSize, hiddenSize);
  const layers = Array.from({ length: config.layers }, (_, l): LayerOffsets => {
    const layer = `model.layers.${l}`;
    const add = (name: string, ...shape: number[]) => flat.add(`${layer}.${name}`, ...shape);
    const weights = (wanted: LinearName) => {
      const { inputs, modules } = linears.find(({ name }) => name === wanted)!;
      return modules.map(({ module, outputs }) => add(`${module}.weight`, outputs, inputs))[0]!;
    };
    const inputNorm = add('input_layernorm.weight', hiddenSize);
    const qkv = weights('qkv');
    const bias = (name: string, width: number) => add(`self_attn.${name}_proj.bias`, width);
    const qkvBias = family === 'qwen2' ? [bias('q', query), bias('k', key), bias('v', key)][0] : undefined;
    const norm = (name: string) => add(`self_attn.${name}_norm.weight`, headDim);
    const headNorms = family === 'qwen3' ? [norm('q'), norm('k')][0] : undefined;
    const attentionOut = weights('attentionOut');
    const postNorm = add('post_attention_layernorm.weight', hiddenSize);
    return { inputNorm, qkv, qkvBias, headNorms, attentionOut, postNorm, gateUp: weights('gateUp'), down: weights('down') };
  });
  const finalNorm = flat.add('model.norm.weight', hiddenSize);
  const head = config.tied ? embedding : flat.add('lm_head.weight', vocabSize, hiddenSize);
  return { ...flat.built(), layers, embedding, finalNorm, head };
}
