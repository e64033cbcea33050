/**
 * Cases of the trainer's suite about what it and its engine must agree on: which weights are served under which version, and what
 * probability they give to a token. Here a mask that is off by one, another temperature or a mixture of versions comes to light.
 */
import assert from 'node:assert/strict';
import { TrainyardError } from '../core/errors.ts';
import type { Engine, SampleRequest, SampleResult } from '../core/policy.ts';
import { idsFor, requestFor, sameNumbers, sameResult, scoredSample } from './policy-under-test.ts';
import { batchFor, lastTokens, type TrainerProbe } from './trainer-probe.ts';

type Cases = Readonly<Record<string, (probe: TrainerProbe) => Promise<void>>>;

export const agreementCases: Cases = {
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
      const scored = await trainer.forward([scoredSample(request.promptIds, result, temperature)]).catch(refusal);
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
      assert.ok(
        served.every(({ policyVersion }) => policyVersion === version),
        `all are of version ${version}`,
      );
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
    // Under way when the second version is published: nothing is waited for in between.
    ask(1, 24);
    const publishing = trainer.publish(2);
    ask(24, 40);
    await publishing;
    ask(40, 48);
    const all = await Promise.all(results);
    const after = { dir: await probe.saved(), look: await probe.look() };
    probe.moved(after.look, before.look);
    const late = all.slice(40).map(({ policyVersion }) => policyVersion);
    assert.deepEqual(new Set(late), new Set([2]), 'versions of what was asked once the second was published');
    assert.equal(all[0]!.policyVersion, 1);
    for (const [version, { dir }] of [before, after].entries()) {
      const mine = all.flatMap((result, i) => (result.policyVersion === version + 1 ? [{ result, request: asked[i]! }] : []));
      await trainer.load(dir);
      await agree(
        probe,
        mine.map(({ request }) => request),
        mine.map(({ result }) => result),
      );
    }
    const versions = new Set(all.map(({ policyVersion }) => policyVersion));
    assert.deepEqual([...versions].sort(), [1, 2], 'versions of all results');
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

/** That the trainer's current weights give the sampled tokens the log-probabilities they came with. */
async function agree(probe: TrainerProbe, asked: readonly SampleRequest[], results: readonly SampleResult[]): Promise<void> {
  const scored = await probe.trainer.forward(results.map((result, i) => scoredSample(asked[i]!.promptIds, result)));
  results.forEach((result, i) => {
    sameNumbers(result.logprobs, scored[i]!, probe.tolerance, `request ${i}: log-probabilities as sampled, and as scored`);
  });
}

/** Undefined for what an implementation without other temperatures answers; anything else is thrown again. */
function refusal(thrown: unknown): undefined {
  const codes = ['SAMPLE_REFUSED', 'REQUEST_INVALID', 'POLICY_REFUSED'];
  if (!(thrown instanceof TrainyardError && codes.includes(thrown.code))) throw thrown;
}
