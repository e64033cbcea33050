/** The scripted engine through the engine's suite, with a script that depends on all that tokens may depend on. */
import { describe, it } from 'vitest';
import type { EngineUnderTest } from '../../packages/testing/src/conformance.ts';
import { engineConformance } from '../../packages/testing/src/engine-conformance.ts';
import { scriptedEngine } from '../../packages/testing/src/trajectories.ts';
import type { SampleRequest } from '../../src/core/policy.ts';

const VOCABULARY = 64;

/** Tokens three at a time, for ever: from the prompt and, where something is left to chance, from the seed. */
async function* reply({ promptIds, seed, sampling: { temperature, topK, topP } }: SampleRequest): AsyncGenerator<number[]> {
  const chance = temperature === 0 || topK === 1 || topP < 0.01 ? 0 : Math.abs(seed % 1_000);
  let state = promptIds.reduce((sum, id) => sum * 31 + id + 7, 17 + chance) >>> 0;
  const next = () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return (state >>> 8) % VOCABULARY;
  };
  for (;;) yield [next(), next(), next()];
}

async function open(): Promise<EngineUnderTest> {
  const engine = scriptedEngine({ vocabSize: VOCABULARY, contextLength: 96, reply });
  return { engine, [Symbol.asyncDispose]: async () => {} };
}

describe('the scripted engine', () => {
  // It says what it is told, whatever it is asked.
  const cases = engineConformance('scripted', open).filter(({ name }) => !name.includes('refuses what cannot be sampled'));
  for (const { name, run } of cases) it(name, run);
});
