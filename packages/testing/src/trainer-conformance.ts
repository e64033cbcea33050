/**
 * Conformance cases for trainers, and for what trainer and engine must agree on, for any test runner: `for (const { name, run } of …)
 * it(name, run)`. Each case opens and closes its own policy. Failures are AssertionErrors of node:assert. Weights are observed only through
 * `forward`, so they may be remote. A lost server (POLICY_LOST) is not covered, because how to lose one depends on the trainer.
 */
import assert from 'node:assert/strict';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { type Engine, type Sample, type SampleRequest, type SampleResult, TrainyardError } from '../../../src/index.ts';
import { crossEntropy } from '../../../src/loop.ts';
import {
  atMask,
  batchFor,
  type ConformanceCase,
  casesOf,
  idsFor,
  lastTokens,
  type PolicyConformanceOptions,
  type PolicyUnderTest,
  refusedWith,
  refuses,
  requestFor,
  sameLists,
  sameNumbers,
  sameResult,
  sampleFor,
  scoredSample,
  TOLERANCE,
  type TrainerCases,
  TrainerProbe,
} from './conformance.ts';
import { steppingCases } from './trainer-stepping.ts';

/** `open` returns a policy with any weights, whose engine serves what its trainer publishes. */
export function trainerConformance(
  name: string,
  open: () => Promise<PolicyUnderTest>,
  { tolerance = TOLERANCE }: PolicyConformanceOptions = {},
): readonly ConformanceCase[] {
  const sentences = { ...scoringCases, ...steppingCases, ...savingCases, ...agreementCases };
  return casesOf(name, sentences, async (check) => {
    await using policy = await open();
    await using probe = new TrainerProbe(policy, tolerance);
    await check(probe, open);
  });
}

/** `forward`, and samples that must be refused. */
const scoringCases: TrainerCases = {
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
    const alone: Float32Array[] = [];
    for (const sample of samples) alone.push(...(await trainer.forward([sample])));
    sameLists(together, alone, tolerance, 'sample');
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
  'scores at the temperature of the sample and trains at it, or refuses both': async ({ engine, trainer, tolerance }) => {
    const [a, b] = (await trainer.forward(lastTokens(engine, 2))).map((logprobs) => logprobs[0]!);
    for (const temperature of [0.5, 2]) {
      const samples = batchFor(engine, 20, 2).map((sample) => ({ ...sample, temperature }));
      const scored = await trainer.forward([...samples, ...lastTokens(engine, 2, { temperature })]).catch(orRefused);
      const train = () => trainer.forwardBackward(samples, crossEntropy());
      if (scored === undefined) {
        await refuses(['SAMPLE_REFUSED'], train(), `training at temperature ${temperature}, which is not scored`);
        continue;
      }
      const [hotA, hotB] = scored.slice(-2).map((logprobs) => logprobs[0]!);
      // The softmax's denominator is the same for both and cancels out.
      const rounding = Math.max(4 * tolerance, 1e-4);
      sameNumbers([hotA! - hotB!], [(a! - b!) / temperature], rounding, `the difference of two tokens at ${temperature}`);
      sameLists((await train()).logprobs, scored.slice(0, -2), tolerance, `temperature ${temperature}, sample`);
    }
    for (const temperature of [0, -1, Number.NaN])
      await refuses(['SAMPLE_REFUSED'], trainer.forward(lastTokens(engine, 1, { temperature })), `temperature ${temperature}`);
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
    const good = batchFor(engine, 30, 2);
    const beside = sampleFor(engine, 15, 8);
    const refused = async () => {
      for (const [what, sample] of Object.entries(untrainable(sampleFor(engine, 10, 9))))
        await refuses(['SAMPLE_REFUSED'], trainer.forwardBackward([beside, sample, beside], crossEntropy()), what);
      await probe.step(good);
    };
    await probe.sameAfter('a step after refused samples', refused, () => probe.step(good));
  },
};

/** A trainer that does not support other temperatures must refuse with this code. */
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

/** `save`, `load` and `forget`. */
const savingCases: TrainerCases = {
  'loads in a fresh trainer what another saved, and both take the same next step': async (probe, open) => {
    const { engine } = probe;
    const first = batchFor(engine, 300, 3);
    const second = batchFor(engine, 310, 3);
    const start = await probe.look();
    for (let step = 0; step < 3; step++) await probe.step(first);
    const dir = await probe.saved();
    assert.notEqual((await readdir(dir)).length, 0, 'nothing was written into the folder');
    const now = await probe.look();
    await probe.step(second);
    const next = await probe.look();

    await using policy = await open();
    await using fresh = new TrainerProbe(policy, probe.tolerance);
    await fresh.trainer.load(dir);
    fresh.unchanged(await fresh.look(), now, 'what a fresh trainer loaded');
    await fresh.step(second);
    // Three steps in one direction still influence the fourth, unless the optimizer's state was lost.
    fresh.same(await fresh.look(), next, now, 'the next step');
    probe.different(next, now, start, 'the next step against none');
  },
  'goes back by loading, optimizer and all, as often as it is asked': async (probe) => {
    const { engine, trainer } = probe;
    const first = batchFor(engine, 320, 3);
    const second = batchFor(engine, 330, 3);
    const detour = batchFor(engine, 340, 3);
    for (let step = 0; step < 2; step++) await probe.step(first);
    const dir = await probe.saved();
    const saved = await probe.look();
    await probe.step(second);
    const next = await probe.look();
    for (const steps of [1, 3]) {
      for (let step = 0; step < steps; step++) await probe.step(detour);
      await trainer.load(dir);
      probe.unchanged(await probe.look(), saved, `back after ${steps} steps`);
      await probe.step(second);
      probe.same(await probe.look(), next, saved, `the next step after ${steps} others`);
    }
  },
  'forgets by loading the gradient that no step was taken with': async (probe) => {
    const { engine, trainer } = probe;
    const lost = batchFor(engine, 350, 3);
    const kept = batchFor(engine, 360, 3);
    const dir = await probe.saved();
    const afterLoading = async () => {
      await trainer.forwardBackward(lost, crossEntropy());
      await trainer.load(dir);
      await probe.step(kept);
    };
    await probe.sameAfter('a step after loading', afterLoading, () => probe.step(kept));
  },
  'saves what it is when it is called, whatever is called next': async (probe) => {
    const { trainer, engine } = probe;
    const before = await probe.look();
    const dir = await probe.folder();
    await Promise.all([trainer.save(dir), probe.step(batchFor(engine, 370, 3))]);
    await trainer.load(dir);
    probe.unchanged(await probe.look(), before, 'what was saved before the step');
  },
  'refuses to load what was never saved, and stays as it is': async (probe) => {
    const before = await probe.look();
    const empty = await probe.folder();
    for (const dir of [empty, join(empty, 'missing')]) {
      await assert.rejects(probe.trainer.load(dir), TrainyardError);
    }
    probe.unchanged(await probe.look(), before, 'after refusals');
    await probe.step(batchFor(probe.engine, 380, 2));
  },
  'forgets a folder without complaint, and nothing else with it': async (probe) => {
    const { trainer } = probe;
    const forgotten = await probe.saved();
    const kept = await probe.saved();
    const saved = await probe.look();
    await probe.step(batchFor(probe.engine, 390, 3));
    const empty = await probe.folder();
    for (const dir of [forgotten, forgotten, empty, join(empty, 'missing')]) await trainer.forget(dir);
    await trainer.load(kept);
    probe.unchanged(await probe.look(), saved, 'what was saved elsewhere');
  },
};

/** Which weights each version serves, and their log-probabilities. Reveals a mask off by one, a wrong temperature or mixed versions. */
const agreementCases: TrainerCases = {
  'gives sampled tokens the log-probabilities that they were sampled with': async (probe) => {
    const { engine, trainer } = probe;
    await trainer.publish(1);
    const lengths = [1, 2, 9, 33, engine.contextLength - 6];
    const asked = lengths.map((length, i) => requestFor(idsFor(engine, length, 400 + i), { seed: i, maxTokens: 20 }));
    const free = await allAtOnce(engine, asked);
    await agree(probe, asked, free);
    const stopping = asked.map((request, i) => ({ ...request, stopIds: [free[i]!.ids[2]!] }));
    await agree(probe, stopping, await allAtOnce(engine, stopping));
  },
  'scores at any temperature but what was sampled at it, or refuses it': async (probe) => {
    const { engine, trainer, tolerance } = probe;
    await trainer.publish(1);
    for (const temperature of [0.5, 2]) {
      const request = requestFor(idsFor(engine, 9, 410), { temperature, maxTokens: 20 });
      const result = await engine.sample(request).catch(refusal);
      if (result === undefined) continue;
      const scored = await trainer.forward([scoredSample(engine, request.promptIds, result, temperature)]).catch(refusal);
      if (scored !== undefined) sameNumbers(scored[0]!, result.logprobs, tolerance, `at temperature ${temperature}`);
    }
  },
  'finds no token likelier than the one taken at temperature 0': async ({ engine, trainer, tolerance }) => {
    await trainer.publish(1);
    const samples = lastTokens(engine, 256);
    const request = requestFor(samples[0]!.tokens.subarray(0, -1), { temperature: 0, maxTokens: 1 });
    const { ids } = await engine.sample(request);
    const tokens = samples[0]!.tokens.with(-1, ids[0]!);
    const [taken, ...others] = await trainer.forward([{ ...samples[0]!, tokens }, ...samples]);
    const best = others.reduce((most, logprobs) => Math.max(most, logprobs[0]!), Number.NEGATIVE_INFINITY);
    assert.ok(taken![0]! >= best - tolerance, `took a token of log-probability ${taken![0]}, another has ${best}`);
  },
  'serves exactly the weights it published, under their version, until it publishes again': async (probe) => {
    const { engine, trainer, tolerance } = probe;
    const asked = requestsFor(engine, 6, 420);
    for (const version of [1, 2, 7]) {
      await trainer.publish(version);
      assert.equal(engine.policyVersion, version);
      const served = await allAtOnce(engine, asked);
      assert.deepEqual(versionsOf(served), [version]);
      await agree(probe, asked, served);
      const start = await probe.saved();
      await probe.step(batchFor(engine, 430 + version, 3));
      const later = await allAtOnce(engine, asked);
      later.forEach((result, i) => {
        sameResult(result, served[i]!, tolerance, `version ${version} after an unpublished step`);
        assert.equal(result.policyVersion, version);
      });
      const trained = await probe.saved();
      await trainer.load(start);
      sameResult(await engine.sample(asked[0]!), served[0]!, tolerance, `version ${version} after an unpublished load`);
      await trainer.load(trained);
    }
  },
  'never mixes versions in a result, though it publishes while tokens are sampled': async (probe) => {
    const { engine, trainer } = probe;
    await trainer.publish(1);
    const before = { dir: await probe.saved(), look: await probe.look() };
    const asked = requestsFor(engine, 48, 440);
    const results: Promise<SampleResult>[] = [engine.sample(asked[0]!)];
    await results[0];
    const ask = (first: number, end: number) => {
      for (const request of asked.slice(first, end)) results.push(engine.sample(request));
    };
    await probe.step(batchFor(engine, 450, 3));
    // In flight when the second version is published: no await in between.
    ask(1, 24);
    const publishing = trainer.publish(2);
    ask(24, 40);
    await publishing;
    ask(40, 48);
    const all = await Promise.all(results);
    const after = { dir: await probe.saved(), look: await probe.look() };
    probe.moved(after.look, before.look);
    assert.deepEqual(versionsOf(all.slice(40)), [2], 'versions of what was asked once the second was published');
    assert.equal(all[0]!.policyVersion, 1);
    for (const [version, { dir }] of [before, after].entries()) {
      const isMine = (i: number): boolean => all[i]!.policyVersion === version + 1;
      await trainer.load(dir);
      await agree(
        probe,
        asked.filter((_, i) => isMine(i)),
        all.filter((_, i) => isMine(i)),
      );
    }
    assert.deepEqual(versionsOf(all), [1, 2], 'versions of all results');
  },
};

function requestsFor(engine: Engine, count: number, seed: number): readonly SampleRequest[] {
  return Array.from({ length: count }, (_, i) =>
    requestFor(idsFor(engine, 3 + (i % 7), seed + i), { seed: i, maxTokens: 24 + (i % 9) }),
  );
}

function allAtOnce(engine: Engine, asked: readonly SampleRequest[]): Promise<readonly SampleResult[]> {
  return Promise.all(asked.map((request) => engine.sample(request)));
}

function versionsOf(results: readonly SampleResult[]): readonly number[] {
  return [...new Set(results.map(({ policyVersion }) => policyVersion))].sort();
}

/** Asserts that the trainer's weights give the sampled tokens the log-probabilities they were sampled with. */
async function agree(probe: TrainerProbe, asked: readonly SampleRequest[], results: readonly SampleResult[]): Promise<void> {
  const { engine, trainer, tolerance } = probe;
  const scored = await trainer.forward(results.map((result, i) => scoredSample(engine, asked[i]!.promptIds, result)));
  const sampled = results.map(({ logprobs }) => logprobs);
  sameLists(sampled, scored, tolerance, 'log-probabilities as sampled, and as scored, of request');
}

const refusal = refusedWith('SAMPLE_REFUSED', 'REQUEST_INVALID', 'POLICY_REFUSED');
