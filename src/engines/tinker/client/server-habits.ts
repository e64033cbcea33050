/**
 * What a server does otherwise than it is asked, as far as its replies show which one it is. None says so itself: this was read in the source
 * of SkyRL 0.4.0 (docs/reference/interop.md). Asks nothing.
 */
import { TrainyardError } from '../../../core/errors.ts';
import type { PassOutput } from './tinker-model.ts';

/** `values`: says what a loss comes to. `jax`, `sharded` (FSDP or Megatron): SkyRL's backends. */
export type ServerKind = 'values' | 'jax' | 'sharded' | 'unknown';

/** By a pass with a loss that compares policies. Forward passes of `sharded` servers ignore the loss, so these remain unknown. */
export function kindOf({ lossSum, outputs, metrics }: PassOutput): ServerKind {
  if (lossSum !== undefined) return 'values';
  if (outputs[0]?.['elementwise_loss'] !== undefined) return 'jax';
  return metrics['total_loss:sum'] === undefined ? 'unknown' : 'sharded';
}

/** The loss's value: as reported, or the sum of its terms, which shows which loss it is, not how the terms are weighted. */
export function lossIn({ lossSum, outputs }: PassOutput): number | undefined {
  const terms = outputs.flatMap(({ elementwise_loss: own }) => (own === undefined ? [] : [own.data]));
  if (lossSum !== undefined || terms.length === 0) return lossSum;
  let sum = 0;
  for (const own of terms) for (const term of own) sum += term;
  return sum;
}

const UNCHECKED = 'this server does not say what a loss comes to, so nothing checks that it is the loss of that name';
const HABITS: Readonly<Record<ServerKind, string | undefined>> = {
  values: undefined,
  jax: 'SkyRL’s JAX backend divides the loss of a sample by its trained tokens and that of a step by its samples, whatever the weighting, and does not clip gradients',
  sharded: `${UNCHECKED}; it answers as SkyRL does with FSDP or Megatron, where β, ε, weight decay and clipping of AdamW are not the run’s but its own (0.9 and 0.999, 1e-8, 0.01, norm 1 unless it was started with others)`,
  unknown: UNCHECKED,
};

/** For whoever begins a run. `withMasks`: whether masks are sent as weights. */
export function habitsOf(kind: ServerKind, withMasks: boolean): string | undefined {
  return HABITS[kind] && `${HABITS[kind]}; masks are ${withMasks ? 'sent as weights' : 'not sent'}`;
}

/** Throws USAGE where a sample of older weights would not be one, or would put them back into training. */
export function refuseStaleness(staleness = 0): void {
  if (staleness === 0) return;
  const found = `staleness: expected 0, found ${staleness}: this server has only the newest weights of a model to sample from`;
  throw new TrainyardError('USAGE', found, 'leave --staleness out');
}

const FULL = /\bcreate_model\b.*(register_adapter|already has a '?policy|maximum number of LoRA adapters|models in training)/is;

/** Whether a server refused to make a model because it holds as many as it can. */
export function isFull(thrown: unknown): thrown is TrainyardError {
  return thrown instanceof TrainyardError && FULL.test(thrown.message);
}

export function waitingFor({ message }: TrainyardError, mostMs: number): string {
  const then = 'that of a run that was killed stays for up to five minutes, others until their run ends';
  return `the server has no room for a model (${message}); ${then}; trying again for up to ${mostMs / 60_000} minutes`;
}
