/** What the agent-flow routes refuse: with which status, in which words, and that nothing is written. */
import { beforeEach, describe, expect, it } from 'vitest';
import type { Store } from '../../src/core/contracts.ts';
import type { Trajectory } from '../../src/core/types.ts';
import { ASK, type FlowBench, flowBench, generated, held, type Sent } from './bench.ts';

let bench: FlowBench;
beforeEach(() => {
  bench = flowBench();
});

/** An error reply, whole, and nothing kept. */
async function refused({ status, body }: Sent, expected: number, code?: string): Promise<void> {
  expect({ status, code: body.error?.code }).toEqual({ status: expected, code: code ?? body.error?.code });
  expect(body.error).toMatchObject({ type: expect.any(String), code: expect.any(String), message: expect.stringMatching(/\w/) });
  expect(body.error).toHaveProperty('param');
  expect(await bench.stored()).toEqual([]);
}

const nameOf = (uid: unknown): string => JSON.stringify(uid).slice(0, 14);
const BAD_UIDS = ['', '../../x', 'CON', '__proto__', '..', 'x'.repeat(129), 7];

describe('keys', () => {
  const routes = ['/generate', '/submit_steps', '/compute_reward', '/init_trajectory'];
  it.each([...routes, '/t1/p1/v1/register_trajectory', '/t1/p1/v1/complete_trajectory'])(
    'of an agent, a grader and a viewer may not call %s, nor may nobody',
    async (path) => {
      await generated(bench, 't1');
      const agent = bench.gateway.session('t1')!.model().apiKey;
      for (const key of [agent, bench.gateway.key('grader'), bench.gateway.key('viewer')]) {
        await refused(await bench.send(path, {}, { key }), 403, 'forbidden');
      }
      await refused(await bench.send(path, {}, { key: 'ty-x.y' }), 401);
    },
  );

  it('of one rollout do not reach another; it may have one name of the flow’s own', async () => {
    const { step } = await generated(bench, 't1');
    const { key, session } = held(bench);
    await refused(await bench.send('/submit_steps', { steps: [step] }, { key }), 404, 'not_found');
    await refused(await bench.send('/generate', { trajectory_uid: 't1', messages: ASK }, { key }), 404);
    await refused(await bench.send('/compute_reward', { trajectory_uid: 't1', messages: ASK }, { key }), 404);
    await refused(await bench.send('/t1/g1/v1/complete_trajectory', { reward: 1 }, { key }), 404);
    await refused(await bench.send('/t1/g1/v1/chat/completions', { messages: ASK }, { key }), 404);
    for (const name of ['traj-abc', 'g1-0']) {
      expect(await bench.send('/generate', { trajectory_uid: name, messages: ASK }, { key })).toMatchObject({ status: 200 });
    }
    expect(await bench.send('/traj-abc/p/v1/chat/completions', { messages: ASK }, { key })).toMatchObject({ status: 200 });
    await refused(
      await bench.send('/generate', { trajectory_uid: 'traj-xyz', messages: ASK }, { key }),
      409,
      'trajectory_conflict',
    );
    const { apiKey } = session.model();
    await refused(await bench.send('/traj-abc/g1/v1/chat/completions', { messages: ASK }, { key: apiKey }), 404);
    expect(session.turns).toHaveLength(3);
    expect(bench.gateway.session('t1')?.turns).toHaveLength(1);
  });

  it('of a rollout that ended are 410', async () => {
    const { session, key } = held(bench);
    session.seal();
    await refused(await bench.send('/generate', { messages: ASK }, { key }), 410, 'rollout_ended');
    await refused(await bench.send('/init_trajectory', undefined, { key }), 410);
    // Another attempt at the same rollout has another key.
    held(bench);
    await refused(await bench.send('/generate', { messages: ASK }, { key }), 410);
  });
});

describe('/generate', () => {
  const ids = (prompt_ids: unknown, more: object = {}) => ({ trajectory_uid: 't1', prompt_ids, ...more });

  it.each<[what: string, body: unknown]>([
    ['nothing', {}],
    ['no JSON', '{'],
    ['no ids', ids([])],
    ['ids that are none', ids([-1])],
    ['an id beyond the vocabulary', ids([1, 999_999])],
    ['a text as id', ids(['5'])],
    ['parameters that are no object', ids([1], { sampling_params: 5 })],
    ['an unknown parameter', ids([1], { sampling_params: { min_p: 0.1 } })],
    ['another model', ids([1], { sampling_params: { model: 'gpt-9' } })],
    ['a penalty', ids([1], { sampling_params: { repetition_penalty: 1.1 } })],
    ['pictures', ids([1], { image_data: [{ url: 'http://169.254.169.254/' }] })],
    ['no messages', { trajectory_uid: 't1', messages: [] }],
    ['an unknown role', { trajectory_uid: 't1', messages: [{ role: 'root', content: 'x' }] }],
    ['an unknown name', { trajectory_uid: 't1', messages: ASK, mesages: ASK }],
    ['no trajectory', { messages: ASK }],
    ...BAD_UIDS.map((uid): [string, unknown] => [`the uid ${nameOf(uid)}`, { trajectory_uid: uid, messages: ASK }]),
  ])('with %s is 400, and no turn', async (_, body) => {
    await refused(await bench.send('/generate', body), 400);
    expect(bench.engine.requests).toHaveLength(0);
  });

  it('of a trajectory of another prompt is 409', async () => {
    await generated(bench, 't1', 'p1');
    const sent = await bench.send('/generate', { trajectory_uid: 't1', prompt_uid: 'p2', messages: ASK });
    await refused(sent, 409, 'trajectory_conflict');
  });

  it('opens nothing where a run holds all sessions', async () => {
    bench = flowBench({ serves: false });
    await refused(await bench.send('/generate', { trajectory_uid: 't1', messages: ASK }), 404);
    await refused(await bench.send('/init_trajectory'), 404);
  });
});

describe('/submit_steps', () => {
  it.each([
    ['no steps', {}],
    ['an empty list', { steps: [] }],
    ['10,001 steps', { steps: Array.from({ length: 10_001 }, () => ({ trajectory_uid: 't1' })) }],
    ['steps that are none', { steps: [1] }],
  ])('with %s is refused', async (_, body) => await refused(await bench.send('/submit_steps', body), 400));

  it.each<[what: string, wrong: object, status: number]>([
    ['index −1', { step_index: -1 }, 400],
    ['a gap before it', { step_index: 1 }, 409],
    ['too few log-probabilities', { rollout_log_probs: [-1] }, 422],
    ['a positive log-probability', { rollout_log_probs: [1] }, 400],
    ['no response', { response_ids: [] }, 400],
    ['an id beyond the vocabulary', { response_ids: [999_999] }, 400],
    ['ids that were not sampled', { response_ids: [1, 2, 3] }, 409],
    ['another prompt', { prompt_ids: [1, 2, 3] }, 409],
    ['a reward of 1e308', { reward: 1e308 }, 400],
    ['a future version', { policy_version: 1 }, 409],
    ['huge metadata', { metadata: { text: 'x'.repeat(200_000) } }, 400],
    ['a generation id of its own making', { generation_id: `gen-WyJ0MSIsMCwwXQ.${'A'.repeat(43)}` }, 409],
    ['an unknown field', { rewrd: 1 }, 400],
    ['pictures', { multi_modal_data: { images: ['x'] } }, 400],
    ['another prompt uid', { prompt_uid: 'p2' }, 409],
    ['a trajectory that is not there', { trajectory_uid: 'nobody' }, 404],
    ...BAD_UIDS.map((uid): [string, object, number] => [`the uid ${nameOf(uid)}`, { trajectory_uid: uid }, 400]),
  ])('with %s is refused, and none of the submission is taken', async (_, wrong, status) => {
    const first = await generated(bench, 't1');
    const { step } = await generated(bench, 't2');
    await refused(await bench.submit({ ...first.step, is_last: true }, { ...step, ...wrong }), status);
    expect((await bench.send('/t1/p1/v1/steps', undefined, { method: 'GET' })).body.steps).toEqual([]);
    expect((await bench.submit({ ...step, is_last: true })).status).toBe(200);
  });

  it('with infinite numbers, which JSON can spell, is 400', async () => {
    const { step } = await generated(bench, 't1');
    for (const wrong of ['"reward":1e999', '"reward":NaN', '"rollout_log_probs":[-1e999]', '"step_index":1e999']) {
      await refused(await bench.send('/submit_steps', `{"steps":[{${JSON.stringify(step).slice(1, -1)},${wrong}}]}`), 400);
    }
  });

  it.each(['__proto__', 'test', 'train&channel=val', 'constructor', ''])('with channel %s is 400', async (channel) => {
    const { step } = await generated(bench, 't1');
    await refused(await bench.send(`/submit_steps?channel=${channel}`, { steps: [step] }), 400);
  });

  it('refuses another body for a step that is there, two last steps, a step after the last, and one generation twice', async () => {
    const { step } = await generated(bench, 't1');
    const other = (await generated(bench, 't1', 'p1', [{ role: 'user', content: 'Another?' }])).step;
    const { submit } = bench;
    expect((await submit(step)).status).toBe(200);
    await refused(await submit({ ...step, reward: 1 }), 409, 'step_conflict');
    await refused(await submit({ ...step, step_index: 1 }), 409, 'step_conflict');
    const last = { ...other, step_index: 1, is_last: true };
    await refused(await submit(last, { ...other, step_index: 2, is_last: true }), 409);
    expect((await submit(last)).status).toBe(200);
    expect(await submit({ ...other, step_index: 2 })).toMatchObject({
      status: 409,
      body: { error: { code: 'trajectory_complete' } },
    });
    expect(await bench.stored()).toMatchObject([{ turns: [{ trainable: true }, { trainable: true }] }]);
  });

  it('refuses steps after completion, and takes again what was taken before', async () => {
    const { step } = await generated(bench, 't1');
    await bench.send('/t1/p1/v1/complete_trajectory');
    expect(await bench.submit(step)).toMatchObject({ status: 409 });
    expect(await bench.stored()).toHaveLength(1);
  });
});

describe('init, register and complete', () => {
  it.each([
    ['a reward of text', { reward: '1' }],
    ['a strange channel', { channel: '__proto__' }],
    ['an unknown name', { rewards: 1 }],
    ['a list', []],
  ])('complete with %s is 400', async (_, body) => {
    await generated(bench, 't1');
    await refused(await bench.send('/t1/p1/v1/complete_trajectory', body), 400);
    expect(bench.gateway.session('t1')).toBeDefined();
  });

  it.each([
    ['/nobody/p1/v1/complete_trajectory', 404],
    ['/nobody/p1/v1/register_trajectory', 404],
    ['/nobody/p1/v1/chat/completions', 404],
    ['/__proto__/p1/v1/complete_trajectory', 400],
    ['/%2e%2e%2fx/p1/v1/complete_trajectory', 400],
  ])('refuse what was never begun: %s', async (path, status) => await refused(await bench.send(path, {}), status));

  it('register twice with another channel is 409, and the first holds', async () => {
    await generated(bench, 't1');
    const register = (channel: string) => bench.send('/t1/p1/v1/register_trajectory', { channel });
    expect((await register('val')).status).toBe(200);
    await refused(await register('train'), 409, 'trajectory_conflict');
    await refused(await bench.send('/t1/p1/v1/complete_trajectory', { channel: 'train' }), 409);
    await bench.send('/t1/p1/v1/complete_trajectory');
    expect(await bench.stored()).toMatchObject([{ purpose: 'eval' }]);
  });

  it('register after the end is 409', async () => {
    await generated(bench, 't1');
    await bench.send('/t1/p1/v1/complete_trajectory');
    expect((await bench.send('/t1/p1/v1/register_trajectory', { metadata: { late: true } })).status).toBe(409);
    expect((await bench.stored())[0]?.metadata).toBeUndefined();
  });
});

it('a base URL with another prompt than before is 409', async () => {
  await generated(bench, 't1', 'p1');
  await refused(await bench.send('/t1/p2/v1/complete_trajectory'), 409);
});

describe('a store that is full', () => {
  let isFull = true;
  const failing = (store: Store): Store => {
    const append = store.append.bind(store);
    const full = () => Promise.reject(new Error('ENOSPC: no space left on device'));
    return Object.assign(store, { append: (one: Trajectory) => (isFull ? full() : append(one)) });
  };

  beforeEach(() => {
    isFull = true;
    bench = flowBench({ store: failing });
  });

  it('is 507 for the last step, with nothing half-written, and works again when there is room', async () => {
    const { step } = await generated(bench, 't1');
    const last = { ...step, is_last: true, reward: 1 };
    await refused(await bench.submit(last), 507, 'store_full');
    expect((await bench.send('/t1/p1/v1/steps', undefined, { method: 'GET' })).body).toMatchObject({
      steps: [],
      complete: false,
    });
    isFull = false;
    expect(await bench.submit(last)).toEqual({ status: 200, body: { accepted: 1, duplicates: 0 } });
    expect(await bench.stored()).toMatchObject([{ grade: { reward: { value: 1 } } }]);
  });

  it('is 507 for a completion, which then can be sent again', async () => {
    await generated(bench, 't1');
    const complete = () => bench.send('/t1/p1/v1/complete_trajectory', { reward: 1 });
    await refused(await complete(), 507, 'store_full');
    isFull = false;
    expect((await complete()).status).toBe(200);
    expect(await bench.stored()).toHaveLength(1);
  });

  it('does not lose what was complete when the server ends later', async () => {
    await generated(bench, 't1');
    await bench.send('/t1/p1/v1/complete_trajectory', { reward: 1 });
    isFull = false;
    await bench.flows.drain();
    expect(await bench.stored()).toMatchObject([{ rolloutId: 't1', grade: { reward: { value: 1 } } }]);
  });
});

it('the end of a server keeps what is open: what was never completed is no training data', async () => {
  await generated(bench, 't1');
  await bench.send('/init_trajectory');
  await bench.flows.drain();
  expect(await bench.stored()).toMatchObject([
    { rolloutId: 't1', outcome: { kind: 'rejected', reason: 'never_completed' }, grade: { kind: 'ungraded' } },
  ]);
  expect(bench.gateway.openSessions).toBe(0);
});
