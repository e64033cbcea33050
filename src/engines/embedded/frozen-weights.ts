/**
 * Fills the served weights straight from a model's files, some rows at a time: a model that is only sampled, or whose adapters alone are
 * trained, is in memory once, in the packed form that all kernels read.
 */
import { yieldToEventLoop } from '../../core/async.ts';
import { type Arena, STAGED_ROWS } from './arena.ts';
import { type LlamaConfig, linearsOf } from './model/config.ts';
import { checkFinite, type ModelSource } from './model/model-source.ts';
import type { Kernels } from './wasm.ts';

/** Rows that are read at once: what was read stays in the process's memory for a while. */
const READ_ROWS = 128;

interface Filling {
  readonly kernels: Kernels;
  readonly buffer: ArrayBufferLike;
  readonly config: LlamaConfig;
  readonly arena: Arena;
}

/** The source holds this model: `checkTensors` said so. */
export async function fillServed(source: ModelSource, filling: Filling): Promise<void> {
  const { config, arena, buffer } = filling;
  const { hiddenSize, vocabSize } = config;
  const floats = (address: number, count: number) => new Float32Array(buffer, address, count);
  const read = async (name: string, first: number, count: number) => {
    const values = await source.rows(name, first, count);
    checkFinite(source.path, name, values);
    return values;
  };
  const vector = async (to: number | undefined, ...names: string[]) => {
    if (to === undefined) return;
    let at = to;
    for (const name of names) {
      const values = await read(name, 0, source.shapes.get(name)![0]!);
      floats(at, values.length).set(values);
      at += values.length * 4;
    }
  };
  /** Matrices one above the other, as one packed matrix. */
  const matrix = async (to: number, inputs: number, ...names: string[]) => {
    let staged = 0;
    let packed = 0;
    const pack = async () => {
      filling.kernels.packMatrix(arena.staging, 1, inputs, inputs, staged, to + packed * inputs * 4);
      packed += staged;
      staged = 0;
      await yieldToEventLoop();
    };
    for (const name of names) {
      const rows = source.shapes.get(name)![0]!;
      for (let first = 0; first < rows; ) {
        const count = Math.min(rows - first, STAGED_ROWS - staged, READ_ROWS);
        floats(arena.staging + staged * inputs * 4, count * inputs).set(await read(name, first, count));
        first += count;
        staged += count;
        if (staged === STAGED_ROWS) await pack();
      }
    }
    if (staged > 0) await pack();
  };

  const { served } = arena.areas[0]!;
  const linears = linearsOf(config);
  for (const [l, to] of served.layers.entries()) {
    const layer = `model.layers.${l}`;
    await vector(to.inputNorm, `${layer}.input_layernorm.weight`);
    await vector(to.qkvBias, ...['q', 'k', 'v'].map((name) => `${layer}.self_attn.${name}_proj.bias`));
    await vector(to.headNorms, ...['q', 'k'].map((name) => `${layer}.self_attn.${name}_norm.weight`));
    await vector(to.postNorm, `${layer}.post_attention_layernorm.weight`);
    for (const { name, inputs, modules } of linears) {
      await matrix(to[name], inputs, ...modules.map(({ module }) => `${layer}.${module}.weight`));
    }
  }
  await vector(served.finalNorm, 'model.norm.weight');
  await matrix(served.head, hiddenSize, config.tied ? 'model.embed_tokens.weight' : 'lm_head.weight');
  if (served.embedding === undefined) return;
  for (let first = 0; first < vocabSize; first += READ_ROWS) {
    const values = await read('model.embed_tokens.weight', first, Math.min(READ_ROWS, vocabSize - first));
    floats(served.embedding + first * hiddenSize * 4, values.length).set(values);
  }
}
