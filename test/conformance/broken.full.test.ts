/** The suites fail for policies that are broken: each fault, laid over the embedded model, and the case that must find it. */
import { AssertionError } from 'node:assert/strict';
import { cp, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import type { Engine, Loss, Trainer } from '../../src/core/policy.ts';
import type { Sample } from '../../src/core/types.ts';
import type { PolicyUnderTest } from '../../src/testing/conformance.ts';
import { engineConformance } from '../../src/testing/engine-conformance.ts';
import { trainerConformance } from '../../src/testing/trainer-conformance.ts';
import { ppo } from '../../src/trainer/losses.ts';
import { openEmbedded } from './policies.ts';

interface Parts {
  readonly engine: Engine;
  readonly trainer: Trainer;
}

/** What the fault changes of a whole policy; `foundBy` begins the sentence of the case. */
interface Fault {
  readonly foundBy: string;
  of(whole: Parts): { readonly engine?: Partial<Engine>; readonly trainer?: Partial<Trainer> };
}

const ENGINE_FAULTS: Readonly<Record<string, Fault>> = {
  'ignores the seed': {
    foundBy: 'samples the same tokens',
    of: ({ engine }) => ({ engine: { sample: (request, ...rest) => engine.sample({ ...request, seed: 1 }, ...rest) } }),
  },
  'depends on more than the seed': {
    foundBy: 'samples the same tokens',
    of: ({ engine }) => {
      let calls = 0;
      return { engine: { sample: (request, ...rest) => engine.sample({ ...request, seed: calls++ }, ...rest) } };
    },
  },
  'strips the stop id': {
    foundBy: 'ends with the first stop id',
    of: ({ engine }) => ({
      engine: {
        async sample(...call) {
          const result = await engine.sample(...call);
          const end = result.ids.length - (result.stopReason === 'stop' ? 1 : 0);
          return { ...result, ids: result.ids.subarray(0, end), logprobs: result.logprobs.subarray(0, end) };
        },
      },
    }),
  },
  'calls every end a stop': {
    foundBy: 'samples exactly maxTokens',
    of: ({ engine }) => ({
      engine: { sample: async (...call) => ({ ...(await engine.sample(...call)), stopReason: 'stop' }) },
    }),
  },
  'reads the whole buffer of a prompt': {
    foundBy: 'reads a prompt that is part',
    of: ({ engine }) => ({
      engine: {
        sample: (request, ...rest) => engine.sample({ ...request, promptIds: new Int32Array(request.promptIds.buffer) }, ...rest),
      },
    }),
  },
  'does not listen to the listener': {
    foundBy: 'ends where the listener',
    of: ({ engine }) => ({
      engine: {
        sample: (request, signal, onTokens) =>
          engine.sample(request, signal, onTokens && ((...tokens) => void onTokens(...tokens))),
      },
    }),
  },
  'wraps ids around': {
    foundBy: 'refuses what cannot be sampled',
    of: ({ engine }) => ({
      engine: {
        sample: (request, ...rest) =>
          engine.sample({ ...request, promptIds: request.promptIds.map((id) => id % engine.vocabSize) }, ...rest),
      },
    }),
  },
  'cuts long prompts': {
    foundBy: 'refuses a prompt that leaves no room',
    of: ({ engine }) => ({
      engine: {
        sample: (request, ...rest) =>
          engine.sample({ ...request, promptIds: request.promptIds.subarray(1 - engine.contextLength) }, ...rest),
      },
    }),
  },
  'cannot be cancelled': {
    foundBy: 'ends a cancelled request',
    of: ({ engine }) => ({ engine: { sample: (request, _signal, onTokens) => engine.sample(request, undefined, onTokens) } }),
  },
  'lets requests meet': {
    foundBy: 'gives 64 requests at once',
    of: ({ engine }) => {
      let open = 0;
      return {
        engine: {
          async sample(request, ...rest) {
            open++;
            return engine.sample({ ...request, seed: request.seed + open }, ...rest).finally(() => open--);
          },
        },
      };
    },
  },
};

const changedSamples =
  (change: (sample: Sample) => Sample) =>
  ({ trainer }: Parts): { readonly trainer: Partial<Trainer> } => ({
    trainer: {
      forward: (samples, ...rest) => trainer.forward(samples.map(change), ...rest),
      forwardBackward: (samples, loss) => trainer.forwardBackward(samples.map(change), loss),
    },
  });

const TRAINER_FAULTS: Readonly<Record<string, Fault>> = {
  'masks the token after the sampled one': {
    foundBy: 'gives sampled tokens the log-probabilities',
    of: changedSamples((sample) => ({ ...sample, mask: sample.mask.map((_, i, mask) => (i > 0 ? mask[i - 1]! : 0)) })),
  },
  'reports log-probabilities of the neighbour': {
    foundBy: 'gives sampled tokens the log-probabilities',
    of: ({ engine }) => ({
      engine: {
        async sample(...call) {
          const result = await engine.sample(...call);
          return { ...result, logprobs: result.logprobs.map((_, i, all) => all[(i + 1) % all.length]!) };
        },
      },
    }),
  },
  'scores every sample at temperature 1': {
    foundBy: 'scores at the temperature of the sample',
    of: changedSamples((sample) => ({ ...sample, temperature: 1 })),
  },
  'samples hotter than it says': {
    foundBy: 'scores at any temperature but',
    of: ({ engine }) => ({
      engine: {
        sample: (request, ...rest) => engine.sample({ ...request, sampling: { ...request.sampling, temperature: 1 } }, ...rest),
      },
    }),
  },
  'takes NaN for 0': {
    foundBy: 'refuses samples that cannot be trained',
    of: changedSamples((sample) => ({ ...sample, advantages: sample.advantages.map((value) => value || 0) })),
  },
  'ignores weights': { foundBy: 'counts a sample by its weight', of: changedSamples((sample) => ({ ...sample, weight: 1 })) },
  'steps on the last gradient alone': {
    foundBy: 'adds up the gradients',
    of: ({ trainer }) => {
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
  },
  'steps twice': {
    foundBy: 'takes one AdamW update',
    of: ({ trainer }) => ({
      trainer: {
        async optimStep(adam) {
          await trainer.optimStep(adam);
          return trainer.optimStep(adam);
        },
      },
    }),
  },
  'knows a loss by its name and forgets its penalty': {
    foundBy: 'takes the same step by a loss',
    of: ({ trainer }) => ({
      trainer: {
        forwardBackward: (samples, loss) =>
          trainer.forwardBackward(samples, loss.name === 'ppo' ? ppo({ clipLow: 0.2, clipHigh: 0.28 }) : loss),
      },
    }),
  },
  'gives a loss no reference': {
    foundBy: 'gives a loss the log-probabilities',
    of: changedSamples(({ reference: _, ...sample }) => sample),
  },
  'lets verbs overtake each other': {
    foundBy: 'does what it is told in the order',
    of: ({ trainer }) => ({
      trainer: {
        async forwardBackward(samples, loss) {
          await new Promise((resolve) => setTimeout(resolve, 5));
          return trainer.forwardBackward(samples, loss);
        },
      },
    }),
  },
  'moves the reference along': {
    foundBy: 'keeps a frozen reference',
    of: ({ trainer }) => ({ trainer: { forward: (samples) => trainer.forward(samples) } }),
  },
  'loses the state of the optimizer': {
    foundBy: 'loads in a fresh trainer',
    of: ({ trainer }) => ({
      trainer: {
        async load(dir) {
          const copy = await mkdtemp(join(tmpdir(), 'trainyard-broken-'));
          await cp(dir, copy, { recursive: true, filter: (path) => !path.endsWith('optimizer.safetensors') });
          await trainer.load(copy).finally(() => rm(copy, { recursive: true }));
        },
      },
    }),
  },
  'announces a version before it is served': {
    foundBy: 'never mixes versions',
    of: ({ engine, trainer }) => {
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
  },
  'serves what is in training': {
    foundBy: 'serves exactly the weights it published',
    of: ({ engine, trainer }) => ({
      trainer: {
        async optimStep(adam) {
          const result = await trainer.optimStep(adam);
          await trainer.publish(engine.policyVersion);
          return result;
        },
      },
    }),
  },
};

/** The policy with some of its methods replaced. */
function laidOver<T extends object>(whole: T, changes: Partial<T> | undefined): T {
  return new Proxy(whole, {
    get(target, key) {
      const value = Reflect.get(changes !== undefined && key in changes ? changes : target, key, target) as unknown;
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
}

async function openWith(fault: Fault): Promise<PolicyUnderTest> {
  const whole = await openEmbedded(1);
  const { engine, trainer } = fault.of(whole);
  return { ...whole, engine: laidOver(whole.engine, engine), trainer: laidOver(whole.trainer, trainer) };
}

describe.each([
  { suite: 'engine', conformance: engineConformance, faults: ENGINE_FAULTS },
  { suite: 'trainer', conformance: trainerConformance, faults: TRAINER_FAULTS },
])('the $suite suite', ({ suite, conformance, faults }) => {
  it.each(Object.entries(faults))(`finds a policy that %s`, async (_, fault) => {
    const cases = conformance(suite, () => openWith(fault));
    const found = cases.filter(({ name }) => name.startsWith(`${suite} ${fault.foundBy}`));
    expect(found).toHaveLength(1);
    await expect(found[0]!.run()).rejects.toThrow(AssertionError);
  });
});
