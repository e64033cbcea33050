/**
 * Where each tensor lies in the flat parameter buffer, under Hugging Face's names and orientation ([out, in], row-major).
 *
 * One order for everything: weights, gradients, optimizer moments and the data section of model.safetensors. Query, key and value
 * of a layer are adjacent, and so are gate and up: each group is one taller matrix, multiplied at once and never copied.
 */
import type { LlamaConfig } from './config.ts';

export interface TensorSpec {
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

export interface Layout {
  readonly tensors: readonly TensorSpec[];
  readonly layers: readonly LayerOffsets[];
  readonly embedding: number;
  readonly finalNorm: number;
  /** The embedding's offset when tied. */
  readonly head: number;
  /** Parameters in all. */
  readonly length: number;
}

export function planLayout(config: LlamaConfig): Layout {
  const { hiddenSize, intermediateSize } = config;
  const queryWidth = config.heads * config.headDim;
  const keyWidth = config.kvHeads * config.headDim;
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
