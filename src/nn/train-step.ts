/**
 * One batch through the workers: microbatch forward, loss on the main thread, backward. And the AdamW step that follows.
 *
 * Gradients are summed in a fixed number of lanes: microbatch i belongs to lane i mod LANES, and a lane is worked off in order by
 * one worker. Which worker takes which lane is left to chance; it shows nowhere in the result.
 */
import { TrainyardError } from '../core/errors.ts';
import type { AdamSettings, ForwardBackwardResult, Loss, LossOutput } from '../core/policy.ts';
import { evaluateLoss, sumOfLosses } from '../core/policy.ts';
import type { Sample } from '../core/types.ts';
import { type Arena, LANES } from './arena.ts';
import type { Span } from './messages.ts';
import { assemble, planMicrobatches, type Sequence } from './microbatch.ts';
import type { WorkerPool } from './worker-pool.ts';

/** Log-probabilities of each sample's trained tokens, in the order of the samples. */
export async function forwardBatch(
  pool: WorkerPool,
  arena: Arena,
  weights: number,
  samples: readonly Sample[],
): Promise<Float32Array[]> {
  const results = samples.map(() => new Float32Array(0));
  await workOff(pool, planMicrobatches(samples, arena.trainRows), async (worker, sequences) => {
    const { batch, members } = assemble(sequences);
    const logprobs = await pool.call(worker, 'forward', { weights, batch }, 'TRAINER_FAILED');
    for (const { index, predictions } of members) results[index] = valuesAt(predictions, logprobs);
  });
  return results;
}

/** Adds the batch's gradient to the first `lanes` lanes. When it throws, all are undefined: the caller clears them. */
export async function forwardBackwardBatch(
  pool: WorkerPool,
  arena: Arena,
  samples: readonly Sample[],
  loss: Loss,
): Promise<ForwardBackwardResult & { readonly lanes: number }> {
  const microbatches = planMicrobatches(samples, arena.trainRows);
  const outputs: (LossOutput | undefined)[] = samples.map(() => undefined);
  const found = samples.map(() => new Float32Array(0));
  await workOff(pool, microbatches, async (worker, sequences, lane) => {
    const { batch, members } = assemble(sequences);
    const weights = arena.parameters;
    const logprobs = await pool.call(worker, 'forward', { weights, batch }, 'TRAINER_FAILED');
    const slopes = new Float32Array(logprobs.length);
    for (const { index, sample, predictions } of members) {
      const own = valuesAt(predictions, logprobs);
      const output = evaluateLoss(loss, sample, own, index);
      outputs[index] = output;
      found[index] = own;
      for (let i = 0; i < predictions.length; i++) slopes[predictions[i]!]! += output.gradient[i]! * sample.weight;
    }
    const gradients = arena.gradients + lane * arena.flatLength * 4;
    await pool.call(worker, 'backward', { gradients, slopes }, 'TRAINER_FAILED');
  });
  return { ...sumOfLosses(samples, outputs), logprobs: found, lanes: Math.min(LANES, microbatches.length) };
}

type Work = (worker: number, microbatch: readonly Sequence[], lane: number) => Promise<void>;

/** Every worker takes the next free lane until none is left. All workers are idle again when this settles, even on failure. */
async function workOff(pool: WorkerPool, microbatches: readonly (readonly Sequence[])[], work: Work): Promise<void> {
  let nextLane = 0;
  let failed = false;
  const runs = Array.from({ length: pool.size }, async (_, worker) => {
    while (nextLane < LANES) {
      const lane = nextLane++;
      for (let i = lane; i < microbatches.length && !failed; i += LANES) {
        await work(worker, microbatches[i]!, lane).catch((thrown: unknown) => {
          failed = true;
          throw thrown;
        });
      }
    }
  });
  const settled = await Promise.allSettled(runs);
  const rejected = settled.find((result) => result.status === 'rejected');
  if (rejected !== undefined) throw rejected.reason;
}

function valuesAt(places: Int32Array, values: Float32Array): Float32Array<ArrayBuffer> {
  const found = new Float32Array(places.length);
  for (let i = 0; i < places.length; i++) found[i] = values[places[i]!]!;
  return found;
}

/**
 * Floats; a multiple of four. The parameters are cut into fixed spans and the norm is summed over spans in order, so the number of threads
 * does not change a bit of the result.
 */
const SPAN = 16_384;

/**
 * Sums the gradient lanes, measures the norm, clips, updates. Decay is decoupled and applies to every parameter, norms and embedding included.
 *
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
  const { maxGradNorm, ...rates } = adam;
  const numbers = {
    ...rates,
    correction1: 1 - adam.beta1 ** step,
    correction2: 1 - adam.beta2 ** step,
    gradientScale: maxGradNorm > 0 && gradNorm > maxGradNorm ? maxGradNorm / gradNorm : 1,
  };
  const finite = await pool.all('adam', (worker) => ({ spans: spans[worker]!, lanes, step: numbers }), 'TRAINER_FAILED');
  if (!finite.every(Boolean)) {
    throw new TrainyardError(
      'TRAINER_FAILED',
      `step ${step} at learning rate ${adam.learningRate} gave weights that are not finite`,
      {
        hint: 'the weights in training are lost; load the last checkpoint, which is whole, and lower the learning rate',
      },
    );
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
