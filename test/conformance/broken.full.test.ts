/** The suites fail for policies that are broken: each fault, laid over the embedded model, and the case that must find it. */
import { AssertionError } from 'node:assert/strict';
import { cp, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import type { PolicyUnderTest } from '../../packages/testing/src/conformance.ts';
import { engineConformance } from '../../packages/testing/src/engine-conformance.ts';
import { overlaid } from '../../packages/testing/src/record-history.ts';
import { trainerConformance } from '../../packages/testing/src/trainer-conformance.ts';
import type { Engine, Loss, SampleRequest, SampleResult, Trainer } from '../../src/core/policy.ts';
import type { Sample } from '../../src/core/types.ts';
import { ppo } from '../../src/training/losses.ts';
import { openEmbedded } from './policies.ts';

type Parts = Pick<PolicyUnderTest, 'engine' | 'trainer'>;
type Changes = { readonly engine?: Partial<Engine>; readonly trainer?: Partial<Trainer> };

/** `foundBy` begins the sentence of the case that must find it; the rest is what it changes of a whole policy. */
type Fault = readonly [foundBy: string, of: (whole: Parts) => Changes];

/** Other requests reach the engine than were made. */
const changedRequest =
  (change: (request: SampleRequest, engine: Engine) => Partial<SampleRequest>) =>
  ({ engine }: Parts): Changes => ({
    engine: { sample: (request, ...rest) => engine.sample({ ...request, ...change(request, engine) }, ...rest) },
  });

/** Other results leave the engine than were sampled. */
const changedResult =
  (change: (result: SampleResult) => Partial<SampleResult>) =>
  ({ engine }: Parts): Changes => ({
    engine: {
      async sample(...call) {
        const result = await engine.sample(...call);
        return { ...result, ...change(result) };
      },
    },
  });

let calls = 0;
const ENGINE_FAULTS: Readonly<Record<string, Fault>> = {
  'ignores the seed': ['samples the same tokens', changedRequest(() => ({ seed: 1 }))],
  'depends on more than the seed': ['samples the same tokens', changedRequest(() => ({ seed: calls++ }))],
  'strips the stop id': [
    'ends with the first stop id',
    changedResult(({ ids, logprobs, stopReason }) => {
      const end = ids.length - (stopReason === 'stop' ? 1 : 0);
      return { ids: ids.subarray(0, end), logprobs: logprobs.subarray(0, end) };
    }),
  ],
  'calls every end a stop': ['samples exactly maxTokens', changedResult(() => ({ stopReason: 'stop' }))],
  'reads the whole buffer of a prompt': [
    'reads a prompt that is part',
    changedRequest(({ promptIds }) => ({ promptIds: new Int32Array(promptIds.buffer) })),
  ],
  'does not listen to the listener': [
    'ends where the listener',
    ({ engine }) => ({
      engine: {
        sample: (request, signal, onTokens) =>
          engine.sample(request, signal, onTokens && ((...tokens) => void onTokens(...tokens))),
      },
    }),
  ],
  'wraps ids around': [
    'refuses what cannot be sampled',
    changedRequest(({ promptIds }, { vocabSize }) => ({ promptIds: promptIds.map((id) => id % vocabSize) })),
  ],
  'cuts long prompts': [
    'refuses a prompt that leaves no room',
    changedRequest(({ promptIds }, { contextLength }) => ({ promptIds: promptIds.subarray(1 - contextLength) })),
  ],
  'cannot be cancelled': [
    'ends a cancelled request',
    ({ engine }) => ({ engine: { sample: (request, _signal, onTokens) => engine.sample(request, undefined, onTokens) } }),
  ],
  'lets requests meet': [
    'gives 64 requests at once',
    ({ engine }) => {
      let open = 0;
      const sample: Engine['sample'] = (request, ...rest) =>
        engine.sample({ ...request, seed: request.seed + ++open }, ...rest).finally(() => open--);
      return { engine: { sample } };
    },
  ],
};

const changedSamples =
  (change: (sample: Sample) => Sample) =>
  ({ trainer }: Parts): Changes => ({
    trainer: {
      forward: (samples, ...rest) => trainer.forward(samples.map(change), ...rest),
      forwardBackward: (samples, loss) => trainer.forwardBackward(samples.map(change), loss),
    },
  });

const TRAINER_FAULTS: Readonly<Record<string, Fault>> = {
  'masks the token after the sampled one': [
    'gives sampled tokens the log-probabilities',
    changedSamples((sample) => ({ ...sample, mask: sample.mask.map((_, i, mask) => (i > 0 ? mask[i - 1]! : 0)) })),
  ],
  'reports log-probabilities of the neighbour': [
    'gives sampled tokens the log-probabilities',
    changedResult(({ logprobs }) => ({ logprobs: logprobs.map((_, i, all) => all[(i + 1) % all.length]!) })),
  ],
  'scores every sample at temperature 1': [
    'scores at the temperature of the sample',
    changedSamples((sample) => ({ ...sample, temperature: 1 })),
  ],
  'samples hotter than it says': [
    'scores at any temperature but',
    changedRequest(({ sampling }) => ({ sampling: { ...sampling, temperature: 1 } })),
  ],
  'takes NaN for 0': [
    'refuses samples that cannot be trained',
    changedSamples((sample) => ({ ...sample, advantages: sample.advantages.map((value) => value || 0) })),
  ],
  'ignores weights': ['counts a sample by its weight', changedSamples((sample) => ({ ...sample, weight: 1 }))],
  'steps on the last gradient alone': [
    'adds up the gradients',
    ({ trainer }) => {
      let last: readonly [readonly Sample[], Loss] | undefined;
      const none: Loss = {
        name: 'none',
        settings: {},
        evaluate: ({ logprobs }) => ({ loss: 0, gradient: new Float32Array(logprobs.length) }),
      };
      return {
        trainer: {
          async forwardBackward(samples, loss) {
            last = [samples, loss];
            return trainer.forwardBackward(samples, none);
          },
          async optimStep(adam) {
            if (last !== undefined) await trainer.forwardBackward(...last);
            return trainer.optimStep(adam);
          },
        },
      };
    },
  ],
  'steps twice': [
    'takes one AdamW update',
    ({ trainer }) => ({
      trainer: {
        async optimStep(adam) {
          await trainer.optimStep(adam);
          return trainer.optimStep(adam);
        },
      },
    }),
  ],
  'knows a loss by its name and forgets its penalty': [
    'takes the same step by a loss',
    ({ trainer }) => ({
      trainer: {
        forwardBackward: (samples, loss) =>
          trainer.forwardBackward(samples, loss.name === 'ppo' ? ppo({ clipLow: 0.2, clipHigh: 0.28 }) : loss),
      },
    }),
  ],
  'gives a loss no reference': ['gives a loss the log-probabilities', changedSamples(({ reference: _, ...sample }) => sample)],
  'lets verbs overtake each other': [
    'does what it is told in the order',
    ({ trainer }) => ({
      trainer: {
        async forwardBackward(samples, loss) {
          await new Promise((resolve) => setTimeout(resolve, 5));
          return trainer.forwardBackward(samples, loss);
        },
      },
    }),
  ],
  'moves the reference along': [
    'keeps a frozen reference',
    ({ trainer }) => ({ trainer: { forward: (samples) => trainer.forward(samples) } }),
  ],
  'loses the state of the optimizer': [
    'loads in a fresh trainer',
    ({ trainer }) => ({
      trainer: {
        async load(dir) {
          const copy = await mkdtemp(join(tmpdir(), 'trainyard-broken-'));
          await cp(dir, copy, { recursive: true, filter: (path) => !path.endsWith('optimizer.safetensors') });
          await trainer.load(copy).finally(() => rm(copy, { recursive: true }));
        },
      },
    }),
  ],
  'announces a version before it is served': [
    'never mixes versions',
    ({ engine, trainer }) => {
      let announced = 0;
      return {
        engine: { sample: async (...call) => ({ ...(await engine.sample(...call)), policyVersion: announced }) },
        trainer: {
          async publish(version) {
            announced = version;
            // Long enough for what is under way to end under the old weights.
            await new Promise((resolve) => setTimeout(resolve, 200));
            await trainer.publish(version);
          },
        },
      };
    },
  ],
  'serves what is in training': [
    'serves exactly the weights it published',
    ({ engine, trainer }) => ({
      trainer: {
        async optimStep(adam) {
          const result = await trainer.optimStep(adam);
          await trainer.publish(engine.policyVersion);
          return result;
        },
      },
    }),
  ],
};

async function openWith(of: Fault[1]): Promise<PolicyUnderTest> {
  const whole = await openEmbedded(1);
  const { engine = {}, trainer = {} } = of(whole);
  return { ...whole, engine: overlaid(whole.engine, engine), trainer: overlaid(whole.trainer, trainer) };
}

describe.each([
  { suite: 'engine', conformance: engineConformance, faults: ENGINE_FAULTS },
  { suite: 'trainer', conformance: trainerConformance, faults: TRAINER_FAULTS },
])('the $suite suite', ({ suite, conformance, faults }) => {
  it.each(Object.entries(faults))(`finds a policy that %s`, async (_, [foundBy, of]) => {
    const cases = conformance(suite, () => openWith(of));
    const found = cases.filter(({ name }) => name.startsWith(`${suite} ${foundBy}`));
    expect(found).toHaveLength(1);
    await expect(found[0]!.run()).rejects.toThrow(AssertionError);
  });
});
