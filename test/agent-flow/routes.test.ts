/** The agent-flow routes as flows in any language use them: what is accepted, what is kept. */
import OpenAI from 'openai';
import { beforeEach, describe, expect, it } from 'vitest';
import { scriptedLogprob } from '../../packages/testing/src/trajectories.ts';
import { listen } from '../../src/gateway/gateway.ts';
import { originFor } from '../../src/shapes/flows/flow-routes.ts';
import { renderer, say } from '../fixtures/gateway/streams.ts';
import { ANSWER, ASK, type FlowBench, flowBench, generated, held, LOOKUP, SAID } from './bench.ts';

const ANOTHER = [{ role: 'user', content: 'Another?' }];
let bench: FlowBench;
beforeEach(() => {
  bench = flowBench();
});

describe('/generate', () => {
  it('gives in message form the ids that the template renders and the engine sampled, and an id of the generation', async () => {
    const { body } = await generated(bench, 't1');
    expect(body).toMatchObject({
      ...{ trajectory_uid: 't1', prompt_uid: 'p1', generation_id: expect.stringMatching(/^gen-/) },
      ...{ response_text: 'It costs $81.', response_ids: say(SAID), token_ids: say(SAID) },
      ...{ prompt_ids: [...renderer.open(ASK as never, [])], log_probs: say(SAID).map(scriptedLogprob) },
      ...{ stop_reason: 'stop', policy_version: 0 },
      message: { role: 'assistant', content: 'It costs $81.' },
    });
  });

  it('gives the same in token form, from the key of a rollout alone', async () => {
    const { body: inWords } = await generated(bench, 't1');
    const { key } = held(bench);
    const form = { prompt_ids: inWords.prompt_ids, sampling_params: { max_tokens: 64, temperature: 1, logprobs: true } };
    const { response_ids, prompt_ids } = inWords;
    expect((await bench.send('/generate', form, { key })).body).toMatchObject({
      ...{ response_ids, prompt_ids, trajectory_uid: 'g1-0' },
    });
  });

  it('goes on from the sampled ids where an answer comes back as its plain text, tool call and all', async () => {
    bench = flowBench({ replies: [LOOKUP, SAID] });
    const first = await generated(bench, 't1');
    expect(first.body.response_text).toBe(LOOKUP.replace('<|im_end|>', ''));
    const said = { role: 'assistant', content: first.body.response_text };
    const second = await generated(bench, 't1', 'p1', [...ASK, said, { role: 'tool', content: '{"price":81}' }]);
    const soFar = [...first.body.prompt_ids, ...first.body.response_ids];
    expect(second.body.prompt_ids.slice(0, soFar.length)).toEqual(soFar);
    expect(bench.gateway.session('t1')?.turns[1]).toMatchObject({ after: 0 });
  });

  it('answers a retry with the turn that was missed', async () => {
    const body = { trajectory_uid: 't1', prompt_uid: 'p1', messages: ASK };
    const first = await bench.send('/generate', body);
    const again = await bench.send('/generate', body, { headers: { 'x-stainless-retry-count': '1' } });
    expect(again.body).toEqual(first.body);
    expect(bench.gateway.session('t1')?.turns).toHaveLength(1);
  });
});

describe('/submit_steps', () => {
  it('keeps the trajectory with its last step: group, ids, log-probabilities and versions of our record, the step’s reward', async () => {
    const { step } = await generated(bench, 't1');
    const lies = { rollout_log_probs: step.response_ids.map(() => -9), policy_version: 0 };
    const sent = await bench.submit({ ...step, ...lies, is_last: true, reward: 0.5, metadata: { k: 1 } });
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
    await generated(bench, 't1');
    const second = await generated(bench, 't1', 'p1', ANOTHER);
    await bench.submit({ ...second.step, is_last: true });
    expect(await bench.stored()).toMatchObject([{ turns: [{ trainable: false }, { trainable: true }] }]);
  });

  it.each([
    [[0.25, 0.5], { value: 0.75, byTurn: { 0: 0.75, 1: 0.5 } }],
    [[0, 1], { value: 1 }],
    [[undefined, 1], { value: 1 }],
  ])('credits each step with what was earned from it on, by turn only where that differs: %j', async (rewards, reward) => {
    const first = await generated(bench, 't1');
    const second = await generated(bench, 't1', 'p1', [...ASK, { role: 'assistant', content: 'It costs $81.' }, ...ASK]);
    // In whatever order they are sent.
    const steps = [
      { ...second.step, step_index: 1, is_last: true, reward: rewards[1] },
      { ...first.step, reward: rewards[0] },
    ];
    expect(await bench.submit(...steps)).toEqual({ status: 200, body: { accepted: 2, duplicates: 0 } });
    expect((await bench.stored())[0]?.grade).toEqual({ kind: 'graded', reward: { ...reward, source: 'workflow' } });
  });

  it('takes a step by its generation id alone', async () => {
    const { generation_id } = (await generated(bench, 't1')).body;
    expect((await bench.submit({ trajectory_uid: 't1', generation_id, step_index: 0, is_last: true })).status).toBe(200);
    expect(await bench.stored()).toHaveLength(1);
  });

  it('tells two turns apart that asked and said the same', async () => {
    const first = await generated(bench, 't1');
    const second = await generated(bench, 't1');
    expect(second.step).toEqual(first.step);
    expect((await bench.submit(first.step, { ...second.step, step_index: 1, is_last: true })).status).toBe(200);
    expect(await bench.stored()).toMatchObject([{ turns: [{ trainable: true }, { trainable: true }] }]);
  });

  it('takes the same again, also after the end, also a thousand times at once: one row', async () => {
    const { step } = await generated(bench, 't1');
    const submit = () => bench.submit({ ...step, is_last: true, reward: 1 });
    const sent = await Promise.all(Array.from({ length: 1000 }, submit));
    expect(new Set(sent.map(({ status }) => status))).toEqual(new Set([200]));
    expect((await submit()).body).toEqual({ accepted: 1, duplicates: 1 });
    expect(await bench.stored()).toHaveLength(1);
  });

  it('puts what the channel says into validation, never into training', async () => {
    const { step } = await generated(bench, 't1');
    expect((await bench.send('/submit_steps?channel=val', { steps: [{ ...step, is_last: true }] })).status).toBe(200);
    expect((await bench.stored()).map(({ purpose }) => purpose)).toEqual(['eval']);
  });
});

describe('init, register, complete', () => {
  it('opens a trajectory without a body: 32 hexadecimal digits, a base URL that ends in it and prompt 1; two differ', async () => {
    const [one, two] = [await bench.send('/init_trajectory'), await bench.send('/init_trajectory')];
    expect(one.status).toBe(200);
    expect(one.body.trajectory_uid).toMatch(/^[0-9a-f]{32}$/);
    expect(one.body.base_url).toBe(`${bench.gateway.origin}/${one.body.trajectory_uid}/1/v1`);
    expect(two.body.trajectory_uid).not.toBe(one.body.trajectory_uid);
  });

  it('serves the model below the base URL; what was registered and rewarded is kept at completion', async () => {
    await using _listener = await listen(bench.gateway);
    const { body } = await bench.send('/init_trajectory');
    const base = body.base_url.replace('/1/v1', '/p1/v1');
    const metadata = { policy_version: 7, k: 1 };
    const registered = await bench.send(`${base}/register_trajectory`, { channel: 'val', metadata });
    expect(registered).toEqual({ status: 200, body: { status: 'ok' } });
    const { completions } = new OpenAI({ baseURL: base, apiKey: body.api_key, maxRetries: 0 }).chat;
    const ask = () => completions.create({ model: 'policy', messages: ASK as never });
    expect((await ask()).choices[0]?.message.content).toBe('It costs $81.');
    // Neither the reward nor the missing channel makes it training data.
    const completed = await bench.send(`${base}/complete_trajectory`, { reward: 0.5 });
    expect(completed).toEqual({ status: 200, body: { status: 'ok', num_steps: 1 } });
    expect(await bench.stored()).toMatchObject([
      {
        ...{ rolloutId: body.trajectory_uid, groupId: 'p1', purpose: 'eval', metadata, turns: [{ policyVersion: 0 }] },
        grade: { kind: 'graded', reward: { value: 0.5, source: 'workflow' } },
      },
    ]);
    await expect(ask()).rejects.toMatchObject({ status: 410 });
  });

  it('trains nothing of a trajectory that was generated and completed without a step', async () => {
    await generated(bench, 't1');
    const completed = await bench.send('/t1/p1/v1/complete_trajectory', { reward: 1 });
    expect(completed.body).toEqual({ status: 'ok', num_steps: 0 });
    expect((await bench.stored())[0]?.turns).toMatchObject([{ trainable: false }]);
  });

  it('asks the grader where nobody said a reward, with the answer of the task', async () => {
    const { body } = await bench.send('/init_trajectory', { prompt_uid: 'p1' });
    const chat = await bench.send(`${body.base_url}/chat/completions`, { messages: ASK }, { key: body.api_key });
    expect(chat.status).toBe(200);
    await bench.send(`${body.base_url}/complete_trajectory`);
    expect((await bench.stored())[0]?.grade).toEqual({ kind: 'graded', reward: { value: 1 } });
  });

  it('completes twice alike, and refuses another ending', async () => {
    await generated(bench, 't1');
    const complete = (given?: object) => bench.send('/t1/p1/v1/complete_trajectory', given);
    expect((await complete({ reward: 1 })).status).toBe(200);
    expect((await complete({ reward: 1 })).status).toBe(200);
    expect((await complete()).status).toBe(200);
    expect(await complete({ reward: 0 })).toMatchObject({ status: 409, body: { error: { code: 'trajectory_complete' } } });
    expect(await bench.stored()).toMatchObject([{ grade: { reward: { value: 1 } } }]);
  });

  it('keeps a trajectory without a step as one that did nothing', async () => {
    const { body } = await bench.send('/init_trajectory', { prompt_uid: 'p1' });
    expect((await bench.send(`${body.base_url}/complete_trajectory`)).status).toBe(200);
    expect(await bench.stored()).toMatchObject([{ groupId: 'p1', outcome: { kind: 'rejected', reason: 'no_turns' }, turns: [] }]);
  });

  it('keeps a trajectory whose agent failed as failed, without a reward', async () => {
    await generated(bench, 't1');
    await bench.send('/t1/p1/v1/complete_trajectory', { error: 'tool exploded', reward: 1 });
    expect(await bench.stored()).toMatchObject([
      { outcome: { kind: 'failed', message: 'tool exploded' }, grade: { kind: 'ungraded' } },
    ]);
  });

  it('says what steps there are', async () => {
    const { step } = await generated(bench, 't1');
    await bench.submit({ ...step, reward: 0.5 });
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
    const { session, key } = held(bench);
    const { body } = await bench.send('/init_trajectory', undefined, { key });
    expect(body).toMatchObject({ trajectory_uid: 'g1-0', base_url: `${bench.gateway.origin}/g1-0/g1/v1` });
    expect((await bench.send(`${body.base_url}/chat/completions`, { messages: ASK }, { key: body.api_key })).status).toBe(200);
    expect((await bench.send(`${body.base_url}/complete_trajectory`, { reward: 1 }, { key })).status).toBe(200);
    expect(await bench.stored()).toEqual([]);
    expect(session.seal()).toHaveLength(1);
  });

  it('is only for what the run says', async () => {
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
    const { body } = await generated(bench, 't1');
    const messages = [...ASK, { role: 'assistant', content: 'It costs $81.' }];
    const asked = { trajectory_uid: 't1', messages, dataset_fields: { answer: 'something else', ground_truth: 'x' } };
    const inWords = await bench.send('/compute_reward', asked);
    expect(inWords).toEqual({ status: 200, body: { reward: 1, reward_score: 1, reward_extra_info: {} } });
    const { prompt_ids, response_ids } = body;
    const tokens = { prompt_ids, response_ids, num_turns: 2, dataset_fields: {} };
    const inTokens = await bench.send('/compute_reward', { trajectory_uid: 't1', ...tokens });
    expect(inTokens.body).toMatchObject({ reward_score: 1 });
    expect(JSON.stringify([inWords, inTokens, body])).not.toContain(ANSWER);
  });

  it('is about the conversation that was sent', async () => {
    await generated(bench, 't1');
    const messages = [...ASK, { role: 'assistant', content: 'No idea.' }];
    expect((await bench.send('/compute_reward', { trajectory_uid: 't1', messages })).body).toMatchObject({ reward: 0 });
  });

  const broken = () => {
    throw new Error('broken');
  };
  it.each([
    ['503 without a grader', { grade: null }, 'p1', 503, 'no_grader'],
    ['503 without a task', {}, 'p9', 503, 'no_grader'],
    ['500 where the grader fails', { grade: broken }, 'p1', 500, 'grader_failed'],
  ])('is %s: never a reward of 0', async (_, options, prompt, status, code) => {
    bench = flowBench(options);
    await generated(bench, 't1', prompt);
    const asked = { trajectory_uid: 't1', messages: [...ASK, { role: 'assistant', content: 'x' }] };
    expect(await bench.send('/compute_reward', asked)).toMatchObject({ status, body: { error: { code } } });
    expect((await bench.send('/generate', { trajectory_uid: 't1', messages: ASK })).status).toBe(200);
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
