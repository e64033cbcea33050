/** Groups over HTTP: who may fetch them, what is in them, and what comes too late. */
import { describe, expect, it } from 'vitest';
import type { Store } from '../../src/core/contracts.ts';
import { GroupPool, type GroupPoolOptions } from '../../src/shapes/flows/group-pool.ts';
import { memoryStore } from '../fixtures/store/memory-store.ts';
import { type FlowBench, flowBench, generated } from './bench.ts';

async function poolBench(options: Partial<GroupPoolOptions> = {}, store: Store = memoryStore()) {
  const pool = await GroupPool.open({ store, clock: { now: Date.now }, group: 2, ...options });
  const bench = flowBench({ store: () => store, pool });
  const admin = bench.gateway.key('admin');
  const fetch = (body: object = {}) => bench.send('/fetch_batch', { wait_s: 0, ...body }, { key: admin });
  const counts = async () => (await bench.send('/pool', undefined, { key: admin, method: 'GET' })).body;
  return { bench, pool, admin, fetch, counts };
}

async function complete(bench: FlowBench, uid: string, prompt = 'p1', reward = 1) {
  const { step } = await generated(bench, uid, prompt);
  return await bench.submit({ ...step, is_last: true, reward });
}

describe('/fetch_batch', () => {
  it('gives the steps of complete groups as they were sampled, once, sorted, with their rewards', async () => {
    const { bench, fetch, counts } = await poolBench();
    await complete(bench, 't2', 'p1', 0);
    expect((await fetch()).body).toEqual({ status: 'waiting', batch_id: null, steps: null });
    await complete(bench, 't1', 'p1', 1);
    const { status, body } = await fetch();
    expect(status).toBe(200);
    const [kept] = await bench.stored();
    expect(body).toMatchObject({
      status: 'batch',
      steps: [
        { trajectory_uid: 't1', prompt_uid: 'p1', step_index: 0, is_last: true, reward: 1, trajectory_reward: 1, weight: 1 },
        { trajectory_uid: 't2', reward: 0, policy_version: 0, temperature: 1, response_ids: [...kept!.turns[0]!.sampledIds] },
      ],
    });
    expect(body.steps[1].rollout_log_probs).toEqual([...kept!.turns[0]!.logprobs]);
    expect((await fetch()).body.status).toBe('waiting');
    expect((await fetch({ batch_id: body.batch_id })).body).toEqual(body);
    expect(await counts()).toMatchObject({ train: { kept: 2, served: 2, servedSteps: 2 }, val: { kept: 0 } });
  });

  it('refuses what comes for a group that was handed out, step or completion, keeps none of it, and counts it', async () => {
    const { bench, fetch, counts } = await poolBench({ group: 1 });
    const early = await generated(bench, 'late', 'p1');
    await complete(bench, 't1');
    await fetch();
    const step = await bench.submit({ ...early.step, reward: 1 });
    expect(step).toMatchObject({ status: 409, body: { error: { code: 'group_closed' } } });
    const ending = await bench.send('/late/p1/v1/complete_trajectory', { reward: 1 });
    expect(ending).toMatchObject({ status: 409, body: { error: { code: 'group_closed' } } });
    expect((await bench.stored()).map(({ rolloutId }) => rolloutId)).toEqual(['t1']);
    expect((await counts()).train).toMatchObject({ late: 2 });
    // The end of the server has nothing to keep of it either.
    await bench.flows.drain();
    expect(await bench.stored()).toHaveLength(1);
  });

  it('says 503 where no more groups may wait, and takes the same again when there is room', async () => {
    const { bench, fetch } = await poolBench({ group: 1, maxGroups: 1 });
    await complete(bench, 't1', 'p1');
    const { step } = await generated(bench, 't2', 'p2');
    const last = { ...step, is_last: true, reward: 1 };
    expect(await bench.submit(last)).toMatchObject({ status: 503, body: { error: { code: 'pool_full' } } });
    await fetch();
    expect(await bench.submit(last)).toMatchObject({ status: 200 });
    expect((await fetch()).body.steps).toMatchObject([{ trajectory_uid: 't2' }]);
  });

  it('refuses a batch by its id to the other channel', async () => {
    const { bench, fetch } = await poolBench({ group: 1 });
    await complete(bench, 't1');
    await fetch({ batch_id: 'one' });
    const other = await fetch({ batch_id: 'one', channel: 'val' });
    expect(other).toMatchObject({ status: 409, body: { error: { code: 'batch_conflict', param: 'batch_id' } } });
    expect(JSON.stringify(other.body)).not.toContain('prompt_ids');
  });

  it('is for the admin alone', async () => {
    const { bench } = await poolBench();
    expect(await bench.send('/fetch_batch', {})).toMatchObject({ status: 403 });
    expect(await bench.send('/pool', undefined, { method: 'GET' })).toMatchObject({ status: 403 });
    const agent = (await bench.send('/init_trajectory', {})).body.api_key;
    expect(await bench.send('/fetch_batch', {}, { key: agent })).toMatchObject({ status: 403 });
  });

  const wrong = [{ groups: 0 }, { groups: 3 }, { n: -1 }, { wait_s: 61 }, { stale: 'ignore' }, { channel: 'test' }];
  it.each([...wrong, { batch_id: '../x' }, { group: 2 }, '{'])('refuses %j', async (body) => {
    const { bench, admin } = await poolBench({ maxGroups: 2 });
    expect(await bench.send('/fetch_batch', body, { key: admin })).toMatchObject({ status: 400 });
  });

  it('is not there where a run trains its groups itself', async () => {
    const bench = flowBench();
    expect(await bench.send('/fetch_batch', {}, { key: bench.gateway.key('admin') })).toMatchObject({ status: 404 });
  });
});
