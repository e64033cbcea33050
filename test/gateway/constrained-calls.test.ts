import { afterAll, describe, expect, it } from 'vitest';
import { ConstrainedTokens } from '../../src/core/json-machine.ts';
import { schemaFault } from '../../src/core/json-schema.ts';
import type { Json, Sample, Tool, Turn } from '../../src/core/types.ts';
import { EmbeddedModel } from '../../src/engines/embedded/embedded-model.ts';
import { Gateway } from '../../src/gateway/gateway.ts';
import { stitch } from '../../src/tokens/stitch.ts';
import { ask, renderer, specOf } from '../fixtures/gateway/streams.ts';

const model = await EmbeddedModel.open({ dir: new URL('../../models/base', import.meta.url).pathname, threads: 1 });
afterAll(() => model.close());

const toolOf = (name: string, parameters: Json): Tool => ({ type: 'function', function: { name, parameters } });
const SCHEMAS: Readonly<Record<string, Json>> = {
  only: { type: 'object', properties: { result: { type: 'integer' } }, required: ['result'] },
  text: { type: 'object', properties: { item: { type: 'string' } }, required: ['item'] },
  several: {
    type: 'object',
    properties: {
      colour: { enum: ['red', 'green'] },
      sizes: { type: 'array', items: { type: 'number' } },
      gift: { type: 'boolean' },
    },
    required: ['colour', 'gift'],
  },
};
const tools = Object.entries(SCHEMAS).map(([name, schema]) => toolOf(name, schema));

async function asked(request: object, rolloutId = 'r1') {
  const session = new Gateway({ engine: model, renderer, modelName: 'policy' }).open(specOf(rolloutId));
  const generation = await session.model().generate({ messages: ask, tools, maxTokens: 60, ...request });
  return { generation, turns: session.seal() as readonly Turn[] };
}

const trained = (turns: readonly Turn[]): Sample =>
  stitch(turns, { advantageOf: () => 1, weight: 1, rolloutId: 'r', groupId: 'g' })[0]!;

describe('a response that must be JSON, in the embedded engine', () => {
  it('fits its schema where there are no tools to call first', async () => {
    const schema: Json = { type: 'object', properties: { gift: { type: 'boolean' } }, required: ['gift'] };
    const { generation, turns } = await asked({ tools: [], format: { schema } });
    expect([true, false]).toContain(JSON.parse(generation.text).gift);
    expect(turns[0]).toMatchObject({ constrained: { format: schema } });
    const { turns: free } = await asked({ format: { schema } });
    expect(free[0]).not.toHaveProperty('constrained');
  });
});

describe('the arguments of a forced call, in the embedded engine', () => {
  it('are JSON of the tool’s schema whenever the call ends, whatever the policy would rather say', async () => {
    for (const tool of [...Object.keys(SCHEMAS), true as const]) {
      for (const seed of [1, 2, 3, 4]) {
        const { generation } = await asked({ tool }, `r${seed}`);
        if (generation.stopReason === 'length') continue;
        const [call] = generation.toolCalls;
        expect(generation.toolCalls).toHaveLength(1);
        expect(schemaFault(SCHEMAS[call!.function.name] as never, JSON.parse(call!.function.arguments))).toBeUndefined();
      }
    }
  });

  it('may be cut off by a stop text', async () => {
    const { generation, turns: cut } = await asked({ tool: 'several', stop: [':'] });
    expect([generation.stopReason, cut[0]!.constrained]).toEqual(['stop', { tool: 'several' }]);
  });

  it('are trained with the policy’s own log-probabilities, which know no constraint', async () => {
    const { turns } = await asked({ tool: 'several' });
    const [{ promptIds, logprobs, constrained }] = turns as [Turn];
    expect(constrained).toEqual({ tool: 'several' });
    const sample = trained(turns);
    expect([...sample.mask]).toEqual([...promptIds.map(() => 0), ...logprobs.map(() => 1)]);
    expect(sample.logprobs.subarray(promptIds.length)).toEqual(logprobs);
    const [scored] = await model.forward([sample]);
    expect(Math.max(...logprobs.map((logprob, i) => Math.abs(scored![i]! - logprob)))).toBeLessThan(1e-5);
    expect(Math.min(...logprobs), 'a token that the policy would hardly have drawn itself').toBeLessThan(-3);
  });

  it('come from the policy’s distribution over what the schema allows', async () => {
    const promptIds = Int32Array.from([...renderer.open(ask, tools), ...renderer.callBeginning('several')!]);
    const constraint = renderer.callConstraint('several', tools)!;
    const tokens = new ConstrainedTokens(constraint, renderer.stopIds);
    const allowed = Array.from({ length: model.vocabSize }, (_, id) => id).filter((id) => tokens.allows(id));
    const sampling = { temperature: 3, topP: 1, topK: 0, maxTokens: 1 };
    const base: Sample = { ...trained((await asked({ tool: 'only' })).turns), temperature: 3 };
    const scoring = allowed.map((id): Sample => {
      const whole = Int32Array.of(...promptIds, id);
      const zeros = new Float32Array(whole.length);
      const mask = Uint8Array.from(whole, (_, i) => (i === promptIds.length ? 1 : 0));
      return { ...base, tokens: whole, mask, logprobs: zeros, advantages: zeros, versions: new Int32Array(whole.length) };
    });
    const weights = (await model.forward(scoring)).map(([logprob]) => Math.exp(logprob!));
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    const draws = 1500;
    const found = new Map<number, number>();
    const request = { promptIds, sampling, stopIds: renderer.stopIds, constraint };
    const requests = Array.from({ length: draws }, (_, seed) => ({ ...request, seed }));
    for (const { ids } of await Promise.all(requests.map((request) => model.sample(request)))) {
      found.set(ids[0]!, (found.get(ids[0]!) ?? 0) + 1);
    }
    expect([...found.keys()].every((id) => allowed.includes(id))).toBe(true);
    expect(allowed.length).toBeGreaterThan(1);
    allowed.forEach((id, i) => {
      const expected = weights[i]! / total;
      expect(Math.abs((found.get(id) ?? 0) / draws - expected)).toBeLessThan(
        4 * Math.sqrt((expected * (1 - expected)) / draws) + 1e-3,
      );
    });
  });

  it('are refused where the schema allows nothing', async () => {
    const never = [toolOf('never', { type: 'object', properties: { a: false }, required: ['a'] } as Json)];
    await expect(asked({ tools: never, tool: 'never' })).rejects.toMatchObject({
      code: 'REQUEST_INVALID',
      message: expect.stringMatching('no token of the vocabulary leads to JSON of the schema'),
    });
  });

  it('change nothing for other calls: no field, and the same tokens', async () => {
    const { turns } = await asked({});
    expect(turns[0]).not.toHaveProperty('constrained');
    const { promptIds, sampledIds, logprobs, sampling } = turns[0]!;
    const again = await model.sample({ promptIds, sampling: sampling.effective, stopIds: renderer.stopIds, seed: sampling.seed });
    expect([again.ids, again.logprobs]).toEqual([sampledIds, logprobs]);
  });
});
