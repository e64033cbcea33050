/** What somebody would try against the flow routes and the classes on top of them, and what must not come of it. */
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { BlackBoxAgentFlowBase, type FlowFields, SingleStepSingleTurnAgentFlow } from '../../src/agent-flow.ts';
import type { Store } from '../../src/core/contracts.ts';
import { ANSWER, ASK, flowBench, generated, held, managerOf } from './bench.ts';

it('a grader that fails on the way does not tell the answer in its words', async () => {
  const bench = flowBench({
    grade: (said, answer) => {
      throw new Error(`expected ${String(answer)}, found ${said}`);
    },
  });
  const { prompt_ids, response_ids } = (await generated(bench, 't1')).body;
  const reward = (body: object) => bench.send('/compute_reward', { trajectory_uid: 't1', ...body });
  const inWords = await reward({ messages: [...ASK, { role: 'assistant', content: 'x' }] });
  const inTokens = await reward({ prompt_ids, response_ids });
  expect([inWords, inTokens]).toMatchObject([{ status: 500 }, { status: 500 }]);
  expect(inWords.body.error.message).toContain('GRADER_FAILED');
  expect(JSON.stringify([inWords, inTokens])).not.toContain(ANSWER);
});

it('the last step is not acknowledged to a second sender while it may still be lost', async () => {
  const { promise: asked, resolve: isAsked } = Promise.withResolvers<void>();
  const { promise: failed, reject: fail } = Promise.withResolvers<void>();
  const store = (inner: Store): Store => ({
    ...inner,
    append: async () => {
      isAsked();
      await failed;
    },
  });
  const bench = flowBench({ store });
  const { step } = await generated(bench, 't1');
  const submit = () => bench.submit({ ...step, is_last: true, reward: 1 });
  const first = submit();
  await asked;
  const second = submit();
  await sleep(20);
  fail(Object.assign(new Error('ENOSPC: no space left on device'), { code: 'ENOSPC' }));
  expect([(await first).status, (await second).status]).toEqual([507, 507]);
});

it('a trajectory that was given up takes no steps and no completion any more: they would be acknowledged and lost', async () => {
  let now = 0;
  const bench = flowBench({ clock: { now: () => now }, idleMs: 1000 });
  const { step } = await generated(bench, 't1');
  now += 2000;
  expect((await bench.send('/generate', { trajectory_uid: 't1', messages: ASK })).status).toBe(410);
  await expect.poll(() => bench.stored()).toMatchObject([{ outcome: { reason: 'never_completed' } }]);
  const late = [
    await bench.submit(step),
    await bench.submit({ ...step, is_last: true, reward: 1 }),
    await bench.send('/t1/p1/v1/complete_trajectory', { reward: 1 }),
    await bench.send('/t1/p1/v1/register_trajectory', {}),
  ];
  expect(late.map(({ status }) => status)).toEqual([410, 410, 410, 410]);
  expect(await bench.stored()).toHaveLength(1);
});

describe('the id of a generation', () => {
  it('that was changed, signed for another, spelt otherwise, or made elsewhere is none', async () => {
    const bench = flowBench();
    const first = (await generated(bench, 't1')).body.generation_id as string;
    const second = (await generated(bench, 't1', 'p1', [...ASK, ...ASK])).body.generation_id as string;
    const elsewhere = flowBench();
    const foreign = (await generated(elsewhere, 't1')).body.generation_id as string;
    const [payload, signature] = second.slice(4).split('.') as [string, string];
    const forged = [
      `gen-${payload}.${first.split('.')[1]}`,
      `gen-${payload}.${'A'.repeat(43)}`,
      `gen-${Buffer.from(JSON.stringify(['t1', 0, 0])).toString('base64url')}.${signature}`,
      `gen-${payload}=.${signature}`,
      `${second} `,
      foreign,
    ];
    for (const generation_id of forged) {
      const { status, body } = await bench.submit({ trajectory_uid: 't1', generation_id });
      expect([generation_id, status, body.error?.code]).toEqual([generation_id, 409, 'unknown_generation']);
    }
    expect((await bench.submit({ trajectory_uid: 't1', generation_id: second })).status).toBe(200);
  });

  it('of a session that ended is none of the next one of the same rollout', async () => {
    const bench = flowBench({ serves: false });
    const one = held(bench);
    const { body } = await bench.send('/generate', { messages: ASK }, { key: one.key });
    one.session.seal();
    const other = held(bench);
    await bench.send('/generate', { messages: ASK }, { key: other.key });
    const steps = [{ trajectory_uid: 'g1-0', generation_id: body.generation_id }];
    expect((await bench.send('/submit_steps', { steps }, { key: other.key })).body.error.code).toBe('unknown_generation');
    expect((await bench.send('/submit_steps', { steps }, { key: one.key })).status).toBe(410);
  });
});

it.each(['../../x', '__proto__', 'a b'])('the name %s in a header opens no trajectory', async (name) => {
  const bench = flowBench();
  const { status } = await bench.send('/generate', { messages: ASK }, { headers: { 'x-rollout-id': name } });
  expect([status, bench.gateway.openSessions]).toEqual([400, 0]);
});

describe('an agent’s key', () => {
  it('does not choose the prompt, and with it the group and the task that it is graded by', async () => {
    const bench = flowBench();
    const { body } = await bench.send('/init_trajectory');
    const { trajectory_uid: uid, api_key: key } = body;
    const said = await bench.send(`/${uid}/p1/v1/chat/completions`, { messages: ASK }, { key });
    expect(said.status).toBe(200);
    await bench.send(`/${uid}/1/v1/complete_trajectory`);
    expect(await bench.stored()).toMatchObject([{ groupId: uid, taskId: uid, grade: { kind: 'ungraded' } }]);
  });

  it('reaches none of the flow routes, by whatever spelling', async () => {
    const bench = flowBench();
    const { body } = await bench.send('/init_trajectory');
    const { trajectory_uid: uid, api_key: key } = body;
    const paths = [
      ...['/generate', '/submit_steps', '/compute_reward', '/init_trajectory', `/${uid}/1/v1/register_trajectory`],
      ...['', '/'].map((end) => `/${uid}/1/v1/complete_trajectory${end}`),
      ...[`/${uid}/1/v1/%63omplete_trajectory`, `/${uid}/1/v1//complete_trajectory`, `//${uid}/1/v1/complete_trajectory`],
      ...['/__proto__/1/v1/chat/completions', '/constructor/1/v1/complete_trajectory', `/${uid}/__proto__/v1/chat/completions`],
    ];
    for (const path of paths) {
      const { status } = await bench.send(path, { messages: ASK, reward: 1 }, { key });
      expect([path, status >= 400 && status < 500]).toEqual([path, true]);
    }
    expect((await bench.send(`/${uid}/1/v1/steps`, undefined, { method: 'GET' })).body).toMatchObject({ complete: false });
  });
});

describe('a batch', () => {
  it('has a result for a row that no flow can be given', async () => {
    const bench = flowBench();
    const good = { prompt: 'a' };
    const rows = [good, { prompt: undefined as never }, { prompt: 'b', tool: () => 1 }, null as never, good];
    const results = await managerOf(bench, SingleStepSingleTurnAgentFlow).run(rows);
    expect(results.map(({ kind }) => kind)).toEqual(['completed', 'failed', 'failed', 'failed', 'completed']);
  });

  it('has not completed what could not be kept', async () => {
    class Unfinished extends SingleStepSingleTurnAgentFlow {
      override async run(_: unknown, { trajectoryUid, promptUid, prompt: messages }: FlowFields): Promise<number> {
        await this.gatewayGenerate({ trajectoryUid, promptUid, messages });
        return 1;
      }
    }
    const append = () => Promise.reject(new Error('ENOSPC: no space left on device'));
    const bench = flowBench({ store: (inner) => ({ ...inner, append }) });
    expect(await managerOf(bench, Unfinished).run([{ prompt: 'a' }])).toMatchObject([
      { kind: 'failed', error: expect.stringContaining('store_full') },
    ]);
  });

  it('keeps nothing that a black box did after its time as training data', async () => {
    const { promise: late, resolve: go } = Promise.withResolvers<void>();
    const { promise: ended, resolve: end } = Promise.withResolvers<void>();
    class Deaf extends BlackBoxAgentFlowBase {
      async _runAgent(baseURL: string, _: FlowFields, { apiKey, fetch }: { apiKey: string; fetch: typeof globalThis.fetch }) {
        const ask = () =>
          fetch(`${baseURL}/chat/completions`, {
            method: 'POST',
            headers: { authorization: `Bearer ${apiKey}` },
            body: JSON.stringify({ messages: ASK }),
          });
        await ask();
        await late;
        await ask();
        end();
        return { reward: 1 };
      }
    }
    const bench = flowBench();
    const results = await managerOf(bench, Deaf, { timeoutMs: 150 }).run([{ id: 'p1', prompt: 'a' }]);
    expect(results).toMatchObject([{ kind: 'failed', error: 'not done within 150 ms' }]);
    await expect.poll(() => bench.stored()).toMatchObject([{ outcome: { kind: 'failed' }, grade: { kind: 'ungraded' } }]);
    go();
    await ended;
    await sleep(20);
    await bench.flows.drain();
    expect(await bench.stored()).toMatchObject([{ groupId: 'p1', outcome: { kind: 'failed' }, turns: [{}] }]);
  });
});
