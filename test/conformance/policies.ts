/** The policies that are put through the suites: the embedded model, small and with weights that matter. */
import type { PolicyUnderTest } from '../../packages/testing/src/conformance.ts';
import { EmbeddedModel } from '../../src/engines/embedded/embedded-model.ts';
import { REGULAR, strongWeights } from '../fixtures/nn/models.ts';

export async function openEmbedded(threads = 1, overlap = false): Promise<PolicyUnderTest> {
  const model = await EmbeddedModel.create({ config: REGULAR, seed: 3, threads, overlap });
  model.weights().set(strongWeights(REGULAR, 3));
  await model.publish(0);
  return { engine: model, trainer: model, [Symbol.asyncDispose]: () => model.close() };
}
