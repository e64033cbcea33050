/**
 * The shared memory of one model, with the tables that never change: cosines and sines of the rotary positions.
 *
 * Pages are given by the system when they are first written, so what a model does not use it does not cost.
 */
import { TrainyardError } from '../core/errors.ts';
import type { Arena } from './arena.ts';
import type { LlamaConfig } from './config.ts';

/** Throws MODEL_INVALID when the machine refuses. */
export function reserveMemory(arena: Arena, config: LlamaConfig): WebAssembly.Memory {
  const memory = reserve(arena.pages);
  fillRotaryTables(memory, arena, config);
  return memory;
}

function reserve(pages: number): WebAssembly.Memory {
  try {
    return new WebAssembly.Memory({ initial: pages, maximum: pages, shared: true });
  } catch (cause) {
    const gib = (pages / 16_384).toFixed(1);
    throw new TrainyardError('MODEL_INVALID', `the machine gives no ${gib} GiB of memory for this model`, {
      cause,
      hint: 'use fewer threads, a smaller model or a machine with more memory',
    });
  }
}

function fillRotaryTables(memory: WebAssembly.Memory, arena: Arena, { contextLength, headDim, ropeTheta }: LlamaConfig): void {
  const half = headDim / 2;
  const cosines = new Float32Array(memory.buffer, arena.cosines, contextLength * half);
  const sines = new Float32Array(memory.buffer, arena.sines, contextLength * half);
  for (let position = 0; position < contextLength; position++) {
    for (let j = 0; j < half; j++) {
      const angle = position * ropeTheta ** ((-2 * j) / headDim);
      cosines[position * half + j] = Math.cos(angle);
      sines[position * half + j] = Math.sin(angle);
    }
  }
}
