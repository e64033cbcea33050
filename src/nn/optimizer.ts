/**
 * One AdamW step over the workers: sum the gradient lanes, measure the norm, clip, update.
 *
 * Decay is decoupled and applies to every parameter, norms and embedding included. The parameters are cut into fixed spans and the
 * norm is summed over spans in order, so the number of threads does not change a bit of the result.
 */

import { TrainyardError } from '../core/errors.ts';
import type { AdamSettings } from '../core/policy.ts';
import type { Arena } from './arena.ts';
import type { Span } from './messages.ts';
import type { WorkerPool } from './worker-pool.ts';

/** Floats; a multiple of four. */
const SPAN = 16_384;

/**
 * Updates the weights with the gradient in the first `lanes` lanes, and clears them; `step` counts from 1. Throws TRAINER_FAILED, with
 * the weights untouched, when the gradient is not finite: the lanes are then undefined, and the caller clears them. Throws it too when
 * the new weights are not finite; the old ones are then lost, since keeping a copy would cost every step a pass over the memory.
 */
export async function adamStep(
  pool: WorkerPool,
  arena: Arena,
  lanes: number,
  step: number,
  adam: AdamSettings,
): Promise<{ readonly gradNorm: number }> {
  checkSettings(adam);
  const spans = spansPerWorker(arena.flatLength, pool.size);
  const squares = await pool.all('sum-lanes', (worker) => ({ spans: spans[worker]!, lanes }), 'TRAINER_FAILED');
  const gradNorm = Math.sqrt(squares.flat().reduce((sum, square) => sum + square, 0));
  if (!Number.isFinite(gradNorm)) {
    throw new TrainyardError('TRAINER_FAILED', `the gradient's norm is ${gradNorm}, expected a finite number`, {
      hint: 'weights are unchanged and the accumulated gradient is cleared; lower the learning rate or the weights of samples',
    });
  }
  const { learningRate, beta1, beta2, epsilon, weightDecay, maxGradNorm } = adam;
  const numbers = {
    learningRate,
    beta1,
    beta2,
    epsilon,
    weightDecay,
    correction1: 1 - beta1 ** step,
    correction2: 1 - beta2 ** step,
    gradientScale: maxGradNorm > 0 && gradNorm > maxGradNorm ? maxGradNorm / gradNorm : 1,
  };
  const finite = await pool.all('adam', (worker) => ({ spans: spans[worker]!, lanes, step: numbers }), 'TRAINER_FAILED');
  if (!finite.every(Boolean)) {
    throw new TrainyardError('TRAINER_FAILED', `step ${step} at learning rate ${learningRate} gave weights that are not finite`, {
      hint: 'the weights in training are lost; load the last checkpoint, which is whole, and lower the learning rate',
    });
  }
  return { gradNorm };
}

function checkSettings(adam: AdamSettings): void {
  for (const [name, value] of Object.entries(adam)) {
    const fits = Number.isFinite(Math.fround(value)) && value >= 0 && (!name.startsWith('beta') || value < 1);
    if (!fits) {
      const expected = name.startsWith('beta') ? 'a number in [0, 1)' : 'a number of at least 0 that float32 can hold';
      throw new TrainyardError('TRAINER_FAILED', `${name} is ${value}, expected ${expected}`);
    }
  }
}

/** Neighbouring spans for each worker; the cut itself does not depend on the number of workers. */
function spansPerWorker(length: number, workers: number): Span[][] {
  const spans = Array.from({ length: Math.ceil(length / SPAN) }, (_, i) => ({
    first: i * SPAN,
    end: Math.min(length, (i + 1) * SPAN),
  }));
  const share = Math.ceil(spans.length / workers);
  return Array.from({ length: workers }, (_, worker) => spans.slice(worker * share, (worker + 1) * share));
}
