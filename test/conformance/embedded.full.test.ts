/** The embedded model that publishes beside calls, through the suite of `@trainyard/testing`, to the bit. */
import { describe, it } from 'vitest';
import { trainerConformance } from '../../packages/testing/src/trainer-conformance.ts';
import { openEmbedded } from './policies.ts';

describe('the embedded model', () => {
  const cases = trainerConformance('as one that publishes beside calls', () => openEmbedded(2, true), { tolerance: 0 });
  for (const { name, run } of cases) it(name, run);
});
