/**
 * One batch through the workers: microbatch forward, loss on the main thread, backward.
 *
 * Gradients are summed in a fixed number of lanes: microbatch i belongs to lane i mod LANES, and a lane is worked off in order by
 * one worker. Which worker takes which lane is left to chance; it shows nowhere in the result.
 */

import { evaluateLoss, sumOfLosses } from '../core/evaluate-loss.ts';
import type { ForwardBackwardResult, Loss, LossOutput } from '../core/policy.ts';
import type { Sample } from '../core/types.ts';
import { type Arena, LANES } from './arena.ts';
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
