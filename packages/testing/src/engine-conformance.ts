/**
 * Conformance cases for engines, for any test runner: `for (const { name, run } of …) it(name, run)`. Each case opens and closes its own
 * engine. Failures are AssertionErrors of node:assert. An engine alone cannot show whether log-probabilities are those of its weights: the
 * trainer's suite checks both together.
 */
import assert from 'node:assert/strict';
import type { Engine, ErrorCode, SampleRequest, SampleResult } from '../../../src/index.ts';
import {
  type ConformanceCase,
  casesOf,
  type EngineUnderTest,
  idsFor,
  type PolicyConformanceOptions,
  refuses,
  requestFor,
  sameResult,
  TOLERANCE,
} from './conformance.ts';

/** `open` returns an engine with any weights that do not always give the same output. */
export function engineConformance(
  name: string,
  open: () => Promise<EngineUnderTest>,
  { tolerance = TOLERANCE }: PolicyConformanceOptions = {},
): readonly ConformanceCase[] {
  return casesOf(name, CASES, async (check) => {
    await using opened = await open();
    await check(opened, tolerance);
  });
}

type Cases = Readonly<Record<string, (opened: EngineUnderTest, tolerance: number) => Promise<void>>>;

const REFUSED: readonly ErrorCode[] = ['REQUEST_INVALID', 'POLICY_REFUSED'];

const CASES: Cases = {
  'samples the same tokens for the same request and seed, and others for other seeds': async ({ engine }, tolerance) => {
    const asked = [1, 2, 3, 0, -5, Number.MAX_SAFE_INTEGER].map((seed) => requestFor(idsFor(engine, 9, 1), { seed }));
    const first = await oneByOne(engine, asked);
    const second = await oneByOne(engine, asked);
    for (const [i, result] of first.entries()) sameResult(second[i]!, result, tolerance, `seed ${asked[i]!.seed} again`);
    assert.ok(new Set(first.map(({ ids }) => ids.join())).size > 1, 'every seed gave the same tokens');
  },
  'gives ids of its vocabulary, one finite log-probability of at most 0 for each, and the version it serves': async ({
    engine,
  }) => {
    for (const seed of [1, 2, 3, 4]) {
      const result = await engine.sample(requestFor(idsFor(engine, 1 + seed * 3, seed), { seed }));
      wellFormed(engine, result);
      assert.equal(result.policyVersion, engine.policyVersion);
    }
  },
  'takes the likeliest token at temperature 0, whatever the seed': async ({ engine }) => {
    const promptIds = idsFor(engine, 7, 3);
    const greedy = await engine.sample(requestFor(promptIds, { temperature: 0 }));
    const settings = [{ temperature: 0 }, { topK: 1 }, { topP: 1e-6 }, { temperature: 0, topK: 3, topP: 0.5 }];
    for (const [seed, changes] of settings.entries()) {
      const other = await engine.sample(requestFor(promptIds, { ...changes, seed: 100 + seed }));
      assert.deepEqual([...other.ids], [...greedy.ids], `sampled with ${JSON.stringify(changes)}`);
    }
  },
  'reads a prompt that is part of a larger buffer, and leaves it as it was': async ({ engine }, tolerance) => {
    const alone = idsFor(engine, 6, 4);
    const buffer = idsFor(engine, 30, 5);
    buffer.set(alone, 11);
    const before = buffer.slice();
    const result = await engine.sample(requestFor(buffer.subarray(11, 17)));
    sameResult(result, await engine.sample(requestFor(alone)), tolerance, 'a part of a buffer');
    assert.deepEqual(buffer, before);
  },

  'ends with the first stop id that it samples, and keeps it': async ({ engine }, tolerance) => {
    for (const seed of [1, 2, 3]) {
      const free = await engine.sample(requestFor(idsFor(engine, 5, seed), { seed, maxTokens: 12 }));
      for (const place of [0, 4, 11]) {
        const stopIds = [free.ids[place]!, engine.vocabSize - 1];
        const length = free.ids.findIndex((id) => stopIds.includes(id)) + 1;
        const stopped = await engine.sample(requestFor(idsFor(engine, 5, seed), { seed, maxTokens: 12, stopIds }));
        sameResult(stopped, cutTo(free, length), tolerance, `stopped by ${stopIds.join(' or ')}`);
      }
    }
  },
  'samples exactly maxTokens, or to the end of the context, where nothing stops it': async ({ engine }) => {
    for (const maxTokens of [1, 2, 13]) {
      const result = await engine.sample(requestFor(idsFor(engine, 4, 6), { maxTokens }));
      assert.deepEqual([result.ids.length, result.stopReason], [maxTokens, 'length']);
    }
    for (const room of [1, 3]) {
      const result = await engine.sample(requestFor(idsFor(engine, engine.contextLength - room, 7), { maxTokens: 5 }));
      assert.deepEqual([result.ids.length, result.stopReason], [room, 'length'], `with room for ${room}`);
    }
  },

  'tells a listener exactly the tokens of the result, in order, before it resolves': async ({ engine }, tolerance) => {
    const asked = requestFor(idsFor(engine, 5, 8), { maxTokens: 10 });
    const heard: { ids: number[]; logprobs: number[] } = { ids: [], logprobs: [] };
    const result = await engine.sample(asked, undefined, (ids, logprobs) => {
      heard.ids.push(...ids);
      heard.logprobs.push(...logprobs);
      return undefined;
    });
    assert.deepEqual(heard, { ids: [...result.ids], logprobs: [...result.logprobs] });
    sameResult(await engine.sample(asked), result, tolerance, 'without a listener');
  },
  'ends where the listener has enough, as by a stop id': async ({ engine }, tolerance) => {
    const asked = requestFor(idsFor(engine, 5, 9), { maxTokens: 10 });
    const whole = await engine.sample(asked);
    for (const enough of [0, 1, 3, 10]) {
      let heard = 0;
      let ended = false;
      let late = 0;
      const result = await engine.sample(asked, undefined, (ids) => {
        if (ended) late += ids.length;
        const before = heard;
        heard += ids.length;
        ended = heard >= Math.max(enough, 1);
        return ended ? { keep: enough - before } : undefined;
      });
      assert.equal(late, 0, 'tokens came after the listener had enough');
      sameResult(result, cutTo(whole, enough), tolerance, `cut to ${enough}`);
    }
    sameResult(await engine.sample(asked), whole, tolerance, 'asked again afterwards');
  },

  'refuses a prompt that leaves no room for a token with CONTEXT_OVERFLOW': async ({ engine }) => {
    for (const length of [engine.contextLength, engine.contextLength + 7]) {
      await refuses(['CONTEXT_OVERFLOW'], engine.sample(requestFor(idsFor(engine, length, 1))), `a prompt of ${length} tokens`);
    }
  },
  'refuses what cannot be sampled, and goes on': async ({ engine }, tolerance) => {
    const good = requestFor(idsFor(engine, 5, 10));
    const before = await engine.sample(good);
    const { vocabSize } = engine;
    const bad: Readonly<Record<string, SampleRequest>> = {
      'an id past the vocabulary': requestFor(Int32Array.of(1, vocabSize, 2)),
      'a negative id': requestFor(Int32Array.of(1, -1, 2)),
      'an empty prompt': requestFor(new Int32Array(0)),
      'a temperature that is not a number': requestFor(good.promptIds, { temperature: Number.NaN }),
      'a negative temperature': requestFor(good.promptIds, { temperature: -1 }),
      'topP 0': requestFor(good.promptIds, { topP: 0 }),
      'no tokens at all': requestFor(good.promptIds, { maxTokens: 0 }),
      'a seed that is not whole': requestFor(good.promptIds, { seed: 0.5 }),
    };
    for (const [what, request] of Object.entries(bad)) await refuses(REFUSED, engine.sample(request), what);
    sameResult(await engine.sample(good), before, tolerance, 'a good request afterwards');
  },
  'ends a cancelled request with CANCELLED, before it begins and under way, and goes on': async ({ engine }, tolerance) => {
    const asked = Array.from({ length: 12 }, (_, i) => requestFor(idsFor(engine, 4, i), { seed: i, maxTokens: 30 }));
    const alone = await oneByOne(engine, asked);
    await refuses(['CANCELLED'], engine.sample(asked[0]!, AbortSignal.abort()), 'cancelled before it began');
    let heard = 0;
    const stops = asked.map(() => new AbortController());
    const all = asked.map((request, i) =>
      engine.sample(request, stops[i]!.signal, () => {
        if (stops[i]!.signal.aborted) heard++;
        return undefined;
      }),
    );
    const cancelled = all.map((promise, i) => (i % 2 === 0 ? refuses(['CANCELLED'], promise, `call ${i}`) : undefined));
    for (const [i, stop] of stops.entries()) if (i % 2 === 0) stop.abort();
    await Promise.all(cancelled);
    for (let i = 1; i < all.length; i += 2) sameResult(await all[i]!, alone[i]!, tolerance, `call ${i}, not cancelled`);
    assert.equal(heard, 0, 'tokens came after a cancellation');
    sameResult(await engine.sample(asked[0]!), alone[0]!, tolerance, 'a cancelled request, asked again');
  },

  'gives 64 requests at once what it gives each alone, whatever they share and whatever their affinity': async (
    { engine },
    tolerance,
  ) => {
    const shared = idsFor(engine, 20, 11);
    const asked = Array.from({ length: 64 }, (_, i) => {
      const own = idsFor(engine, 1 + (i % 9), i);
      const promptIds = i % 3 === 0 ? own : Int32Array.of(...shared.subarray(0, 12 + (i % 8)), ...own);
      const affinity = i % 2 === 0 ? {} : { affinity: `group ${i % 5}` };
      return requestFor(promptIds, { seed: i, maxTokens: 3 + (i % 8), ...affinity });
    });
    const together = await Promise.all(asked.map((request) => engine.sample(request)));
    const alone = await oneByOne(
      engine,
      asked.map(({ affinity: _, ...request }) => request),
    );
    for (const [i, result] of together.entries()) sameResult(result, alone[i]!, tolerance, `request ${i}`);
  },
};

async function oneByOne(engine: Engine, asked: readonly SampleRequest[]): Promise<readonly SampleResult[]> {
  const results: SampleResult[] = [];
  for (const request of asked) results.push(await engine.sample(request));
  return results;
}

function wellFormed(engine: Engine, { ids, logprobs }: SampleResult): void {
  const stray = ids.find((id) => id < 0 || id >= engine.vocabSize);
  assert.equal(stray, undefined, `id ${stray} is outside the vocabulary of ${engine.vocabSize}`);
  assert.equal(logprobs.length, ids.length, `${logprobs.length} log-probabilities for ${ids.length} ids`);
  const bad = logprobs.find((logprob) => !(Number.isFinite(logprob) && logprob <= 0));
  assert.equal(bad, undefined, `a log-probability is ${bad}, expected a finite number of at most 0`);
}

/** The result if sampling had stopped at this length. */
function cutTo({ ids, logprobs, policyVersion }: SampleResult, length: number): SampleResult {
  return { ids: ids.subarray(0, length), logprobs: logprobs.subarray(0, length), stopReason: 'stop', policyVersion };
}
