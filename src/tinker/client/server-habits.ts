/**
 * What a server does otherwise than it is asked, as far as its replies show which server it is. Nothing of it was announced: it was read in
 * the source of SkyRL 0.4.0 (docs/reference/interop.md). A server that reports the value of a loss is taken at its word. Asks nothing itself.
 */
import { TrainyardError } from '../../core/errors.ts';
import type { PassOutput } from './tinker-model.ts';

/** `values`: reports what a loss comes to. `jax`, `sharded` (FSDP or Megatron): backends of SkyRL. */
export type ServerKind = 'values' | 'jax' | 'sharded' | 'unknown';

/** A forward pass of FSDP or Megatron looks like that of an unknown server: it knows nothing of a loss. */
export function kindOf({ lossSum, outputs, metrics }: PassOutput): ServerKind {
  if (lossSum !== undefined) return 'values';
  if (outputs[0]?.['elementwise_loss'] !== undefined) return 'jax';
  return metrics['total_loss:sum'] === undefined ? 'unknown' : 'sharded';
}

/** The loss's value: as reported, or the sum of its terms at every position, which only shows which loss it is, not how it is weighted. */
export function lossIn({ lossSum, outputs }: PassOutput): number | undefined {
  if (lossSum !== undefined) return lossSum;
  let sum = 0;
  for (const { elementwise_loss: terms } of outputs) {
    if (terms === undefined) return undefined;
    for (const term of terms.data) sum += term;
  }
  return sum;
}

const UNCHECKED = 'this server does not say what a loss comes to, so nothing checks that it is the loss of that name';
const HABITS: Readonly<Record<ServerKind, string | undefined>> = {
  values: undefined,
  jax: 'SkyRL’s JAX backend divides the loss of a sample by the tokens it trains and a step by its samples, whatever the weighting; it does not clip gradients',
  sharded: `${UNCHECKED}. It answers as SkyRL does with FSDP or Megatron, which takes the learning rate of the run, and β, ε, weight decay and the gradient’s norm from its own configuration (0.9 and 0.999, 1e-8, 0.01, 1 unless set there)`,
  unknown: UNCHECKED,
};

/** For whoever starts a run, once. `withMask`: whether masks are sent as weights. */
export function habitsOf(kind: ServerKind, withMask: boolean): string | undefined {
  const masks = withMask ? 'masks are sent as weights' : 'it does not take masks as weights';
  return HABITS[kind] && `${HABITS[kind]}; ${masks}`;
}

/** Throws USAGE where a sample of older weights would not be one, or would put them back into training. */
export function refuseStaleness(staleness = 0): void {
  if (staleness === 0) return;
  const found = `staleness: expected 0, found ${staleness}: this server has only the newest weights of a model to sample from`;
  throw new TrainyardError('USAGE', found, { hint: 'leave --staleness out' });
}

const FULL = /register_adapter|already has a '?policy|maximum number of LoRA adapters|models in training/i;

/** Whether a server refused to make a model because it holds as many as it can. */
export function isFull(thrown: unknown): thrown is TrainyardError {
  return thrown instanceof TrainyardError && /\bcreate_model\b/.test(thrown.message) && FULL.test(thrown.message);
}

export function waitingFor({ message }: TrainyardError, mostMs: number): string {
  const then =
    'that of a run that was killed stays for up to five minutes; unless something else uses the server, there is nothing to do';
  return `the server has no room for another model (${message}): ${then}; trying again for up to ${mostMs / 60_000} minutes`;
}
