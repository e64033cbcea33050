/** Cases of the trainer's suite about `forward`, and about samples that must be refused. */
import assert from 'node:assert/strict';
import type { Engine } from '../core/policy.ts';
import type { Sample } from '../core/types.ts';
import { atMask, refusedWith, refuses, sameNumbers, sampleFor } from './policy-under-test.ts';
import { batchFor, crossEntropy, lastTokens, type TrainerCases } from './trainer-probe.ts';

export const scoringCases: TrainerCases = {
  'scores masked tokens only, in order': async ({ engine, trainer, tolerance }) => {
    const sample = sampleFor(engine, 20, 1);
    const everything = { ...sample, mask: sample.mask.map((_, i) => (i === 0 ? 0 : 1)) };
    const [masked, all] = await trainer.forward([sample, everything]);
    assert.equal(all!.length, 19);
    sameNumbers(masked!, atMask(sample, Float32Array.of(0, ...all!)), tolerance, 'masked tokens');
  },
  'scores each sample of a batch as alone, in the order of the samples': async ({ engine, trainer, tolerance }) => {
    const samples = batchFor(engine, 10, 24);
    const together = await trainer.forward(samples);
    for (const [i, sample] of samples.entries()) {
      const [alone] = await trainer.forward([sample]);
      sameNumbers(together[i]!, alone!, tolerance, `sample ${i}`);
    }
  },
  'predicts a token from those before it alone, as a distribution': async ({ engine, trainer, tolerance }) => {
    const scored = (await trainer.forward(lastTokens(engine, 256))).map((logprobs) => logprobs[0]!);
    const total = scored.reduce((sum, logprob) => sum + Math.exp(logprob), 0);
    const rounding = Math.max(tolerance, 1e-5);
    assert.ok(total <= 1 + rounding, `probabilities of ${scored.length} tokens sum to ${total}, expected at most 1`);
    if (scored.length === engine.vocabSize) assert.ok(total >= 1 - rounding, `all probabilities sum to ${total}, expected 1`);
    assert.ok(new Set(scored).size > 1, 'every token is equally likely: weights that say nothing cannot be tested');

    const sample = sampleFor(engine, 12, 2);
    const later = { ...sample, tokens: sample.tokens.map((id, i) => (i > 6 ? (id + 1) % engine.vocabSize : id)) };
    const [found, other] = await trainer.forward([sample, later]);
    const earlier = sample.mask.subarray(0, 7).filter((m) => m === 1).length;
    sameNumbers(other!.subarray(0, earlier), found!.subarray(0, earlier), tolerance, 'tokens before those that changed');
  },
  'scores at the temperature of the sample, or refuses it': async ({ engine, trainer, tolerance }) => {
    const [a, b] = (await trainer.forward(lastTokens(engine, 2))).map((logprobs) => logprobs[0]!);
    for (const temperature of [0.5, 2]) {
      const scored = await trainer.forward(lastTokens(engine, 2, { temperature })).catch(orRefused);
      if (scored === undefined) continue;
      const [hotA, hotB] = scored.map((logprobs) => logprobs[0]!);
      // What the softmax divides by is the same for both.
      const rounding = Math.max(4 * tolerance, 1e-4);
      sameNumbers([hotA! - hotB!], [(a! - b!) / temperature], rounding, `the difference of two tokens at ${temperature}`);
    }
    for (const temperature of [0, -1, Number.NaN])
      await refuses(['SAMPLE_REFUSED'], trainer.forward(lastTokens(engine, 1, { temperature })), `temperature ${temperature}`);
  },
  'trains at the temperature that it scores at': async ({ engine, trainer, tolerance }) => {
    for (const temperature of [0.5, 2]) {
      const samples = batchFor(engine, 20, 2).map((sample) => ({ ...sample, temperature }));
      const scored = await trainer.forward(samples).catch(orRefused);
      if (scored === undefined) {
        const trained = trainer.forwardBackward(samples, crossEntropy());
        await refuses(['SAMPLE_REFUSED'], trained, `training at temperature ${temperature}, which is not scored`);
        continue;
      }
      const { logprobs } = await trainer.forwardBackward(samples, crossEntropy());
      logprobs.forEach((found, i) => {
        sameNumbers(found, scored[i]!, tolerance, `temperature ${temperature}, sample ${i}`);
      });
    }
  },
  'has nothing to say of a sample without masked tokens': async ({ engine, trainer, tolerance }) => {
    const empty = { ...sampleFor(engine, 9, 3), mask: new Uint8Array(9) };
    const single = sampleFor(engine, 1, 4);
    const other = sampleFor(engine, 9, 5);
    const [none, alsoNone, some] = await trainer.forward([empty, single, other]);
    assert.deepEqual([none!.length, alsoNone!.length], [0, 0]);
    sameNumbers(some!, (await trainer.forward([other]))[0]!, tolerance, 'the sample beside them');
    const { trainedTokens } = await trainer.forwardBackward([empty, single, other], crossEntropy());
    assert.equal(trainedTokens, some!.length);
  },
  'refuses samples that cannot be scored with SAMPLE_REFUSED': async ({ engine, trainer }) => {
    for (const [what, sample] of Object.entries(unscorable(engine))) {
      const beside = sampleFor(engine, 10, 7);
      await refuses(['SAMPLE_REFUSED'], trainer.forward([beside, sample]), `forward with ${what}`);
      await refuses(['SAMPLE_REFUSED'], trainer.forwardBackward([beside, sample], crossEntropy()), `training with ${what}`);
    }
  },
  'refuses samples that cannot be trained with SAMPLE_REFUSED, and the next step is as if they had not been there': async (
    probe,
  ) => {
    const { engine, trainer } = probe;
    const [good, beside] = [batchFor(engine, 30, 2), sampleFor(engine, 15, 8)];
    const { start, refused, clean } = await probe.outcomes({
      refused: async () => {
        for (const [what, sample] of Object.entries(untrainable(sampleFor(engine, 10, 9))))
          await refuses(['SAMPLE_REFUSED'], trainer.forwardBackward([beside, sample, beside], crossEntropy()), what);
        await probe.step(good);
      },
      clean: () => probe.step(good),
    });
    probe.same(refused, clean, start, 'a step after refused samples');
  },
};

/** What a trainer without other temperatures has to do. */
const orRefused = refusedWith('SAMPLE_REFUSED');

function unscorable(engine: Engine): Readonly<Record<string, Sample>> {
  const sample = sampleFor(engine, 10, 6);
  return {
    'an id past the vocabulary': { ...sample, tokens: sample.tokens.with(5, engine.vocabSize) },
    'a negative id': { ...sample, tokens: sample.tokens.with(5, -1) },
    'a mask that is too short': { ...sample, mask: sample.mask.subarray(1) },
    'a first token that is masked in': { ...sample, mask: sample.mask.with(0, 1) },
    'more tokens than the context': sampleFor(engine, engine.contextLength + 1, 6),
  };
}

function untrainable(sample: Sample): Readonly<Record<string, Sample>> {
  return {
    'advantages that are not numbers': { ...sample, advantages: sample.advantages.with(3, Number.NaN) },
    'infinite advantages': { ...sample, advantages: sample.advantages.with(3, Number.POSITIVE_INFINITY) },
    'log-probabilities that are not numbers': { ...sample, logprobs: sample.logprobs.with(3, Number.NaN) },
    'too few log-probabilities': { ...sample, logprobs: sample.logprobs.subarray(1) },
    'too few advantages': { ...sample, advantages: sample.advantages.subarray(1) },
    'too many advantages': { ...sample, advantages: Float32Array.of(...sample.advantages, 0) },
    'reference log-probabilities of another length': { ...sample, reference: new Float32Array(3) },
    'a weight that is not a number': { ...sample, weight: Number.NaN },
  };
}
