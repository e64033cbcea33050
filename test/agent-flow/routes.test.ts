/** The agent-flow routes as flows in any language use them: what is accepted, what is kept. */

import OpenAI from 'openai';
import { describe, expect, it } from 'vitest';
import { originFor } from '../../src/flows/flow-routes.ts';
import { listen } from '../../src/gateway/gateway.ts';
import { scriptedLogprob } from '../../src/testing/trajectories.ts';
import { ANSWER, ASK, flowBench, generated, held, renderer, say } from './bench.ts';

const SAID = 'It costs $81.<|im_end|>';
const LOOKUP = '<tool_call>{"name":"lookup","arguments":{"item": "Bin"}}</tool_call><|im_end|>';

describe('/generate', () => {
  it('gives in message form the ids that the template renders and the engine sampled, and an id of the generation', async () => {
    const bench = flowBench();
    const { body } = await generated(bench, 't1');
    expect(body).toMatchObject({
      trajectory_uid: 't1',
      prompt_uid: 'p1',
      response_text: 'It costs $81.',
      response_ids: say(SAID),
      token_ids: say(SAID),
      prompt_ids: [...renderer.open(ASK as never, [])],
      log_probs: say(SAID).map(scriptedLogprob),
      stop_reason: 'stop',
      policy_version: 0,
      generation_id: expect.stringMatching(/^gen-/),
      message: { role: 'assistant', content: 'It costs $81.' },
    });
  });

  it('gives the same in token form, from the key of a rollout alone', async () => {
    const bench = flowBench();
    const { body: inWords } = await generated(bench, 't1');
    const { key } = held(bench);
    const form = { prompt_ids: inWords.prompt_ids, sampling_params: { max_tokens: 64, temperature: 1, logprobs: true } };
    const inTokens = await bench.send('/generate', form, { key });
    expect(inTokens.body).toMatchObject({
      response_ids: inWords.response_ids,
      prompt_ids: inWords.prompt_ids,
      trajectory_uid: 'g1-0',
    });
  });

  it('goes on from the sampled ids where an answer comes back as its plain text, tool call and all', async () => {
    const bench = flowBench({ replies: [LOOKUP, SAID] });
    const first = await generated(bench, 't1');
    expect(first.body.response_text).toBe(LOOKUP.replace('<|im_end|>', ''));
    const messages = [
      ...ASK,
      { role: 'assistant', content: first.body.response_text },
      { role: 'tool', content: '{"price":81}' },
    ];
    const second = await generated(bench, 't1', 'p1', messages);
    const soFar = [...first.body.prompt_ids, ...first.body.response_ids];
    expect(second.body.prompt_ids.slice(0, soFar.length)).toEqual(soFar);
    expect(bench.gateway.session('t1')?.turns[1]).toMatchObject({ after: 0 });
  });

  it('answers a retry with the turn that was missed', async () => {
    const bench = flowBench();
    const body = { trajectory_uid: 't1', prompt_uid: 'p1', messages: ASK };
    const first = await bench.send('/generate', body);
    const again = await bench.send('/generate', body, { headers: { 'x-stainless-retry-count': '1' } });
    expect(again.body).toEqual(first.body);
    expect(bench.gateway.session('t1')?.turns).toHaveLength(1);
  });
});

describe('/submit_steps', () => {
  it('keeps the trajectory with its last step: group, ids, log-probabilities and versions of our record, the step’s reward', async () => {
    const bench = flowBench();
    const { step } = await generated(bench, 't1');
    const lies = { rollout_log_probs: step.response_ids.map(() => -9), policy_version: 0 };
    const sent = await bench.send('/submit_steps', {
      steps: [{ ...step, ...lies, is_last: true, reward: 0.5, metadata: { k: 1 } }],
    });
    expect(sent).toEqual({ status: 200, body: { accepted: 1, duplicates: 0 } });
    const [trajectory] = await bench.stored();
    expect(trajectory).toMatchObject({
      rolloutId: 't1',
      groupId: 'p1',
      purpose: 'train',
      outcome: { kind: 'completed' },
      grade: { kind: 'graded', reward: { value: 0.5, source: 'workflow' } },
      metadata: { steps: { 0: { turn: 0, reward: 0.5, metadata: { k: 1 } } } },
    });
    expect([...trajectory!.turns[0]!.sampledIds]).toEqual(step.response_ids);
    expect([...trajectory!.turns[0]!.logprobs]).toEqual(say(SAID).map(scriptedLogprob));
  });

  it('trains only the turns that are steps', async () => {
    const bench = flowBench();
    await generated(bench, 't1');
    const second = await generated(bench, 't1', 'p1', [{ role: 'user', content: 'Another?' }]);
    await bench.send('/submit_steps', { steps: [{ ...second.step, is_last: true }] });
    const [trajectory] = await bench.stored();
    expect(trajectory?.turns.map(({ trainable }) => trainable)).toEqual([false, true]);
  });

  it('credits each step with what was earned from it on, and says nothing by turn where only the end was rewarded', async () => {
    for (const [rewards, reward] of [
      [[0.25, 0.5], { value: 0.75, byTurn: { 0: 0.75, 1: 0.5 } }],
      [[0, 1], { value: 1 }],
      [[undefined, 1], { value: 1 }],
    ] as const) {
      const bench = flowBench();
      const first = await generated(bench, 't1');
      const second = await generated(bench, 't1', 'p1', [...ASK, { role: 'assistant', content: 'It costs $81.' }, ...ASK]);
      const steps = [first.step, { ...second.step, step_index: 1, is_last: true }].map((step, i) => ({
        ...step,
        reward: rewards[i],
      }));
      expect((await bench.send('/submit_steps', { steps })).status).toBe(200);
      expect((await bench.stored())[0]?.grade).toEqual({ kind: 'graded', reward: { ...reward, source: 'workflow' } });
    }
  });

  it('takes a step by its generation id alone', async () => {
    const bench = flowBench();
    const { body } = await generated(bench, 't1');
    const step = { trajectory_uid: 't1', generation_id: body.generation_id, step_index: 0, is_last: true };
    expect((await bench.send('/submit_steps', { steps: [step] })).status).toBe(200);
    expect(await bench.stored()).toHaveLength(1);
  });

  it('tells two turns apart that asked and said the same', async () => {
    const bench = flowBench();
    const first = await generated(bench, 't1');
    const second = await generated(bench, 't1');
    expect(second.step).toEqual(first.step);
    const steps = [first.step, { ...second.step, step_index: 1, is_last: true }];
    expect((await bench.send('/submit_steps', { steps })).status).toBe(200);
    expect((await bench.stored())[0]?.turns.map(({ trainable }) => trainable)).toEqual([true, true]);
  });

  it('takes the same again, also after the end, also a thousand times at once: one row', async () => {
    const bench = flowBench();
    const { step } = await generated(bench, 't1');
    const body = { steps: [{ ...step, is_last: true, reward: 1 }] };
    const sent = await Promise.all(Array.from({ length: 1000 }, () => bench.send('/submit_steps', body)));
    expect(new Set(sent.map(({ status }) => status))).toEqual(new Set([200]));
    expect((await bench.send('/submit_steps', body)).body).toEqual({ accepted: 1, duplicates: 1 });
    expect(await bench.stored()).toHaveLength(1);
  });

  it('takes steps out of order within one submission', async () => {
    const bench = flowBench();
    const first = await generated(bench, 't1');
    const second = await generated(bench, 't1', 'p1', [{ role: 'user', content: 'Another?' }]);
    const steps = [{ ...second.step, step_index: 1, is_last: true }, first.step];
    expect(await bench.send('/submit_steps', { steps })).toEqual({ status: 200, body: { accepted: 2, duplicates: 0 } });
  });

  it('puts what the channel says into validation, never into training', async () => {
    const bench = flowBench();
    const { step } = await generated(bench, 't1');
    expect((await bench.send('/submit_steps?channel=val', { steps: [{ ...step, is_last: true }] })).status).toBe(200);
    expect((await bench.stored()).map(({ purpose }) => purpose)).toEqual(['eval']);
  });
});

describe('init, register, complete', () => {
  it('opens a trajectory without a body: 32 hexadecimal digits, a base URL that ends in it and prompt 1; two differ', async () => {
    const bench = flowBench();
    const [one, two] = [await bench.send('/init_trajectory'), await bench.send('/init_trajectory')];
    expect(one.status).toBe(200);
    expect(one.body.trajectory_uid).toMatch(/^[0-9a-f]{32}$/);
    expect(one.body.base_url).toBe(`${bench.gateway.origin}/${one.body.trajectory_uid}/1/v1`);
    expect(two.body.trajectory_uid).not.toBe(one.body.trajectory_uid);
  });

  it('serves the model below the base URL; what was registered and rewarded is kept at completion', async () => {
    const bench = flowBench();
    await using _listener = await listen(bench.gateway);
    const { body } = await bench.send('/init_trajectory');
    const base = body.base_url.replace('/1/v1', '/p1/v1');
    expect(await bench.send(`${base}/register_trajectory`, { channel: 'val', metadata: { policy_version: 7, k: 1 } })).toEqual({
      status: 200,
      body: { status: 'ok' },
    });
    const client = new OpenAI({ baseURL: base, apiKey: body.api_key, maxRetries: 0 });
    const completion = await client.chat.completions.create({ model: 'policy', messages: ASK as never });
    expect(completion.choices[0]?.message.content).toBe('It costs $81.');
    // Neither the reward nor the missing channel makes it training data.
    expect(await bench.send(`${base}/complete_trajectory`, { reward: 0.5 })).toEqual({
      status: 200,
      body: { status: 'ok', num_steps: 1 },
    });
    expect(await bench.stored()).toMatchObject([
      {
        rolloutId: body.trajectory_uid,
        groupId: 'p1',
        purpose: 'eval',
        grade: { kind: 'graded', reward: { value: 0.5, source: 'workflow' } },
        metadata: { k: 1 },
        turns: [{ policyVersion: 0 }],
      },
    ]);
    await expect(client.chat.completions.create({ model: 'policy', messages: ASK as never })).rejects.toMatchObject({
      status: 410,
    });
  });

  it('asks the grader where nobody said a reward, with the answer of the task', async () => {
    const bench = flowBench();
    const { body } = await bench.send('/init_trajectory', { prompt_uid: 'p1' });
    const chat = await bench.send(`${body.base_url}/chat/completions`, { messages: ASK }, { key: body.api_key });
    expect(chat.status).toBe(200);
    await bench.send(`${body.base_url}/complete_trajectory`);
    expect((await bench.stored())[0]?.grade).toEqual({ kind: 'graded', reward: { value: 1 } });
  });

  it('completes twice alike, and refuses another ending', async () => {
    const bench = flowBench();
    const { body } = await generated(bench, 't1');
    expect(body.trajectory_uid).toBe('t1');
    const complete = (given?: object) => bench.send('/t1/p1/v1/complete_trajectory', given);
    expect((await complete({ reward: 1 })).status).toBe(200);
    expect((await complete({ reward: 1 })).status).toBe(200);
    expect((await complete()).status).toBe(200);
    expect(await complete({ reward: 0 })).toMatchObject({ status: 409, body: { error: { code: 'trajectory_complete' } } });
    expect(await bench.stored()).toMatchObject([{ grade: { reward: { value: 1 } } }]);
  });

  it('keeps a trajectory without a step as one that did nothing', async () => {
    const bench = flowBench();
    const { body } = await bench.send('/init_trajectory', { prompt_uid: 'p1' });
    expect((await bench.send(`${body.base_url}/complete_trajectory`)).status).toBe(200);
    expect(await bench.stored()).toMatchObject([{ groupId: 'p1', outcome: { kind: 'rejected', reason: 'no_turns' }, turns: [] }]);
  });

  it('keeps a trajectory whose agent failed as failed, without a reward', async () => {
    const bench = flowBench();
    await generated(bench, 't1');
    await bench.send('/t1/p1/v1/complete_trajectory', { error: 'tool exploded', reward: 1 });
    expect(await bench.stored()).toMatchObject([
      { outcome: { kind: 'failed', message: 'tool exploded' }, grade: { kind: 'ungraded' } },
    ]);
  });

  it('says what steps there are', async () => {
    const bench = flowBench();
    const { step } = await generated(bench, 't1');
    await bench.send('/submit_steps', { steps: [{ ...step, reward: 0.5 }] });
    expect((await bench.send('/t1/p1/v1/steps', undefined, { method: 'GET' })).body).toMatchObject({
      complete: false,
      num_steps: 1,
      steps: [{ step_index: 0, turn: 0, reward: 0.5, is_last: false }],
      trained_turns: [0],
      reward: { value: 0.5, by_turn: null },
    });
  });
});

describe('a trajectory that a run holds', () => {
  it('is what init with its key names; the run keeps it, not these routes', async () => {
    const bench = flowBench();
    const { session, key } = held(bench);
    const { body } = await bench.send('/init_trajectory', undefined, { key });
    expect(body).toMatchObject({ trajectory_uid: 'g1-0', base_url: `${bench.gateway.origin}/g1-0/g1/v1` });
    expect((await bench.send(`${body.base_url}/chat/completions`, { messages: ASK }, { key: body.api_key })).status).toBe(200);
    expect((await bench.send(`${body.base_url}/complete_trajectory`, { reward: 1 }, { key })).status).toBe(200);
    expect(await bench.stored()).toEqual([]);
    expect(session.seal()).toHaveLength(1);
  });

  it('is only for what the run says', async () => {
    const bench = flowBench();
    const { key } = held(bench);
    const { body } = await bench.send('/generate', { messages: ASK }, { key });
    const step = { trajectory_uid: 'g1-0', generation_id: body.generation_id };
    expect(await bench.send('/submit_steps?channel=val', { steps: [step] }, { key })).toMatchObject({
      status: 409,
      body: { error: { code: 'trajectory_conflict', param: 'channel' } },
    });
    expect((await bench.send('/submit_steps?channel=train', { steps: [step] }, { key })).status).toBe(200);
  });
});

describe('/compute_reward', () => {
  it('joins the answer here, whatever the dataset fields say, and never tells it', async () => {
    const bench = flowBench();
    const { body } = await generated(bench, 't1');
    const messages = [...ASK, { role: 'assistant', content: 'It costs $81.' }];
    const asked = { trajectory_uid: 't1', messages, dataset_fields: { answer: 'something else', ground_truth: 'x' } };
    const inWords = await bench.send('/compute_reward', asked);
    expect(inWords).toEqual({ status: 200, body: { reward: 1, reward_score: 1, reward_extra_info: {} } });
    const { prompt_ids, response_ids } = body;
    const inTokens = await bench.send('/compute_reward', {
      trajectory_uid: 't1',
      prompt_ids,
      response_ids,
      num_turns: 2,
      dataset_fields: {},
    });
    expect(inTokens.body).toMatchObject({ reward_score: 1 });
    expect(JSON.stringify([inWords, inTokens, body])).not.toContain(ANSWER);
  });

  it('is about the conversation that was sent', async () => {
    const bench = flowBench();
    await generated(bench, 't1');
    const messages = [...ASK, { role: 'assistant', content: 'No idea.' }];
    expect((await bench.send('/compute_reward', { trajectory_uid: 't1', messages })).body).toMatchObject({ reward: 0 });
  });

  it('is 503 without a grader or a task, and 500 where the grader fails: never a reward of 0', async () => {
    const asked = { trajectory_uid: 't1', messages: [...ASK, { role: 'assistant', content: 'x' }] };
    const without = flowBench({ grade: null });
    await generated(without, 't1');
    expect(await without.send('/compute_reward', asked)).toMatchObject({ status: 503, body: { error: { code: 'no_grader' } } });
    const strange = flowBench();
    await generated(strange, 't1', 'p9');
    expect(await strange.send('/compute_reward', asked)).toMatchObject({ status: 503, body: { error: { code: 'no_grader' } } });
    const broken = flowBench({
      grade: () => {
        throw new Error('broken');
      },
    });
    await generated(broken, 't1');
    expect(await broken.send('/compute_reward', asked)).toMatchObject({
      status: 500,
      body: { error: { code: 'grader_failed' } },
    });
    expect((await broken.send('/generate', { trajectory_uid: 't1', messages: ASK })).status).toBe(200);
  });
});

describe('the base URL', () => {
  const bound = 'http://127.0.0.1:8100';

  it.each([
    ['127.0.0.1:8100', bound],
    ['localhost:8100', 'http://localhost:8100'],
    ['[::1]:8100', 'http://[::1]:8100'],
    ['evil.com', bound],
    ['evil.com:8100', bound],
    ['localhost:9', bound],
    ['localhost:8100@evil.com', bound],
    ['', bound],
    [undefined, bound],
  ])('for a request to %s', (host, origin) => {
    expect(originFor(bound, host)).toBe(origin);
  });

  it('has the name that the client used, over HTTP', async () => {
    const bench = flowBench();
    await using listener = await listen(bench.gateway);
    const origin = listener.origin.replace('127.0.0.1', 'localhost');
    const init = async (from: string): Promise<string> => {
      const reply = await fetch(`${from}/init_trajectory`, { method: 'POST', headers: { authorization: `Bearer ${bench.key}` } });
      return ((await reply.json()) as { base_url: string }).base_url;
    };
    expect(await init(listener.origin)).toContain(`${listener.origin}/`);
    expect(await init(origin)).toContain(`${origin}/`);
  });
});
