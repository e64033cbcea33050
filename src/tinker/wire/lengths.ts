/**
 * What must be as long as what, whichever form a message came in. Which shapes are of use is for others to say.
 */
import { WireError } from './wire-error.ts';

/** No shape: one dimension. */
export function checkShape(shape: readonly number[] | undefined, length: number, where: string): void {
  if (shape === undefined) return;
  let product = 1;
  for (const size of shape) {
    if (!Number.isSafeInteger(size) || size < 0) throw new WireError(`${where}.shape`, 'sizes of 0 or more', String(size));
    product *= size;
  }
  if (product !== length)
    throw new WireError(`${where}.shape`, `a shape of ${length} numbers`, `[${shape.slice(0, 8).join(', ')}]`);
}

/** One for each token: fewer, and every log-probability after the gap would belong to another token. */
export function checkLogprobs(tokens: Int32Array, logprobs: Float32Array | undefined, where: string): void {
  if (logprobs === undefined || logprobs.length === tokens.length) return;
  throw new WireError(`${where}.logprobs`, `one for each of ${tokens.length} tokens`, String(logprobs.length));
}
