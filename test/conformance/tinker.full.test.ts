/**
 * The Tinker engine and trainer, through the Tinker server of this repository, against the suites.
 */
import { afterAll, describe, it } from 'vitest';
import type { PolicyUnderTest } from '../../src/testing/conformance.ts';
import { engineConformance } from '../../src/testing/engine-conformance.ts';
import { trainerConformance } from '../../src/testing/trainer-conformance.ts';
import { REGULAR } from '../fixtures/nn/models.ts';
import { connect, type ServedModel, serveModel } from '../fixtures/tinker/real-server.ts';

/** One for all cases: what one trainer saves at a server, another one loads from it. */
let served: Promise<ServedModel> | undefined;

async function open(): Promise<PolicyUnderTest> {
  served ??= serveModel(REGULAR);
  return connect((await served).url, REGULAR);
}

afterAll(async () => {
  await (await served)?.[Symbol.asyncDispose]();
});

describe('the Tinker engine and trainer', () => {
  const cases = [...engineConformance('as an engine', open), ...trainerConformance('as a trainer', open)];
  for (const { name, run } of cases) it(name, run);
});
