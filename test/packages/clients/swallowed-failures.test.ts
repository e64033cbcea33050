/** Clients that swallow errors: the AI SDK's `textStream` just ends where a call failed. What failed is the rollout's all the same. */
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { streamText } from 'ai';
import { expect, it } from 'vitest';
import { scriptedEngine } from '../../../packages/testing/src/trajectories.ts';
import { defineGrader, defineWorkflow } from '../../../src/core/define.ts';
import type { Trajectory } from '../../../src/core/types.ts';
import { Gateway } from '../../../src/gateway/gateway.ts';
import { renderer, tokenizer } from '../../fixtures/gateway/streams.ts';
import { rolloutsThrough } from '../../fixtures/scripted-gateway.ts';

/** Asks twice; the engine breaks in the second call and in its repetitions, after so many tokens. */
async function rolloutThatBreaks(afterTokens: number): Promise<{ trajectory: Trajectory; told: readonly string[] }> {
  const engine = scriptedEngine({
    vocabSize: tokenizer.vocabSize,
    contextLength: 4096,
    reply: async function* (_: unknown, call: number) {
      const ids = tokenizer.encodeRendered('The answer to this is forty-two.<|im_end|>');
      for (const [place, id] of ids.entries()) {
        if (call >= 1 && place === afterTokens) throw new Error('GPU fell off the bus');
        yield [id];
      }
    },
  });
  const told: string[] = [];
  const gateway = new Gateway({ engine, renderer, modelName: 'policy', onFailure: ({ message }) => told.push(message) });
  const workflow = defineWorkflow(async (ctx) => {
    const { baseURL, apiKey, fetch, name } = ctx.model();
    const model = createOpenAICompatible({ name: 'policy', baseURL, apiKey, fetch })(name);
    let said = '';
    for (const prompt of ['plan', 'answer']) {
      said = '';
      for await (const text of streamText({ model, prompt, maxRetries: 1, onError: () => {} }).textStream) said += text;
    }
    return said;
  });
  const grader = defineGrader(({ output }) => (String(output).includes('forty-two') ? 1 : 0));
  const trajectory = await rolloutsThrough(gateway)({ workflow, grader }, { id: 't', prompt: [{ role: 'user', content: 'x' }] });
  return { trajectory, told };
}

it.each([
  ['before its first token', 0, 2],
  ['in the middle of it', 6, 1],
])('a stream that fails %s leaves a failed rollout, which is not graded', async (_, afterTokens, attempts) => {
  const { trajectory, told } = await rolloutThatBreaks(afterTokens);
  expect(trajectory).toMatchObject({
    outcome: {
      kind: 'failed',
      code: 'ENGINE_FAILED',
      message: 'the last model call of default failed: GPU fell off the bus',
    },
    grade: { kind: 'ungraded' },
    turns: [{}],
  });
  const failure = { code: 'ENGINE_FAILED', message: 'GPU fell off the bus' };
  const call = { thread: 'default', role: 'default', turnsBefore: 1, sampledTokens: afterTokens, failure };
  expect(trajectory.unanswered).toMatchObject(Array(attempts).fill(call));
  expect(told).toEqual(Array(attempts).fill('GPU fell off the bus'));
});
