/**
 * Layers whose activations found no room are computed again on the way back: to the same bits as if they had been kept.
 */
import { describe, expect, it } from 'vitest';
import { activationFloats, floatsOf } from '../../src/engines/embedded/arena.ts';
import { packServed } from '../../src/engines/embedded/decode-pass.ts';
import { planLora } from '../../src/engines/embedded/lora.ts';
import { type LlamaConfig, planLayout } from '../../src/engines/embedded/model/config.ts';
import { TrainPass } from '../../src/engines/embedded/train-pass.ts';
import { assemble, planBatch } from '../../src/engines/embedded/train-step.ts';
import { LORA, strongAdapter } from '../fixtures/nn/adapters.ts';
import { plainKernels } from '../fixtures/nn/kernels.ts';
import { mixedSamples, SHAPES, strongWeights } from '../fixtures/nn/models.ts';

const ROWS = { trainRows: 600, microbatchRows: { usual: 512, sharing: 512 }, trunk: { rows: 0 } };

/** The gradient of one microbatch, with room for the activations of so many layers. */
function gradientWith(config: LlamaConfig, adapted: boolean, room: number): Float32Array {
  const layout = planLayout(config);
  const lora = adapted ? planLora(config, LORA) : undefined;
  const { arena, memory, kernels } = plainKernels(config, lora);
  const { buffer } = memory;
  const { train } = arena.workers[0]!;
  const base = strongWeights(config, 3);
  const parameters = arena.parameters!;
  if (lora === undefined) new Float32Array(buffer, parameters, layout.length).set(base);
  else {
    // Packed from a place that is free: the gradients'.
    new Float32Array(buffer, arena.gradients, layout.length).set(base);
    packServed({ kernels, config, arena: { ...arena, parameters: arena.gradients } }, layout);
    new Float32Array(buffer, arena.gradients, layout.length).fill(0);
    new Float32Array(buffer, parameters, lora.length).set(strongAdapter(config, LORA, 4));
  }
  const { batch } = assemble(planBatch(mixedSamples(config), ROWS).microbatches[0]!);
  const { kept } = activationFloats(config, adapted);
  const floats = room * (batch.tokens.length * floatsOf(kept) + 16 * Object.keys(kept).length);
  const regions = { ...train!, activations: { ...train!.activations, floats } };
  const pass = new TrainPass({ kernels, buffer, config, layout, lora, arena, regions });
  const logprobs = pass.forward(parameters, batch);
  pass.backward(
    0,
    logprobs.map((_, i) => Math.sin(i)),
  );
  return new Float32Array(buffer, arena.gradients, (lora ?? layout).length).slice();
}

describe.each(Object.entries(SHAPES))('layers computed again (%s)', (_, shape) => {
  const config = { ...shape, layers: 4 };
  it.each([
    ['of all parameters', false],
    ['of an adapter', true],
  ])('give the same gradient %s', (_unused, adapted) => {
    const kept = gradientWith(config, adapted, 4);
    expect(kept.some((slope) => slope !== 0)).toBe(true);
    for (const room of [1, 2, 3]) expect(gradientWith(config, adapted, room)).toEqual(kept);
  });
});
