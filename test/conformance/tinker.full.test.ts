/**
 * The Tinker engine and trainer, through the Tinker server of this repository, against the suites.
 */
import { afterAll, beforeAll, describe, it } from 'vitest';
import type { PolicyUnderTest } from '../../packages/testing/src/conformance.ts';
import { engineConformance } from '../../packages/testing/src/engine-conformance.ts';
import { trainerConformance } from '../../packages/testing/src/trainer-conformance.ts';
import { REGULAR } from '../fixtures/nn/models.ts';
import { connect, scratch, serve } from '../fixtures/tinker/server.ts';

/** One for all cases: what one trainer saves at a server, another one loads from it. */
let home: Awaited<ReturnType<typeof scratch>>;
let served: Awaited<ReturnType<typeof serve>>;
beforeAll(async () => {
  home = await scratch();
  served = await serve(home);
});
afterAll(async () => {
  await served.close();
  await home.remove();
});

const open = (): Promise<PolicyUnderTest> => connect(served.url, REGULAR);

describe('the Tinker engine and trainer', () => {
  const cases = [...engineConformance('as an engine', open), ...trainerConformance('as a trainer', open)];
  for (const { name, run } of cases) it(name, run);
});
