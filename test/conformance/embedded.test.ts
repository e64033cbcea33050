/** The embedded model through the suites of `@trainyard/testing`, to the bit. */
import { describe, it } from 'vitest';
import { engineConformance } from '../../packages/testing/src/engine-conformance.ts';
import { trainerConformance } from '../../packages/testing/src/trainer-conformance.ts';
import { openEmbedded } from './policies.ts';

describe('the embedded model', () => {
  const cases = [
    ...engineConformance('as an engine', () => openEmbedded(2), { tolerance: 0 }),
    ...trainerConformance('as a trainer', () => openEmbedded(2), { tolerance: 0 }),
  ];
  for (const { name, run } of cases) it(name, run);
});
